"""Several trainings in a row as one history. Hooks see them as one training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any

from softshare._util.user_code import at
from softshare.config import RetrainConfig
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.hooks import EpochRecord, Hook, StopPhaseError
from softshare.train.resume import Checkpoint
from softshare.train.retrain import retrain_
from softshare.train.step import Latent


class Phases(Hook):
    """Hooks see the phases as one training of `epochs`; without that number, each phase is a training of its own.

    Epochs are numbered across phases. Each phase starts with a record of its own, at the epoch where the phase
    before it ended: it shows the network as pruning or sharing has left it.
    """

    def __init__(
        self,
        task: Task,
        epochs: int | None,
        hooks: Sequence[Hook],
        unit: float = 1.0,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.task, self.epochs, self.hooks = task, epochs, hooks
        self.unit = unit  # of the task's loss; the history has it as the user knows it
        self.history: tuple[EpochRecord, ...] = ()
        self._done = 0  # epochs of the phases before
        self._started = False
        self._runs = 0
        self._checkpoint = checkpoint
        if checkpoint:
            checkpoint.follow("phases", self)
            for k, hook in enumerate(hooks):
                checkpoint.follow(f"hook {k}", hook)

    def __enter__(self) -> Phases:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started:
            for hook in self.hooks:
                hook.on_end()

    def run(
        self,
        config: RetrainConfig,
        latent: Latent | None = None,
        prior: MixturePrior | None = None,
    ) -> None:
        """If a hook raises `StopPhaseError`, the phase ends with the record that it was raised for."""
        self._runs += 1
        with self._checkpoint.guarding() if self._checkpoint else nullcontext():
            with at(f"run {self._runs}") if self._runs > 1 else nullcontext():
                retrain_(self.task, prior, config, [self], latent, self._checkpoint)
            if self._checkpoint:
                self._checkpoint.tick(at_end=True)  # what comes now may fail, and a signal may have come
        self._done = self.history[-1].epoch

    def state_dict(self) -> dict[str, Any]:
        return {"history": [vars(record) for record in self.history], "done": self._done, "runs": self._runs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = tuple(EpochRecord(**record) for record in state["history"])
        self._done, self._runs = state["done"], state["runs"] - 1  # it is begun again

    def on_prior(self, prior: MixturePrior | None) -> None:
        for hook in self.hooks:
            hook.on_prior(prior)

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        if not self._started or self.epochs is None:
            self._started = True
            for hook in self.hooks:
                hook.on_start(self.epochs or epochs, steps_per_epoch)

    def on_step(self, epoch: int, step: int) -> None:
        for hook in self.hooks:
            hook.on_step(self._done + epoch, step)

    def on_epoch(self, record: EpochRecord) -> None:
        record = dataclasses.replace(record, epoch=self._done + record.epoch, task_loss=self.unit * record.task_loss)
        self.history += (record,)
        stop: StopPhaseError | None = None
        for hook in self.hooks:
            try:
                hook.on_epoch(record)
            except StopPhaseError as error:
                stop = error  # the others see this record too
        if stop:
            raise stop

    def on_return(self, epoch: int) -> None:
        for hook in self.hooks:
            hook.on_return(epoch)
