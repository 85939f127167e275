"""Tasks that would ruin a network in silence are refused before it is trained."""

from __future__ import annotations

import dataclasses

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
    with pytest.raises(ConfigError, match=r"must return an error, where less is better.*return 100 minus that"):
        ss.compress(accuracy, CONFIG)
    assert all(torch.equal(p, own) for p, own in zip(task.model.parameters(), before, strict=True))
    assert ss.compress(task, CONFIG).history[0].validation_error == task.evaluate(task.model)


def test_a_network_that_is_not_trained_passes() -> None:
    task = make_task(0)
    ss.compress(dataclasses.replace(task, evaluate=lambda model: 100 - task.evaluate(model)), CONFIG)


def test_the_look_changes_nothing_in_the_run() -> None:
    """Batches in an order that torch's random state decides: the same file, whether or not a batch was looked at."""
    task = make_task()
    files = []
    for _ in range(2):
        torch.manual_seed(5)
        files.append(ss.compress(task, CONFIG).to_bytes())
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
    compressed = ss.compress(make_task(), ss.CompressConfig().override(epochs=4, tau=1e4, tau_warmup=0.0))
    dead = [text for text in compressed.messages if "all of its weights are 0" in text]
    assert [text.partition(":")[0] for text in dead] == ["0.weight", "2.weight"]
    assert all("after epoch" in text for text in dead)
