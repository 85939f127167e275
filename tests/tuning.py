"""A small task for the tests of tuning, as a user's file: it trains in a moment and can be told what to do.

In the environment, MEETING is a folder in which two processes wait for each other before they begin, and HANG a file
that is written, after two trials have left theirs in TRIALS, by a training that then never ends.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare

Batch = tuple[Tensor, Tensor]


def make_task(test: Callable[[nn.Module], float] | None = None) -> softshare.Task:
    """Which of the first three of 36 numbers is the largest; the network is trained."""
    _meet()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3))
        inputs = torch.randn(256, 36)
    labels = inputs[:, :3].argmax(1)
    train = [(inputs[i : i + 32], labels[i : i + 32]) for i in range(0, 128, 32)]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for batch in train * 30:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    return softshare.Task(
        model=model,
        train=train,
        loss=loss,
        evaluate=functools.partial(error, inputs[128:192], labels[128:192]),
        n_examples=128,
        test=test or functools.partial(error, inputs[192:], labels[192:]),
    )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    hang = os.environ.get("HANG")
    if hang and len(list(Path(os.environ["TRIALS"]).glob("*/result.json"))) >= 2:
        Path(hang).touch()
        time.sleep(600)
    return F.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def error(inputs: Tensor, labels: Tensor, model: nn.Module) -> float:
    return 100 * float((model(inputs).argmax(1) != labels).float().mean())


def _meet() -> None:
    if meeting := os.environ.get("MEETING"):
        (Path(meeting) / str(os.getpid())).touch()
        while len(list(Path(meeting).iterdir())) < 2:
            time.sleep(0.05)
