"""A look at the task before it is trained: what the network is worth, in which unit, and how exactly that is known.

What would ruin a network in silence is refused here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from softshare._util.user_code import at, batches, length_of
from softshare.errors import ConfigError
from softshare.network.groups import Group, find_groups
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.noise import examples_seen, noise_is_guessed, noise_of
from softshare.train.retrain import seeded

CLEARLY = 0.3  # of the loss of zeros, by which that of a trained network is lower
BATCHES = 8  # that losses are measured on
FAR_OFF = 2.0  # times
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
    groups: tuple[Group, ...] = ()  # of units, if they are needed
    alone: tuple[str, ...] = ()  # what has no units, and why
    call: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None  # of the network, if its units are needed
    guessed: bool = False  # whether the noise is a guess
    doubts: tuple[str, ...] = ()  # about what the task says of itself

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


def look(task: Task, prior: MixturePrior, seed: int, needs_groups: bool = False) -> FirstLook:
    """Judge the network and zeros. Raise if the task prefers zeros that have a clearly higher loss, or judges another
    network than the one that it is given.

    A network that is not trained yet passes: its loss is not clearly below that of zeros.
    """
    with seeded(task.model, seed):
        with at("the look before training"):
            before = task.judge(task.model)
            first = FirstLook(before, noise_of(task, task.model, before), guessed=noise_is_guessed(task, before))
        was_training = task.model.training
        task.model.eval()
        try:
            some = list(islice(batches(task.train), BATCHES))
            first = dataclasses.replace(first, doubts=tuple(_count_doubts(task, some)))
            with first_call(task.model) as call:
                loss = _mean_loss(task, some)
            with _zeroed(prior.view.locals):
                of_zeros, zeros = _mean_loss(task, some), task.judge(task.model)
        except Exception:  # the user's own code: the loss may need training mode, and zeros may give no number
            return first
        finally:
            task.model.train(was_training)
        with at("the look before training"):
            is_blind = zeros == before and loss < of_zeros and not examples_seen(task, task.model)
    metric = task.metric
    if is_blind:
        raise ConfigError(
            f"Task.evaluate: expected a measure of the network that it is given. It calls neither the network nor one "
            f"whose weights are all 0, and gives {metric.text(before)} for both, but their losses are {loss:.4g} and "
            f"{of_zeros:.4g}. Use the argument of evaluate, not another model"
        )
    if metric.loss(before, zeros) < 0 and loss < of_zeros - CLEARLY * abs(of_zeros):
        better, other = ("more", False) if metric.higher_is_better else ("less", True)
        raise ConfigError(
            f"Task.evaluate: expected a measure of which {better} is better. It gives {metric.text(before)} for the "
            f"network and {metric.text(zeros)} for one whose weights are all 0, but their losses are {loss:.4g} and "
            f"{of_zeros:.4g}. If the measure is right, name it: Task(metric=Metric(..., higher_is_better={other}))"
        )
    first = dataclasses.replace(first, zeros=zeros, loss=loss, loss_of_zeros=of_zeros)
    if not (needs_groups and call):
        return first
    args, kwargs = call
    groups, alone = find_groups(task.model, args, kwargs)
    return dataclasses.replace(first, groups=groups, alone=alone, call=(args, kwargs))


def _count_doubts(task: Task, some: Sequence[Any]) -> Iterator[str]:
    """If the number of examples is far from what the first batches let expect.

    An example has at least one term, but the batches may hold other tensors than examples; so only what is out by
    `FAR_OFF` counts. It has at most as many terms as numbers in its largest tensor.
    """
    n_batches = length_of(task.train)
    tensors = [[t for t in tree_leaves(batch) if isinstance(t, Tensor) and t.dim() and len(t)] for batch in some]
    if not n_batches or not some or not all(tensors):
        return
    passes = task.group.size * n_batches / len(some)
    least = passes * sum(min(map(len, held)) for held in tensors)
    most = passes * sum(max(t.numel() for t in held) for held in tensors)
    if least / FAR_OFF <= task.n_examples <= FAR_OFF * most:
        return
    bounds = f"{least:,.0f}" if least == most else f"{least:,.0f} to {most:,.0f}"
    yield (
        f"Task.n_examples: expected about {bounds}, by the size of the batches, got {task.n_examples:,}. It scales the "
        "worth of each weight. Leave it out to have the examples counted"
    )


def in_nats(task: Task, unit: float) -> Task:
    """The same task with its loss divided by the unit."""
    loss = task.loss

    def scaled(model: nn.Module, batch: Any) -> Tensor:
        value = loss(model, batch)
        return value / unit if isinstance(value, Tensor) else value  # if it is no tensor, training says so

    return dataclasses.replace(task, loss=scaled)


@contextmanager
def first_call(model: nn.Module) -> Iterator[list[Any]]:
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
    """Over the batches of all processes."""
    return task.group.mean(sum(float(task.loss(task.model, batch).detach()) for batch in batches) / len(batches))


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
