"""The noise of an evaluation: the examples that the network sees, and what their number means for each metric."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from softshare import MixturePrior
from softshare.errors import ConfigError, NotANumberError, TaskError
from softshare.task import Metric, Task
from softshare.train.first_look import look
from softshare.train.noise import examples_seen, noise_is_guessed, noise_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x)))
        return out if scale is None else out * scale

    def score(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)).sum(1)  # type: ignore[no-any-return]


def make_task(evaluate: Callable[[Any], float], metric: Metric | None = None, **changes: Any) -> Task:
    torch.manual_seed(0)
    return Task(Net(), [torch.zeros(2, 3)], lambda m, x: m(x).mean(), evaluate, metric=metric or Metric(), **changes)


X = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))


def at_once(model: nn.Module) -> float:
    return float(model(X).mean())


def in_batches(model: nn.Module) -> float:
    return sum(float(model(x).sum()) for x in X.split(30))  # the last one has 10


def by_name(model: nn.Module) -> float:
    return float(model(scale=torch.tensor(2.0), x=X).mean())  # a scalar is no batch


def another_method(model: Net) -> float:
    return sum(float(model.score(x).sum()) for x in X.split(50))


def nothing(model: nn.Module) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("evaluate", "n"), [(at_once, 100), (in_batches, 100), (by_name, 100), (another_method, 100), (nothing, 0)]
)
def test_the_examples_that_the_network_sees_are_counted(evaluate: Callable[[Any], float], n: int) -> None:
    task = make_task(evaluate)
    assert examples_seen(task, task.model) == n


def test_counting_leaves_no_trace() -> None:
    task = make_task(at_once)
    before = {name: t.clone() for name, t in task.model.state_dict().items()}
    task.model.train()
    examples_seen(task, task.model)
    assert task.model.training
    assert all(torch.equal(t, before[name]) for name, t in task.model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in task.model.modules())

    def fails(model: nn.Module) -> float:
        raise RuntimeError("no data")

    with pytest.raises(TaskError, match="no data"):
        examples_seen(make_task(fails), task.model)
    assert not any(module._forward_pre_hooks for module in task.model.modules())


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        (Metric(), 10.0, 100 * math.sqrt((10.5 / 101) * (90.5 / 101) / 100)),  # 10 of 100 answers
        (Metric(), 0.0, 100 * math.sqrt((0.5 / 101) * (100.5 / 101) / 100)),  # no error is not certainty
        (Metric("accuracy", "%", True), 100.0, 100 * math.sqrt((100.5 / 101) * (0.5 / 101) / 100)),
        (Metric("accuracy", "", True), 0.9, math.sqrt((90.5 / 101) * (10.5 / 101) / 100)),  # a score up to 1
        (Metric("mse", ""), 0.9, 0.9 * math.sqrt(2 / 100)),  # of normal residuals
        (Metric("gain", "dB", True), 30.0, 30 * math.sqrt(2 / 100)),
        (Metric("log likelihood", "", True), -30.0, 30 * math.sqrt(2 / 100)),
    ],
)
def test_the_standard_error_by_hand(metric: Metric, value: float, expected: float) -> None:
    task = make_task(at_once, metric)
    assert noise_of(task, task.model, value) == pytest.approx(expected, rel=1e-12)


def test_the_standard_error_of_a_share_is_that_of_many_samples() -> None:
    """The errors of 2000 samples of 100 answers, of which 10% are wrong, vary by this much."""
    samples = (torch.rand(2000, 100, generator=torch.Generator().manual_seed(0)) < 0.1).double().mean(1) * 100
    task = make_task(at_once)
    assert noise_of(task, task.model, 10.0) == pytest.approx(float(samples.std()), rel=0.05)


def test_the_standard_error_of_a_squared_error_is_that_of_many_samples() -> None:
    residuals = 3 * torch.randn(2000, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    task = make_task(at_once, Metric("mse", ""))
    assert noise_of(task, task.model, 9.0) == pytest.approx(float(residuals.square().mean(1).std()), rel=0.05)


def test_the_tasks_own_noise_wins_and_is_asked_in_evaluation_mode() -> None:
    def own(model: nn.Module) -> float:
        assert not model.training
        assert not torch.is_grad_enabled()
        model(X)
        return -0.25

    task = dataclasses.replace(make_task(at_once), noise=own)
    task.model.train()
    before = {name: t.clone() for name, t in task.model.state_dict().items()}
    assert noise_of(task, task.model, 10.0) == 0.25
    assert task.model.training
    assert all(torch.equal(t, before[name]) for name, t in task.model.state_dict().items())


def gives(value: Any) -> Callable[[nn.Module], Any]:
    return lambda model: value


def test_a_noise_that_is_no_finite_number() -> None:
    task = make_task(at_once)
    for value in (math.nan, math.inf):
        with pytest.raises(NotANumberError, match=f"Task.noise returned {value} for the network; expected a finite"):
            noise_of(make_task(at_once, noise=gives(value)), task.model, 1.0)
    with pytest.raises(ConfigError, match=r"Task\.noise: expected a number, got str"):
        noise_of(make_task(at_once, noise=gives("much")), task.model, 1.0)


@pytest.mark.parametrize(
    ("metric", "value", "own", "guessed"),
    [
        (Metric(), 10.0, None, False),
        (Metric("accuracy", "", True), 0.9, None, False),
        (Metric("gain", "dB", True), 30.0, None, True),
        (Metric("perplexity", ""), 8.0, None, True),
        (Metric("perplexity", ""), 8.0, gives(0.1), False),
    ],
)
def test_what_is_no_share_of_answers_is_a_guess(metric: Metric, value: float, own: Any, guessed: bool) -> None:
    task = make_task(lambda model: value + 0 * at_once(model), metric, noise=own)
    assert noise_is_guessed(task, value) is guessed
    assert look(task, MixturePrior(task.model), 0).guessed is guessed
