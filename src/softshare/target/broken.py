"""Whether a network is broken: it answers all inputs alike, or has lost most of what it had learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from softshare._util.words import listed
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.first_look import FirstLook
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.spared import Say

BROKEN = 0.5  # share of what the network gains over zeros: with less than the rest of it, a network is broken
BROKEN_LOOKS = 4  # in a row, after which a run with a broken network ends
LEARNED = 2.0  # times the noise, by which a trained network is better than zeros
ALIKE = 1e-5  # of the largest output, by which rounding may set equal answers apart


def is_broken(task: Task, first: FirstLook, model: nn.Module, after: float) -> bool:
    """Whether this network, whose metric is `after`, is broken. One that is as good as before is not."""
    if not _is_harmed(task, first, after):
        return False
    return first.lost(task, after) > BROKEN or answers_alike(task, model)


def _is_harmed(task: Task, first: FirstLook, value: float) -> bool:
    """Whether a network that had learned something is worse than before, by more than the noise."""
    loss, before, noise = task.metric.loss, first.before, first.noise
    learned = first.zeros is None or loss(before, first.zeros) > LEARNED * noise
    return learned and loss(task.metric.worse(before, noise), value) > 0


class Matrices:
    """Which matrices had weights at the start of a run. A bias may lose all of them."""

    def __init__(self) -> None:
        self.alive: list[str] = []

    def begin_(self, prior: MixturePrior, density: Mapping[str, float]) -> None:
        self.alive = [s.name for s in prior.view.shared if s.tensor.dim() > 1 and density.get(s.name)]

    def dead(self, record: EpochRecord) -> list[str]:
        """Those that have no weight left."""
        return [name for name in self.alive if not record.density.get(name, 1.0)]


class Alarm(Hook):
    """Says once, at the look where it happens, that a run breaks its network. For a run that cannot back off."""

    def __init__(self, task: Task, first: FirstLook, counted: str, say: Say) -> None:
        self.task, self.first, self.counted, self.say = task, first, counted, say
        self._prior: MixturePrior | None = None
        self._matrices = Matrices()
        self._bad = 0  # looks in a row at a network that lost most: right after quantizing, it may come back
        self._is_said = False

    def on_prior(self, prior: MixturePrior | None) -> None:
        self._prior = prior

    def on_epoch(self, record: EpochRecord) -> None:
        metric, value = self.task.metric, record.validation_error
        if record.epoch == 0 and self._prior:
            self._matrices.begin_(self._prior, record.density)
        if self._is_said or not record.hard or not _is_harmed(self.task, self.first, value):
            return
        self._bad = self._bad + 1 if self.first.lost(self.task, value) > BROKEN else 0
        dead = self._matrices.dead(record)
        if not dead and self._bad < BROKEN_LOOKS:
            return
        self._is_said = True
        if self.task.group.is_first:
            what = f"{listed(dead)} lost all weights" if dead else "the network lost most of what it had learned"
            figures = f"{metric.name} {metric.text(self.first.before)} before, {metric.text(value)} now"
            self.say(f"{self.counted} {record.epoch}: {what} ({figures}). A target, also the default one, avoids this")

    def state_dict(self) -> dict[str, Any]:
        return {"alive": self._matrices.alive, "bad": self._bad, "is_said": self._is_said}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._matrices.alive, self._bad, self._is_said = state["alive"], state["bad"], state["is_said"]


def answers_alike(task: Task, model: nn.Module) -> bool:
    """Whether the network gives the same output for all inputs of a batch, in each batch of `evaluate`.

    False if that cannot be seen: `evaluate` calls another method than `forward`, or gives it one example at a time.
    """
    alike: list[bool] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        rows = (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) > 1)
        alike.extend(_same(leaf.detach().float()) for leaf in rows if leaf.is_floating_point() and leaf.numel())

    handle = model.register_forward_hook(note)
    try:
        task.judge(model)
    finally:
        handle.remove()
    return bool(alike) and all(alike)


def _same(rows: Tensor) -> bool:
    return bool((rows - rows[:1]).abs().max() <= ALIKE * rows.abs().max())
