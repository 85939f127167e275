"""`--device` for a user's own task: its model and its batches are moved, and a failure says what to do."""

from __future__ import annotations

import copy
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import softshare as ss
from cli_runs import result_of, run, write_task, write_trained_task
from softshare.cli import own_device
from softshare.cli.own_device import moved
from softshare.config import RetrainConfig
from softshare.errors import ConfigError, TaskError
from softshare.loaders.batches import OnDevice
from softshare.train.supply import Supply

META = torch.device("meta")
CPU = torch.device("cpu")
x, y = torch.randn(32, 6, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 2


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def own_task(**changes: Any) -> ss.Task:
    fields: dict[str, Any] = {"model": network(), "train": [(x, y)], "loss": loss, "evaluate": lambda model: 1.0}
    return ss.Task(**fields | changes)


def test_a_model_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    task = own_task(evaluate=lambda model: 1 / 0)
    assert moved(task, CPU) is task
    assert moved(task, torch.device("cpu:0")) is task
    spec = write_task(tmp_path)
    assert run("compress", spec, "--device", "cpu", "--epochs", 1, "--no-limit", "--out", tmp_path / "run") == 0
    assert result_of(tmp_path / "run")["device"] == "cpu"
    assert run("evaluate", tmp_path / "run", "--task", spec, "--device", "cpu") == 0


def test_a_task_of_loaders_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batches follow the model by themselves. A device without values stands for a GPU."""
    monkeypatch.setattr(own_device, "_try", lambda *_: pytest.fail("tried"))
    task = ss.Task.from_loaders(network(), [(x, y)], [(x, y)], nn.CrossEntropyLoss())
    there = moved(task, META)
    assert there is task
    assert {p.device for p in task.model.parameters()} == {META}
    (batch,) = task.train
    assert [t.device for t in batch] == [META, META]


@pytest.fixture
def _meta_for_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_device, "copied", copy.deepcopy)  # the plain one refuses a network without values


@pytest.mark.usefixtures("_meta_for_gpu")
def test_other_tasks_are_tried_with_moved_batches() -> None:
    """The trial changes neither the model nor the random state."""
    seen: list[torch.device] = []

    def watched(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append(batch[0].device)
        torch.rand(3)
        return loss(model, batch)

    task = own_task(loss=watched)
    state = torch.get_rng_state()
    there = moved(task, META)
    assert torch.equal(torch.get_rng_state(), state)
    assert seen == [META]
    assert there.n_examples == task.n_examples
    assert [t.device for t in next(iter(there.train))] == [META, META]


@pytest.mark.usefixtures("_meta_for_gpu")
@pytest.mark.parametrize("function", ["loss", "evaluate"])
def test_a_function_that_holds_its_own_data_is_found_at_once(function: str) -> None:
    def stays(model: nn.Module, *_: Any) -> Any:
        return model(x).sum()

    with pytest.raises(TaskError, match=rf"Task.{function} failed.*not on the expected device") as caught:
        moved(own_task(**{function: stays}), META)
    (note,) = caught.value.__notes__
    assert "are on meta because of --device" in note
    assert "x.to(next(model.parameters()).device)" in note


def test_a_model_that_cannot_be_moved() -> None:
    task = own_task(model=network().to(META))
    with pytest.raises(ConfigError, match="--device cpu: the model cannot be moved there"):
        moved(task, CPU)


# Batches


class Images:
    """A batch that knows how to move."""

    def __init__(self, at: torch.device = CPU) -> None:
        self.at = at

    def to(self, device: torch.device) -> Images:
        return Images(device)


def test_batches_of_all_kinds_are_moved() -> None:
    pair = namedtuple("pair", "a b")
    batch = {"x": x, "rest": [pair(x, "name"), 3], "own": Images()}
    (found,) = OnDevice([batch], network().to(META))
    assert found["x"].device == found["rest"][0].a.device == found["own"].at == META
    assert (found["rest"][0].b, found["rest"][1]) == ("name", 3)
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    (same,) = OnDevice([packed], network())
    assert torch.equal(same.data, packed.data)


def test_a_run_that_is_resumed_gets_the_same_batches() -> None:
    """The order of a DataLoader with a generator of its own is restored, though its batches are moved."""

    def supply(seed: int) -> Supply:
        generator = torch.Generator().manual_seed(seed)
        loader = DataLoader(TensorDataset(torch.arange(32.0)), 4, shuffle=True, generator=generator)
        return Supply(OnDevice(loader, network()), RetrainConfig(epochs=2))

    first, other = supply(0), supply(1)
    batches = first.endless()
    for _ in range(11):
        next(batches)
    other.load_state_dict(first.state_dict())
    theirs = other.endless()
    for _ in range(12):  # the rest of a pass and some of the next
        assert torch.equal(next(batches)[0], next(theirs)[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_compress_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = ("--steps", 30, "--no-limit", "--device", "cuda")
    assert run("compress", write_trained_task(tmp_path), *fast, "--out", tmp_path / "a") == 0
    assert result_of(tmp_path / "a")["device"] == torch.cuda.get_device_name()
    follows = "def error(model):\n    device = next(model.parameters()).device\n"
    follows += "    return 100 * sum(int((model(x.to(device)).argmax(1) != y.to(device)).sum()) for x, y in data) / 64"
    assert run("compress", write_task(tmp_path, follows), *fast, "--out", tmp_path / "b") == 0
    capsys.readouterr()
    assert run("compress", write_task(tmp_path), *fast, "--out", tmp_path / "c") == 2
    message = capsys.readouterr().err
    assert "Task.evaluate failed" in message
    assert "because of --device" in message
    assert "Your own code" in message
