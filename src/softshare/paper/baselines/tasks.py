"""The task of a baseline: a copy of the user's task, with the weight decay of both papers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softshare.errors import ConfigError
from softshare.network.wrapped import copied
from softshare.paper.baselines.layers import Layer
from softshare.task import Task


def copy_of(task: Task) -> Task:
    if not isinstance(task, Task):
        raise ConfigError(f"expected a softshare.Task, got {type(task).__name__}")
    return dataclasses.replace(task, model=copied(task.model))


def with_l2(task: Task, layers: Sequence[Layer], l2: float) -> Task:
    """The task with l2 / 2 times the sum of squares of the layers' weights added to its loss."""
    if l2 == 0:
        return task

    def loss(model: nn.Module, batch: Any) -> Tensor:
        squares = torch.stack([t.square().sum() for layer in layers for t in layer.tensors])
        return task.loss(model, batch) + 0.5 * l2 * squares.sum()

    return dataclasses.replace(task, loss=loss)
