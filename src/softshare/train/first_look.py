"""A look at the task before it is trained: what the network is worth, in which unit, and how exactly that is known.

What would ruin a network in silence is refused here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor, nn

from softshare._util.user_code import at, batches
from softshare.errors import ConfigError
from softshare.network.groups import Group, find_groups
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.noise import noise_of
from softshare.train.retrain import seeded

CLEARLY = 0.3  # of the loss of zeros, by which that of a trained network is lower
BATCHES = 8  # that losses are measured on
# What tau was chosen for: MNIST, where the network has log 10 nats less than zeros, and the noise of the evaluation is
# a five-hundredth of what it gains over zeros.
REFERENCE_GAIN, REFERENCE_NOISE = math.log(10), 0.002


@dataclass(frozen=True)
class FirstLook:
    """The task at the start. Zeros are the network with all shared weights 0; None if the task cannot judge them."""

    before: float  # the metric
    noise: float  # its standard error
    zeros: float | None = None  # the metric of zeros
    loss: float = math.nan  # mean over a few batches
    loss_of_zeros: float = math.nan
    groups: tuple[Group, ...] = ()  # of units, if the prior needs them
    alone: tuple[str, ...] = ()  # what has no units, and why

    def lost(self, task: Task, value: float) -> float:
        """How much of what the network gains over zeros is lost at this value of the metric, as a share."""
        gain = task.metric.loss(self.before, self.zeros) if self.zeros is not None else 0.0
        return task.metric.loss(self.before, value) / gain if gain > 0 else 0.0

    def unit(self, task: Task, allowed: float) -> float:
        """The loss that counts as one nat if the metric may get worse by `allowed`.

        The prior is in nats, but a loss may be a squared error in any unit, or a likelihood times a constant. So a loss
        is measured by what it does: its unit is proportional to the loss between the network and zeros, and to the
        share of that which may be given up. The factor makes it a nat on MNIST, and it is never more than the
        classification of ten classes would have.
        """
        gain = self.loss_of_zeros - self.loss
        if not 0 < gain < math.inf:  # the network is not trained, or cannot be asked
            known = [abs(v) for v in (self.loss, self.loss_of_zeros) if math.isfinite(v) and v]
            return max(known, default=REFERENCE_GAIN) / REFERENCE_GAIN
        share = self.lost(task, task.metric.worse(self.before, allowed)) / REFERENCE_NOISE
        return gain / REFERENCE_GAIN * (min(1.0, share) if share > 0 else 1.0)


def look(task: Task, prior: MixturePrior, seed: int) -> FirstLook:
    """Judge the network and zeros. Raise if the task prefers zeros that have a clearly higher loss.

    A network that is not trained yet passes: its loss is not clearly below that of zeros.
    """
    with seeded(task.model, seed):
        with at("the look before training"):
            before = task.judge(task.model)
            first = FirstLook(before, noise_of(task, task.model, before))
        was_training = task.model.training
        task.model.eval()
        try:
            some = list(islice(batches(task.train), BATCHES))
            with _first_call(task.model) as call:
                loss = _mean_loss(task, some)
            with _zeroed(prior.view.tensors):
                of_zeros, zeros = _mean_loss(task, some), task.judge(task.model)
        except Exception:  # the user's own code: the loss may need training mode, and zeros may give no number
            return first
        finally:
            task.model.train(was_training)
    metric = task.metric
    if metric.loss(before, zeros) < 0 and loss < of_zeros - CLEARLY * abs(of_zeros):
        better, other = ("more", False) if metric.higher_is_better else ("less", True)
        raise ConfigError(
            f"Task.evaluate: expected a measure of which {better} is better. It gives {metric.text(before)} for the "
            f"network and {metric.text(zeros)} for one whose weights are all 0, but their losses are {loss:.4g} and "
            f"{of_zeros:.4g}. If the measure is right, name it: Task(metric=Metric(..., higher_is_better={other}))"
        )
    groups, alone = find_groups(task.model, *call) if prior.config.units and call else ((), ())
    return dataclasses.replace(first, zeros=zeros, loss=loss, loss_of_zeros=of_zeros, groups=groups, alone=alone)


def in_nats(task: Task, unit: float) -> Task:
    """The same task with its loss divided by the unit."""
    loss = task.loss

    def scaled(model: nn.Module, batch: Any) -> Tensor:
        value = loss(model, batch)
        return value / unit if isinstance(value, Tensor) else value  # if it is no tensor, training says so

    return dataclasses.replace(task, loss=scaled)


@contextmanager
def _first_call(model: nn.Module) -> Iterator[list[Any]]:
    """Yields a list that gets the arguments and the named arguments of the first call of the model."""
    call: list[Any] = []

    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        if not call:
            call.extend((args, kwargs))

    hook = model.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield call
    finally:
        hook.remove()


def _mean_loss(task: Task, batches: Sequence[Any]) -> float:
    return sum(float(task.loss(task.model, batch).detach()) for batch in batches) / len(batches)


@contextmanager
def _zeroed(tensors: Sequence[Tensor]) -> Iterator[None]:
    kept = [t.detach().clone() for t in tensors]
    try:
        for t in tensors:
            t.data.zero_()
        yield
    finally:
        for t, own in zip(tensors, kept, strict=True):
            t.data.copy_(own)
