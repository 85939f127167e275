"""The loss of a network on labelled batches that do not calibrate it, with its own weights and with others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from softshare._util.user_code import at
from softshare._util.work_stages import QUIET, Stages
from softshare.calibrate.batches import evaluating
from softshare.errors import ConfigError
from softshare.loaders.batches import Reading

HELD = 4  # of so many batches, the last one measures the loss and does not calibrate


def parted(batches: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The batches to calibrate on, and those to measure the loss on."""
    if len(batches) < 2:
        raise ConfigError(
            f"calibrate: expected at least two batches with a loss, because some only measure it, got {len(batches)}"
        )
    k = min(HELD, len(batches))
    held = list(batches[k - 1 :: k])
    return [batch for n, batch in enumerate(batches) if n % k != k - 1], held


class Judge:
    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Any],
        loss: Callable[[Any, Any], Tensor] | None,
        stages: Stages = QUIET,
    ) -> None:
        self.model, self.batches, self.stages = model, batches, stages
        self.reading = Reading(loss)
        self.before = self.measured()

    def measured(self, weights: Mapping[str, Tensor] | None = None) -> float:
        """The mean loss, over the terms of all batches."""
        total, n_terms = 0.0, 0
        self.stages.start("measure the loss", "batches", [1] * len(self.batches))
        with evaluating(self.model):
            for n, batch in enumerate(self.batches, start=1):
                with at(f"batch {n} of those that measure the loss"):
                    seen = self.reading.run(self.model, batch, weights)
                    terms = self.reading.n_terms(seen)
                    total += float(self.reading.loss(seen)) * terms
                    n_terms += terms
                self.stages.done()
        mean = total / max(1, n_terms)
        if weights is None and not math.isfinite(mean):
            raise ConfigError(f"loss: expected a finite number for the network itself, got {mean}")
        return mean
