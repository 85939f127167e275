"""Targets: one run each, on a user's task and on the LeNets, judged by the file that comes out."""

from __future__ import annotations

import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import softshare as ss
from softshare.errors import ConfigError
from softshare.zoo.datasets import Batches, load_mnist
from softshare.zoo.experiments import error_percent, make_task, pretrain_

CONFIG = ss.CompressConfig().override(epochs=10, tau=0.003, zero_mixing=0.9)


def no_test(model: nn.Module) -> float:
    raise AssertionError("a target must be met without the test set")


@functools.cache
def users_task() -> ss.Task:
    """A convolution with batch norm and two linear layers, trained to tell stripes in noise apart."""
    g = torch.Generator().manual_seed(0)
    images, labels = 0.8 * torch.randn(768, 1, 8, 8, generator=g), torch.arange(768) % 3
    images[labels == 1, :, 3:5, :] += 1
    images[labels == 2, :, :, 3:5] += 1
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU(), nn.Linear(32, 3)
    )
    batches = list(zip(images[:512].split(32), labels[:512].split(32), strict=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, y in batches * 5:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return ss.Task(
        model=model.eval(),
        train=batches,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        evaluate=lambda model: 100 * (model(images[512:]).argmax(1) != labels[512:]).float().mean().item(),
        n_examples=512,
        test=no_test,
    )


@functools.cache
def lenet_task(name: str) -> ss.Task:
    """One of the paper's networks on a few thousand images, trained for a moment."""
    train, validation = (split[torch.arange(n)] for split, n in zip(load_mnist(), (3000, 1000), strict=False))
    task = dataclasses.replace(
        make_task(name),
        train=Batches(train, 100),
        evaluate=lambda model: error_percent(model, validation),
        n_examples=len(train),
        test=no_test,
    )
    pretrain_(task, ss.RetrainConfig(epochs=4, lr_weights=2e-3))
    return task


def error_of(task: ss.Task, compressed: ss.Compressed, folder: Path) -> float:
    """Of the file, loaded into a copy of the model."""
    model = copy.deepcopy(task.model)
    compressed.save(folder / "model.sws")
    ss.load_into_(model, folder / "model.sws")
    with torch.no_grad():
        return float(task.evaluate(model.eval()))


def error_before(task: ss.Task) -> float:
    with torch.no_grad():
        return float(task.evaluate(copy.deepcopy(task.model).eval()))
