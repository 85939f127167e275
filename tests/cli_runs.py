"""The command line in tests: a user's task in a file, a small experiment, runs of them, and refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cifar_files import N, write_binary
from softshare.cli import main
from softshare.config import RetrainConfig
from softshare.zoo import cifar10, datasets, experiments

RUN_FILES = ["frames.npz", "history.csv", "model.sws", "pretrained.safetensors", "result.json", "retrained.safetensors"]

# A user's file: a small convolutional net with batch norm on a few random images.
TASK = """
import torch
from torch import nn
from torch.nn import functional as F

import softshare

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
data = [(torch.randn(16, 1, 6, 6), torch.randint(3, (16,))) for _ in range(4)]


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def error(model):
    return 100 * sum(int((model(x).argmax(1) != y).sum()) for x, y in data) / 64


def make_task(**changes):
    fields = dict(model=model, train=data, loss=loss, evaluate=error, n_examples=64)
    return softshare.Task(**fields | changes)
"""


def write_task(folder: Path, extra: str = "", name: str = "net.py") -> str:
    """Write the file above and some more lines, which may redefine `task`. Returns what the command line takes."""
    (folder / name).write_text(f"{TASK}\n\ndef task():\n    return make_task()\n\n\n{extra}\n")
    return f"{folder / name}:task"


# A user's file: a small network that has learned which of two inputs is larger.
TRAINED = """
import torch
from torch import nn

import softshare


def task():
    torch.manual_seed(0)
    x = torch.randn(768, 6)
    y = (x[:, 0] > x[:, 1]).long()
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:512]), y[:512]).backward()
        optimizer.step()
    train, held_out = list(zip(x[:512].split(64), y[:512].split(64))), [(x[512:], y[512:])]
    return softshare.Task.from_loaders(model, train, held_out, nn.CrossEntropyLoss())
"""


def write_trained_task(folder: Path) -> str:
    (folder / "trained.py").write_text(TRAINED)
    return f"{folder / 'trained.py'}:task"


# The first one, judged by its accuracy, with its loss beside it.
ACCURATE = """
def measures(model):
    return {"accuracy": 100 - error(model), "loss": float(torch.stack([loss(model, b) for b in data]).mean())}


def task():
    return make_task(evaluate=measures, metric=softshare.Metric("accuracy", "%", higher_is_better=True))
"""


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


def finished_run(folder: Path) -> Path:
    """A run of the user's task, in a folder below this one."""
    options = ("--epochs", 3, "--tau", 0.5, "--seed", 7, "--no-limit")
    assert run("compress", write_task(folder), *options, "--out", folder / "run") == 0
    return folder / "run"


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below the folder, hidden ones too, by its path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def copied(run: Path, folder: Path) -> Path:
    """A copy of a run, to be changed."""
    (folder / "run").mkdir()
    for name, data in contents(run).items():
        (folder / "run" / name).write_bytes(data)
    return folder / "run"


def result_of(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return values


def assert_same_state(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name


class Refusals:
    """Runs the command line and expects exit status 2, one message, no traceback, and no file touched."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, *args: object, naming: str | list[str]) -> str:
        before = self.everything()
        self.capsys.readouterr()
        assert run(*args) == 2
        message = self.capsys.readouterr().err
        for word in [naming] if isinstance(naming, str) else naming:
            assert word in message
        assert "Traceback" not in message
        assert self.everything() == before
        return message

    def everything(self) -> tuple[list[Path], dict[str, bytes]]:
        return sorted(self.folder.rglob("*")), contents(self.folder)


class TinyNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 5, stride=4), nn.Flatten(), nn.Linear(196, 10))


def tiny_experiment(folder: Path, patch: pytest.MonkeyPatch) -> str:
    """An experiment of the package, with a small network, small data in the folder, and one epoch of pre-training."""
    patch.setattr(cifar10, "N_RECORDS", N)
    patch.setattr(datasets, "N_VALIDATION", 10)
    pretrain = RetrainConfig(epochs=1, lr_weights=1e-2)
    tiny = dataclasses.replace(experiments.EXPERIMENTS["wrn-16-4"], make_model=TinyNet, pretrain=pretrain)
    patch.setitem(experiments.EXPERIMENTS, "wrn-16-4", tiny)
    patch.setenv("SOFTSHARE_DATA", str(folder / "data"))
    write_binary(folder / "data" / "cifar-10-batches-bin")
    return "wrn-16-4"
