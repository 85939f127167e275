"""Small runs for the tests of the report."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from softshare.cli import main
from softshare.task import Task

# A user's file: a convolution, a layer whose inputs are a square, a head, and a name that HTML must escape.
TASK = """
from report_runs import make_task

def task():
    return make_task()
"""

LIGHT = ("--tau", 0.01, "--zero-mixing", 0.6)  # leaves weights in a network that has hardly learnt anything


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(64, 16)
        self.add_module("<b>head", nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.hidden(F.relu(self.norm(self.conv(x))).flatten(1)))
        out: torch.Tensor = self.get_submodule("<b>head")(hidden)
        return out


def make_task() -> Task:
    torch.manual_seed(0)
    images = torch.randn(256, 1, 6, 6)
    labels = (images[:, 0].flatten(1)[:, :3]).argmax(1)
    batches = list(zip(images.split(32), labels.split(32), strict=True))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def error(model: nn.Module) -> float:
        return float(100 * (model(images).argmax(1) != labels).float().mean())

    return Task(
        model=Net(), train=batches, loss=loss, evaluate=error, n_examples=256, name="<i>small", dataset="made up"
    )


def compress(folder: Path, *options: object) -> Path:
    """Make a finished run in folder/run."""
    (folder / "net.py").write_text(TASK)
    limit = () if "--max-bytes" in options else ("--no-limit",)
    task = f"{folder / 'net.py'}:task"
    arguments = ["compress", task, "--out", folder / "run", "--epochs", 4, *limit, *LIGHT, *options]
    assert main([str(a) for a in arguments]) == 0
    return folder / "run"
