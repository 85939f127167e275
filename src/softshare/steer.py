"""Steering: while a network is retrained, tau, the zero mixing and the zeroing are led to where a target will be met.

For `MaxBytes` the file is measured after each hard epoch and held to a path that ends at the budget well before the run
does: what is too much is zeroed, cheapest weights first. For `MaxError` the price at which weights are zeroed rises so
long as the validation error leaves room, and falls where it does not. Where the network should be larger than it is,
tau falls and the zero component gives weights away.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softshare.config import RetrainConfig
from softshare.prior import MixturePrior
from softshare.rate import Zeroing, zero_cheapest_
from softshare.retrain import EpochRecord, Hook
from softshare.target import MaxBytes, MaxError

HOLD_FROM = 0.6  # share of the hard phase after which the network is to settle: its size is held, it does not grow
SPARE = 1.01  # times the budget while training goes on: what is over is cut from the finished network, exactly
CAUTION = 0.85  # of the bits to be saved, by an estimate that is too low where much is zeroed at once
MOST_GROWTH, MOST_CUT = 1.1, 0.25  # of the weights, and of the bytes, after an epoch: it has to make up for them
PRICE_PULL, SIZE_PULL = 8.0, 3.0  # on the logarithms, over a whole hard phase in which all of the room is left, or none
SLACK = 0.3  # of the allowed error, more than that at the start of the hard phase: it falls as the learning rates do
SAFE = 0.2  # of the allowed increase, kept while training goes on: errors scatter, and what is left over can be trimmed
ANEW, ANEW_AFTER = 0.1, 3  # change of the size, and hard epochs, after which the simplified network is measured again


class Steering(Zeroing, Hook):
    """Of one run. `size(exact)` is that of the file as it would be now, of the simplified network where it is exact."""

    def __init__(
        self,
        target: MaxBytes | MaxError,
        config: RetrainConfig,
        model: nn.Module,
        prior: MixturePrior,
        size: Callable[[bool], int],
    ) -> None:
        super().__init__(config.zeroing)
        self.target, self.config, self.model, self.prior, self.size = target, config, model, prior, size
        self.curvatures: Sequence[Tensor] = ()  # as they were last
        self._start = 0.0  # bytes at the first hard epoch
        self._growth = 1.0  # wanted for the next epoch
        self._measured, self._ratio, self._age = 0, 1.0, 0  # bytes at the last exact size, its share of them
        self._error_before = 0.0
        self._fits = False  # whether the last epoch met a limit on the error
        self._best: tuple[tuple[bool, float], int, Any] | None = None  # merit (less is better), epoch, state

    def zero_(self, prior: MixturePrior, curvatures: Sequence[Tensor], price: float, progress: float) -> None:
        self.curvatures = curvatures
        if isinstance(self.target, MaxBytes):
            now, budget = self._bytes(), SPARE * self.target.max_bytes
            self._start = self._start or max(now, budget)
            goal = budget * (self._start / budget) ** (self._unsettled(progress) ** 2)
            self._growth = goal / now
            if now > goal:
                zero_cheapest_(prior, curvatures, CAUTION * 8 * (now - goal))
        elif progress < 1:  # after the last epoch it is the trimming's, by measured errors
            zero_cheapest_(prior, curvatures, CAUTION * 8 * MOST_CUT * self.size(False), self.zeroing * price)

    def _unsettled(self, progress: float) -> float:
        """From 1 at the start of the hard phase to 0 where it is to settle."""
        share = (progress - self.config.hard_from) / (1 - self.config.hard_from)
        return max(0.0, 1 - share / HOLD_FROM)

    def _bytes(self) -> float:
        plain = self.size(False)
        if abs(plain - self._measured) > ANEW * self._measured or self._age >= ANEW_AFTER:
            self._measured, self._ratio, self._age = plain, self.size(True) / plain, 0
        self._age += 1
        return plain * self._ratio

    def on_epoch(self, record: EpochRecord) -> None:
        """The error is that of the network before it grows: what comes in is in place only after an epoch more."""
        if record.epoch == 0:
            self._error_before = record.validation_error
        elif record.epoch <= self.config.epochs and (self.curvatures or isinstance(self.target, MaxBytes)):
            unsettled = self._unsettled(record.epoch / self.config.epochs)
            if isinstance(self.target, MaxError):
                self._judge(self.target.max_error, record, unsettled)
            elif not self.curvatures:  # soft yet: there is nothing to do but to let tau fall
                self._growth = SPARE * self.target.max_bytes / self.size(False)
            self.tau_scale = min(1.0, self.tau_scale / self._growth)
            if self.curvatures and unsettled and self._growth > 1:
                grow_(self.prior, min(MOST_GROWTH, self._growth))

    def _judge(self, limit: float, record: EpochRecord, unsettled: float) -> None:
        error, epochs = record.validation_error, self.config.epochs * (1 - self.config.hard_from)
        allowed = max(limit - self._error_before, 0.1 * limit, 1e-6)
        room = min(1.0, max(-1.0, ((1 + SLACK * unsettled) * limit - error) / allowed - SAFE))
        self.zeroing *= math.exp(PRICE_PULL * room / epochs)
        self._growth = math.exp(-SIZE_PULL * room / epochs)
        self._fits = error <= limit
        merit = (not self._fits, self.size(False) if self._fits else error)
        if self._best is None or merit <= self._best[0]:
            state = copy.deepcopy((self.model.state_dict(), self.prior.state_dict()))
            self._best = merit, record.epoch, state

    def settle_(self) -> list[str]:
        """After retraining: where the last network is above a limit on the error, the best one; and what was done."""
        if self._best is None or self._best[1] == self.config.epochs or self._fits:
            return []
        _, epoch, (model, prior) = self._best
        self.model.load_state_dict(model)
        self.prior.load_state_dict(prior)
        return [f"target: the last network was above the limit; the best is that of epoch {epoch}, and is taken"]


@torch.no_grad()
def grow_(prior: MixturePrior, factor: float) -> None:
    """Lower the zero component's mixing until there are so many times as many weights, or half of it is left."""
    wanted, logit = factor * _n_nonzero(prior), prior.zero_logit.clone()
    low, high = 0.0, max(0.0, float(logit.max()))  # what is taken off the logit: too little, and enough
    for _ in range(12):
        middle = (low + high) / 2
        prior.zero_logit.copy_(logit - middle)
        low, high = (middle, high) if _n_nonzero(prior) < wanted else (low, middle)
    prior.zero_logit.copy_(logit - low)


def _n_nonzero(prior: MixturePrior) -> int:
    pairs = zip(prior.parts, prior.mixtures(), strict=True)
    return sum(int((mixture.assign(w) != 0).sum()) for part, mixture in pairs for w in part.tensors)
