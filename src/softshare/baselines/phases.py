"""Several trainings after each other as one history, which the hooks see as one."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from softshare.baselines.layers import Layer
from softshare.config import RetrainConfig
from softshare.errors import ConfigError
from softshare.retrain import EpochRecord, Hook, retrain_
from softshare.step import Latent
from softshare.task import Task


def copy_of(task: Task) -> Task:
    if not isinstance(task, Task):
        raise ConfigError(f"expected a softshare.Task, got {type(task).__name__}")
    return dataclasses.replace(task, model=copy.deepcopy(task.model))


def with_l2(task: Task, layers: Sequence[Layer], l2: float) -> Task:
    """The task with l2 / 2 times the sum of squares of the layers' weights added to its loss."""
    if l2 == 0:
        return task

    def loss(model: nn.Module, batch: Any) -> Tensor:
        squares = torch.stack([t.square().sum() for layer in layers for t in layer.tensors])
        return task.loss(model, batch) + 0.5 * l2 * squares.sum()

    return dataclasses.replace(task, loss=loss)


class Phases(Hook):
    """Epochs are numbered through. A phase begins with a record of its own, at the epoch where the one before it ended:
    the network as pruning or sharing has left it.
    """

    def __init__(self, task: Task, epochs: int, hooks: Sequence[Hook]) -> None:
        self.task, self.epochs, self.hooks = task, epochs, hooks
        self.history: tuple[EpochRecord, ...] = ()
        self._done = 0  # epochs of the phases before

    def __enter__(self) -> Phases:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self.hooks:
            hook.on_end()

    def run(self, config: RetrainConfig, latent: Latent) -> None:
        retrain_(self.task, None, config, [self], latent)
        self._done += config.epochs

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        if not self.history:
            for hook in self.hooks:
                hook.on_start(self.epochs, steps_per_epoch)

    def on_step(self, epoch: int, step: int) -> None:
        for hook in self.hooks:
            hook.on_step(self._done + epoch, step)

    def on_epoch(self, record: EpochRecord) -> None:
        record = dataclasses.replace(record, epoch=self._done + record.epoch)
        self.history += (record,)
        for hook in self.hooks:
            hook.on_epoch(record)
