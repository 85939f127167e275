"""Quantize with batches: calibrate, refine if that is wanted, and measure the loss if there is one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from softshare.calibrate.judged import Judge, parted
from softshare.config import Rule
from softshare.datafree.by_loss import MOST_TRIES, by_loss
from softshare.datafree.calibrated import calibrated
from softshare.datafree.fitted import FittedWeights
from softshare.datafree.refined import refined
from softshare.datafree.source import Source
from softshare.errors import ConfigError


@dataclass(frozen=True)
class Wanted:
    """One of the limits, and what else is to be done."""

    bits: float | None = None
    loss_increase: float | None = None
    loss: Callable[[Any, Any], Tensor] | None = None
    refine: int = 0


def with_batches(
    source: Source, model: nn.Module, batches: Iterable[Any], wanted: Wanted, rules: tuple[Rule, ...]
) -> FittedWeights:
    seen, judge = list(batches), None
    if not seen:
        raise ConfigError("calibrate: expected at least one batch, got none")
    if wanted.loss is not None or wanted.loss_increase is not None:
        seen, held = parted(seen)
        judge = Judge(model, held, wanted.loss, source.stages)

    tries = itertools.count(1)

    def fit(bits: float) -> FittedWeights:
        if wanted.loss_increase is not None:
            source.stages.title = f"try {next(tries)} of at most {MOST_TRIES}: "
        fitted = calibrated(source, model, seen, bits, rules, refinable=wanted.refine > 0)
        if wanted.refine:
            fitted = refined(fitted, source, model, seen, wanted.refine, rules, int(bits * source.n_weights / 8))
        if judge is None:
            return fitted
        after = judge.measured(fitted.quantized.state_dict())
        return dataclasses.replace(fitted, loss=(judge.before, after))

    if wanted.loss_increase is None:
        assert wanted.bits is not None
        return fit(wanted.bits)
    return by_loss(fit, wanted.loss_increase)
