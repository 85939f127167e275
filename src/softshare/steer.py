"""Steering: while retraining goes on, tau, the zero mixing and the zeroing are led to where a target will be met.

After each hard epoch the file is measured, and the next size to be had follows from the target: for `MaxBytes` from a
path that ends at the budget well before the run does, for `MaxError` from how much of the allowed error is left. A
file that is larger has its cheapest weights zeroed; where it is smaller, tau falls and more weights leave the zero
component. The validation error is the only one that is looked at.
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
from softshare.rate import Zeroing, price_of, zero_cheap_
from softshare.retrain import EpochRecord, Hook
from softshare.target import MaxBytes, MaxError

HOLD_FROM = 0.6  # share of the hard phase after which the size is held, so that the network settles at it
SPARE = 1.01  # times the budget, so long as it is trained: what is over is cut from the finished network, exactly
PULL = 3.0  # of the logarithm of the size, over a hard phase that uses nothing of the error allowed
SLACK = 0.5  # of the allowed error, more than that at the start of the hard phase: it falls as learning rates do
MOST_GROWTH = 1.1  # of the non-zero weights, after an epoch: one of 1.5 was measured to cost the network its accuracy
CAUTION = 0.85  # of the bits to be saved, by estimate: it is too low where much is zeroed at once
ANEW = 0.1  # relative change of the size after which the simplified network is measured again, and
ANEW_AFTER = 3  # the hard epochs after which it is anyway


class Steering(Zeroing, Hook):
    """Of one run. `size(exact)` is that of the file as it would be now, simplified where it shall be exact."""

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
        self.curvatures: Sequence[Tensor] = ()
        self._measured, self._ratio, self._age = 0, 1.0, 0  # plain size at the last exact one, the exact one's share
        self._start: float | None = None  # size in the first hard epoch
        self._errors: list[float] = []  # before, and after each epoch
        self._hard = self._fits = False  # whether the last epoch was hard, and met a limit on the error
        self._best: tuple[tuple[bool, float], int, Any] | None = None  # its merit, its epoch, the state

    def zero_(self, prior: MixturePrior, curvatures: Sequence[Tensor], price: float, progress: float) -> None:
        self.curvatures, first = curvatures, not self._hard
        self._hard = True
        share = (progress - self.config.hard_from) / (1 - self.config.hard_from)  # of the hard phase
        now = self._bytes()
        goal = self._goal(self.target, now, share, first)
        if now > goal:
            zero_cheap_(prior, curvatures, price_of(prior, curvatures, CAUTION * 8 * (now - goal)))
        elif isinstance(self.target, MaxBytes) and share < HOLD_FROM:
            grow_(prior, min(MOST_GROWTH, goal / now))
        self._scale_tau(now, goal)

    def _scale_tau(self, now: float, goal: float) -> None:
        self.tau_scale = min(1.0, self.tau_scale * now / goal)

    def _bytes(self) -> float:
        plain = self.size(False)
        if abs(plain - self._measured) > ANEW * self._measured or self._age >= ANEW_AFTER:
            self._measured, self._ratio, self._age = plain, self.size(True) / plain, 0
        self._age += 1
        return plain * self._ratio

    def _goal(self, target: MaxBytes | MaxError, now: float, share: float, first: bool) -> float:
        left = max(0.0, 1 - share / HOLD_FROM)
        if isinstance(target, MaxBytes):
            budget = SPARE * target.max_bytes
            self._start = max(budget, self._start or now)
            return float(budget * (self._start / budget) ** (left**2))
        if first:  # no error of quantized weights is known yet
            return now
        allowed = max(target.max_error - self._errors[0], 0.1 * target.max_error, 1e-6)
        room = ((1 + SLACK * left) * target.max_error - self._errors[-1]) / allowed
        epochs = self.config.epochs * (1 - self.config.hard_from)
        return now * math.exp(-PULL * min(1.0, max(-1.0, room)) / epochs)

    def on_epoch(self, record: EpochRecord) -> None:
        self._errors.append(record.validation_error)
        if isinstance(self.target, MaxBytes) and not self._hard and record.epoch > 0:
            self._scale_tau(self.size(False), SPARE * self.target.max_bytes)
        if not self._hard or isinstance(self.target, MaxBytes) or record.epoch > self.config.epochs:
            return
        fits = self._fits = record.validation_error <= self.target.max_error
        merit = (not fits, self.size(False) if fits else record.validation_error)
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
        return [f"target: the last network had an error above the limit; taken is that of epoch {epoch}"]


@torch.no_grad()
def grow_(prior: MixturePrior, factor: float) -> None:
    """Lower the zero component's mixing until there are so many times as many non-zero weights, if it can be done."""
    wanted = factor * _n_nonzero(prior)
    logit = prior.zero_logit.clone()
    low, high = 0.0, max(0.0, float(logit.max()))  # of what is taken off it; at a logit of 0 half of the mixing is left
    for _ in range(12):
        middle = (low + high) / 2
        prior.zero_logit.copy_(logit - middle)
        low, high = (middle, high) if _n_nonzero(prior) < wanted else (low, middle)
    prior.zero_logit.copy_(logit - low)


def _n_nonzero(prior: MixturePrior) -> int:
    pairs = zip(prior.parts, prior.mixtures(), strict=True)
    return sum(int((mixture.assign(w) != 0).sum()) for part, mixture in pairs for w in part.tensors)
