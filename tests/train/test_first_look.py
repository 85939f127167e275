"""Tasks that would ruin a network in silence are refused before it is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.errors import ConfigError, ModelError

Batch = tuple[Tensor, Tensor]
CONFIG = ss.CompressConfig().override(epochs=1)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_task(steps: int = 200) -> ss.Task:
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    y = (x[:, 0] > x[:, 1]).long()
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, (x, y)).backward()
        optimizer.step()

    def error(model: nn.Module) -> float:
        return 100 * float((model(x).argmax(1) != y).double().mean())

    return ss.Task(model, list(zip(x.split(64), y.split(64), strict=True)), loss, error, 256)


def test_an_accuracy_in_place_of_an_error_is_refused_and_nothing_is_changed() -> None:
    task = make_task()
    before = [p.detach().clone() for p in task.model.parameters()]
    accuracy = dataclasses.replace(task, evaluate=lambda model: 100 - task.evaluate(model))
    with pytest.raises(ConfigError, match=r"of which less is better.*100\.00% for .*all 0.*higher_is_better=True"):
        ss.compress(accuracy, CONFIG)
    assert all(torch.equal(p, own) for p, own in zip(task.model.parameters(), before, strict=True))
    assert ss.compress(task, CONFIG, target=None).history[0].validation_error == task.evaluate(task.model)


def test_a_network_that_is_not_trained_passes() -> None:
    task = make_task(0)
    ss.compress(dataclasses.replace(task, evaluate=lambda model: 100 - task.evaluate(model)), CONFIG, target=None)


def test_the_look_changes_nothing_in_the_run() -> None:
    """Batches in an order that torch's random state decides: the same file, whether or not a batch was looked at."""
    task = make_task()
    files = []
    for _ in range(2):
        torch.manual_seed(5)
        files.append(ss.compress(task, CONFIG, target=None).to_bytes())
        torch.rand(3)
    assert files[0] == files[1]


def test_a_loss_of_another_model_is_refused() -> None:
    task, other = make_task(), make_task().model
    with pytest.raises(ModelError, match="no gradient for any shared weight"):
        ss.compress(dataclasses.replace(task, loss=lambda _, batch: loss(other, batch)), CONFIG)
    with pytest.raises(ModelError, match="no gradient for any shared weight"):
        ss.compress(dataclasses.replace(task, loss=lambda _, batch: batch[0].mean()), CONFIG)


def test_a_layer_that_dies_is_named_with_its_last_epoch() -> None:
    """The prior is so strong that every weight goes."""
    config = ss.CompressConfig().override(epochs=4, tau=1e6, tau_warmup=0.0)
    compressed = ss.compress(make_task(), config, target=None)
    dead = [text for text in compressed.messages if "all of its weights are 0" in text]
    assert [text.partition(":")[0] for text in dead] == ["0.weight", "2.weight"]
    assert all("after epoch" in text for text in dead)


class Auxiliary(nn.Module):
    """With a second head in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head, self.second = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = torch.relu(self.hidden(x))
        return (self.head(h), self.second(h)) if self.training else self.head(h)


def two_heads(model: nn.Module, batch: Batch) -> Tensor:
    first, second = model(batch[0])
    return F.cross_entropy(first, batch[1]) + F.cross_entropy(second, batch[1])


def with_penalty(model: nn.Module, batch: Batch) -> Tensor:
    x = batch[0].clone().requires_grad_()
    value = loss(model, (x, batch[1]))
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    return value + 0.1 * gradient.square().sum(1).mean()


def no_zeros(model: nn.Module, batch: Batch) -> Tensor:
    if not model(batch[0]).any():
        raise ValueError("no logits")
    return loss(model, batch)


@pytest.mark.parametrize("own", [two_heads, with_penalty, no_zeros])
def test_a_task_that_cannot_be_asked_is_trained(own: Callable[[nn.Module, Batch], Tensor]) -> None:
    task = make_task(0)
    model = Auxiliary() if own is two_heads else make_task().model
    task = dataclasses.replace(task, model=model, loss=own)
    compressed = ss.compress(task, CONFIG.override(tau=1e-5), target=None)
    assert any("unchanged: the loss or the evaluation fails" in text for text in compressed.messages) == (
        own is two_heads
    )
    assert ss.measure(task, compressed, CONFIG.override(tau=1e-5)).error_bits > 0
