"""What a callback sees of the quality of a network: its losses before the prior has an effect, and at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

EARLY, LATE = 0.05, 0.95  # shares of the run: losses until the one and from the other are averaged
CLEARLY = 0.15  # of a loss, by which it is higher than before


class Losses:
    """Losses of one kind over a run. They stay on their device until the end, so that no GPU has to wait."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._before, self._after = _Mean(), _Mean()
        self._is_late = False

    def note_(self, loss: Tensor | float, progress: float, quantized: bool) -> None:
        """Take in a loss. What comes before the run has a progress of 0."""
        value = torch.as_tensor(loss).detach().float().mean()
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
        """How much the loss may rise: what chance explains, and a small share."""
        return CLEARLY * abs(self.before) + 2 * math.hypot(self._before.value()[1], self._after.value()[1])

    @property
    def rose(self) -> bool:
        """Whether the loss is clearly higher at the end."""
        return self.are_known and not self.after <= self.before + self.allowed

    def __str__(self) -> str:
        return f"{self.kind} loss {self.before:.4g} at the start, {self.after:.4g} at the end"

    def state_dict(self) -> dict[str, Any]:
        return {"before": vars(self._before), "after": vars(self._after), "is_late": self._is_late}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before, self._after = _Mean(**state["before"]), _Mean(**state["after"])
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
