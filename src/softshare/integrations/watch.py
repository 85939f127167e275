"""What a callback sees of the quality of a network: its losses before the prior has an effect, and at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from softshare.distributed.group import ALONE, Group

EARLY, LATE = 0.05, 0.95  # shares of the run: losses until the one and from the other are averaged
CLEARLY = 0.15  # of a loss, by which it is higher than before, if its standard error is not known
BEYOND = 2.0  # standard errors that chance explains
FEWEST = 4  # batches that say how much a mean over them varies


class Losses:
    """Losses of one kind over a run. They stay on their device until the end, so that no GPU has to wait.

    Each process has its own, until they `settle_` on the mean of all. The losses of the single batches of an
    evaluation, if they are seen, say how exactly its mean is known.
    """

    def __init__(self, kind: str, group: Group = ALONE) -> None:
        self.kind, self._group = kind, group
        self._before, self._after = _Mean(), _Mean()
        self._batches, self._last_batches = _Mean(), _Mean()  # of the evaluation that is under way, and the last one
        self._is_late = False

    def note_batch_(self, loss: Tensor | float) -> None:
        """Take in the loss of a batch of an evaluation, whose mean is noted at its end."""
        self._batches.add_(torch.as_tensor(loss).detach().float().mean())

    def note_(self, loss: Tensor | float, progress: float, quantized: bool) -> None:
        """Take in a loss. What comes before the run has a progress of 0."""
        value = torch.as_tensor(loss).detach().float().mean()
        if self._batches.n:
            self._batches, self._last_batches = _Mean(), self._batches
        if not quantized and (progress < EARLY or not self._before.n):
            self._before.add_(value)
            return
        if not self._is_late:
            self._after = _Mean()
        self._after.add_(value)
        self._is_late = progress >= LATE

    @property
    def are_known(self) -> bool:
        return bool(self._before.n and self._after.n)

    @property
    def before(self) -> float:
        return self._before.value()[0]

    @property
    def after(self) -> float:
        return self._after.value()[0]

    @property
    def allowed(self) -> float:
        """How much the loss may rise: what chance explains. If nothing else is known, that is a share of it."""
        chance = BEYOND * math.hypot(self._before.value()[1], self._after.value()[1])
        if self.is_guessed:
            return CLEARLY * abs(self.before) + chance
        return math.hypot(chance, BEYOND * self._last_batches.value()[1] / math.sqrt(self._group.size))

    @property
    def is_guessed(self) -> bool:
        """Whether too few batches were seen to know how exactly the mean of an evaluation is known."""
        return self._last_batches.n < FEWEST

    @property
    def rose(self) -> bool:
        """Whether the loss is clearly higher at the end."""
        return self.are_known and not self.after <= self.before + self.allowed

    def __str__(self) -> str:
        return f"{self.kind} loss {self.before:.4g} at the start, {self.after:.4g} at the end"

    def settle_(self) -> None:
        """Take the mean over all processes, which must all call this."""
        for mean in (self._before, self._after, self._last_batches):
            if mean.sums is not None:
                self._group.sum_(mean.sums).div_(self._group.size)

    def state_dict(self) -> dict[str, Any]:
        self.settle_()
        means = {"before": self._before, "after": self._after, "batches": self._last_batches}
        return {**{name: vars(mean) for name, mean in means.items()}, "is_late": self._is_late}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before, self._after = _Mean(**state["before"]), _Mean(**state["after"])
        self._last_batches = _Mean(**state["batches"])
        self._is_late = state["is_late"]


class _Mean:
    def __init__(self, n: int = 0, sums: Tensor | None = None) -> None:
        self.n, self.sums = n, sums  # of the values and of their squares

    def add_(self, value: Tensor) -> None:
        row = torch.stack([value, value * value])
        self.n, self.sums = self.n + 1, row if self.sums is None else self.sums.to(row.device) + row

    def value(self) -> tuple[float, float]:
        """The mean and its standard error."""
        if self.sums is None:
            return math.nan, math.nan
        mean, square = (float(s) / self.n for s in self.sums.double())
        return mean, math.sqrt(max(0.0, square - mean * mean) / self.n)
