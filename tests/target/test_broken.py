"""Whether a network is broken: equal answers, or most of what it had learned is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from softshare.target.broken import Alarm, answers_alike, is_broken
from softshare.train.first_look import FirstLook
from softshare.train.hooks import EpochRecord

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    """Two layers, and a way around the first one if it is a residual network."""

    def __init__(self, residual: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.residual = nn.Linear(4, 4), nn.Linear(4, 3), residual

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        out: Tensor = self.last(hidden + x if self.residual else hidden)
        return out

    def score(self, x: Tensor) -> Tensor:
        return self.forward(x)


def task_of(evaluate: Callable[[Any], float]) -> ss.Task:
    return ss.Task(Two(), [X], lambda m, x: m(x).mean(), evaluate, 60)


def in_batches(model: nn.Module) -> float:
    return sum(float(model(x).mean()) for x in X.split(20))


def one_by_one(model: nn.Module) -> float:
    return sum(float(model(x).mean()) for x in X[:3])


def another_method(model: Two) -> float:
    return float(model.score(X).mean())


def dead(residual: bool = False) -> nn.Module:
    model = Two(residual)
    nn.init.zeros_(model.first.weight)
    return model


def test_a_layer_that_died_makes_all_answers_alike() -> None:
    assert answers_alike(task_of(in_batches), dead())
    assert not answers_alike(task_of(in_batches), Two())
    assert not answers_alike(task_of(in_batches), dead(residual=True))  # there is a way around it
    assert not any(module._forward_hooks for module in Two().modules())


@pytest.mark.parametrize("evaluate", [one_by_one, another_method])
def test_what_cannot_be_seen_is_not_said(evaluate: Callable[[Any], float]) -> None:
    assert not answers_alike(task_of(evaluate), dead())


@pytest.mark.parametrize(
    ("after", "zeros", "network", "expected"),
    [
        (2.4, 50.0, dead, False),  # within the noise, whatever it answers
        (2.6, 50.0, dead, True),
        (25.0, 50.0, Two, False),  # 23 of the 48 points that it gained
        (27.0, 50.0, Two, True),
        (27.0, None, Two, False),
        (27.0, None, dead, True),
        (27.0, 2.9, dead, False),  # it had learned nothing that could be lost
    ],
)
def test_what_is_broken(after: float, zeros: float | None, network: Any, expected: bool) -> None:
    """The error before is 2%, and its noise 0.5%."""
    assert is_broken(task_of(in_batches), FirstLook(2.0, 0.5, zeros), network(), after) is expected


# While training


def record(look: int, value: float, density: dict[str, float], hard: bool = True) -> EpochRecord:
    return EpochRecord(look, 0.0, 0.1, 0.0, 0.0, 0.0, value, 0, density, hard)


ALIVE = {"first.weight": 0.5, "first.bias": 0.5, "last.weight": 0.0, "last.bias": 0.5}  # one was dead before
DEAD = {**ALIVE, "first.weight": 0.0}


@pytest.mark.parametrize(
    ("at_look", "said"),
    [
        (record(7, 2.6, DEAD), "look 7: first.weight lost all weights (error 2.00% before, 2.60% now). A target, "),
        (record(7, 2.4, DEAD), ""),  # the network can do without
        (record(7, 25.0, {**ALIVE, "first.bias": 0.0}), ""),
        (record(7, 30.0, ALIVE), ""),  # right after quantizing: it may come back
        (record(7, 30.0, DEAD, hard=False), ""),  # it is not quantized
    ],
)
def test_an_alarm_is_given_once_at_the_look_where_it_happens(at_look: EpochRecord, said: str) -> None:
    task, told = task_of(in_batches), list[str]()
    alarm = Alarm(task, FirstLook(2.0, 0.5, 50.0), "look", told.append)
    alarm.on_prior(ss.MixturePrior(task.model))
    alarm.on_epoch(record(0, 2.0, ALIVE, hard=False))
    alarm.on_epoch(record(6, 2.1, ALIVE))
    assert told == []
    again = Alarm(task, FirstLook(2.0, 0.5, 50.0), "look", told.append)  # a run that goes on
    again.load_state_dict(alarm.state_dict())
    again.on_epoch(at_look)
    assert len(told) == bool(said)
    assert all(text.startswith(said) for text in told)
    for _ in range(2):
        again.on_epoch(record(8, 90.0, DEAD))
    assert len(told) == 1


def test_most_of_what_it_had_learned_is_lost_for_a_while() -> None:
    task, told = task_of(in_batches), list[str]()
    alarm = Alarm(task, FirstLook(2.0, 0.5, 50.0), "look", told.append)
    for look, value in enumerate([30.0] * 3 + [20.0] + [30.0] * 5):
        alarm.on_epoch(record(look, value, ALIVE))
    assert told == [
        "look 7: the network lost most of what it had learned (error 2.00% before, 30.00% now). A target, also the "
        "default one, avoids this"
    ]


def test_a_run_without_a_target_says_while_training_that_it_breaks() -> None:
    torch.manual_seed(0)
    x = torch.randn(512, 6)
    y = (x[:, 0] > x[:, 1]).long()
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    batches = list(zip(x.split(64), y.split(64), strict=True))
    task = ss.Task.from_loaders(model, batches, batches, nn.CrossEntropyLoss())
    config = ss.CompressConfig().override(steps=60, tau=1e4)
    with pytest.warns(UserWarning, match=r"^look \d+: 0.weight lost all weights \(error \d.* before"):
        compressed = ss.compress(task, config, target=None, quiet=True)
    assert compressed.outcome is not None
    assert compressed.outcome.broken
