"""Steering: retraining adjusts tau, the zero mixing and the zeroing so that the run meets its target.

For `MaxBytes`, the file is measured after each hard epoch and follows a path that reaches the budget well before the
run ends. While the file is above the path, weights are zeroed, the cheapest first. For `MaxError`, the price of zeroing
rises while the validation error leaves room, and falls when it does not. If the network should be larger, tau falls and
the zero component gives weights away. Before the hard phase, tau also falls if the quantized network is far above the
limit or has a layer with hardly any weights: such a layer passes on no gradients and cannot recover.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softshare.config import RetrainConfig
from softshare.prior.prior import MixturePrior
from softshare.target.limits import MaxBytes, MaxError
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.zeroing import Zeroing, zero_cheapest_

HOLD_FROM = 0.6  # share of the hard phase after which the network settles: it keeps its size and does not grow
SPARE = 1.01  # times the budget during training; the finished network is then cut to the exact budget
CAUTION = 0.85  # share of the bits to save: the estimate is too low when much is zeroed at once
MOST_GROWTH, MOST_CUT = 1.1, 0.25  # of the weights, and of the bytes, in one epoch, which must make up for them
PRICE_PULL, SIZE_PULL = 8.0, 3.0  # change of the logarithms over a whole hard phase with all room left, or none
SLACK = 0.3  # share of the limit allowed above it at the start of the hard phase: the error falls with the rates
SOFT_PULL = math.log(2)  # change of the logarithm of tau after a soft epoch that leaves no room
FEWEST = 0.002  # share of a mixture's weights, at least one weight: with fewer, a layer passes nothing on
SAFE = 0.2  # share of the allowed increase kept free during training: errors scatter, and trimming uses what is left
REMEASURE, REMEASURE_AFTER = 0.1, 3  # change of size, or hard epochs, after which the simplified size is measured again


class Steering(Zeroing, Hook):
    """Steering of one run. `size(exact)` is the size of the present file; if exact, of the simplified network's file.

    `error()` is the validation error of the present network, quantized.
    """

    def __init__(
        self,
        target: MaxBytes | MaxError,
        config: RetrainConfig,
        model: nn.Module,
        prior: MixturePrior,
        size: Callable[[bool], int],
        error: Callable[[], float],
    ) -> None:
        super().__init__(config.zeroing)
        self.target, self.config, self.model, self.prior = target, config, model, prior
        self.size, self.error = size, error
        self.curvatures: Sequence[Tensor] = ()  # the latest ones
        self._start = 0.0  # bytes at the first hard epoch
        self._growth = 1.0  # wanted for the next epoch
        # At the last exact measurement: plain bytes, the exact size as a share of them, and the epochs since then.
        self._measured, self._ratio, self._age = 0, 1.0, 0
        self._error_before = 0.0
        self._room = 0.0  # left below a limit on the error by the last epoch, from -1 (far above the limit) to 1
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
        elif progress < 1 and self._room > -1:
            # After the last epoch, trimming does this by measured errors. The gradients of a broken network do not
            # tell what its weights are worth.
            zero_cheapest_(prior, curvatures, CAUTION * 8 * MOST_CUT * self.size(False), self.zeroing * price)

    def _unsettled(self, progress: float) -> float:
        """Falls from 1 at the start of the hard phase to 0 where the network settles."""
        share = (progress - self.config.hard_from) / (1 - self.config.hard_from)
        return max(0.0, 1 - share / HOLD_FROM)

    def _bytes(self) -> float:
        plain = self.size(False)
        if abs(plain - self._measured) > REMEASURE * self._measured or self._age >= REMEASURE_AFTER:
            self._measured, self._ratio, self._age = plain, self.size(True) / plain, 0
        self._age += 1
        return plain * self._ratio

    def on_epoch(self, record: EpochRecord) -> None:
        """The recorded error is that of the network before it grows: new weights need an epoch to find their place."""
        if record.epoch == 0:
            self._error_before = record.validation_error
            return
        unsettled = self._unsettled(record.epoch / self.config.epochs)
        if isinstance(self.target, MaxError):
            error = record.validation_error if self.curvatures else self.error()
            self._judge(self.target.max_error, error, unsettled)
            if self.curvatures:
                self._keep_best(self.target.max_error, record)
        elif not self.curvatures:
            self._growth = SPARE * self.target.max_bytes / self.size(False)
        if not self.curvatures and is_starved(self.prior):
            self._growth = max(self._growth, math.exp(SOFT_PULL))
        self.tau_scale = min(1.0, self.tau_scale / self._growth)
        if unsettled and self._growth > 1:  # in the soft phase, only tau can fall
            grow_(self.prior, min(MOST_GROWTH, self._growth) if self.curvatures else 1.0)

    def _judge(self, limit: float, error: float, unsettled: float) -> None:
        allowed = max(limit - self._error_before, 0.1 * limit, 1e-6)
        self._room = min(1.0, max(-1.0, ((1 + SLACK * unsettled) * limit - error) / allowed - SAFE))
        if not self.curvatures:
            self._growth = math.exp(-SOFT_PULL * self._room)
            return
        epochs = self.config.epochs * (1 - self.config.hard_from)
        self.zeroing *= math.exp(PRICE_PULL * self._room / epochs)
        self._growth = math.exp(-SIZE_PULL * self._room / epochs)

    def _keep_best(self, limit: float, record: EpochRecord) -> None:
        self._fits = record.validation_error <= limit
        merit = (not self._fits, self.size(False) if self._fits else record.validation_error)
        if self._best is None or merit <= self._best[0]:
            state = copy.deepcopy((self.model.state_dict(), self.prior.state_dict()))
            self._best = merit, record.epoch, state

    def settle_(self) -> int | None:
        """After retraining, restore the best network if the last one is above an error limit. Returns its epoch."""
        if self._best is None or self._best[1] == self.config.epochs or self._fits:
            return None
        _, epoch, (model, prior) = self._best
        self.model.load_state_dict(model)
        self.prior.load_state_dict(prior)
        return epoch


@torch.no_grad()
def grow_(prior: MixturePrior, factor: float) -> None:
    """Lower the zero mixings until there are `factor` times as many weights, and at least the fewest in each mixture.

    No mixing falls below a half, so there may be fewer.
    """
    logit = prior.zero_logit.clone()
    most = logit.clamp(min=0)  # may be taken off each
    wanted = factor * int(_n_nonzero(prior).sum())
    off, _ = _take_off_(prior, logit, most, torch.zeros_like(most), lambda n: (n.sum() >= wanted).expand_as(n))
    if is_starved(prior):
        fewest = _fewest(prior)
        too_little, enough = _take_off_(prior, logit, most, off, lambda n: n >= fewest)
        prior.zero_logit.copy_(logit - torch.where(_n_nonzero(prior) < fewest, enough, too_little))


def _take_off_(
    prior: MixturePrior,
    logit: Tensor,  # (parts,)
    most: Tensor,  # (parts,)
    low: Tensor,  # (parts,)
    is_enough: Callable[[Tensor], Tensor],  # (parts,) non-zero weights of each mixture -> (parts,) bool
) -> tuple[Tensor, Tensor]:  # (parts,) each: what is too little, and is taken off in the end; and what is enough
    """Search by halving for what to take off each logit, between `low` and `most`."""
    high = torch.maximum(low, most.max().expand_as(most))
    for _ in range(12):
        middle = (low + high) / 2
        prior.zero_logit.copy_(logit - middle.minimum(most))
        enough = is_enough(_n_nonzero(prior))
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    prior.zero_logit.copy_(logit - low.minimum(most))
    return low.minimum(most), high.minimum(most)


@torch.no_grad()
def is_starved(prior: MixturePrior) -> bool:
    """Whether some mixture has hardly any non-zero weights."""
    return bool((_n_nonzero(prior) < _fewest(prior)).any())


def _fewest(prior: MixturePrior) -> Tensor:  # (parts,)
    return prior.zero_logit.new_tensor([min(max(1.0, FEWEST * n), n) for n in (part.n_weights for part in prior.parts)])


def _n_nonzero(prior: MixturePrior) -> Tensor:  # (parts,)
    pairs = zip(prior.parts, prior.mixtures(), strict=True)
    return torch.stack([torch.stack([(m.assign(w) != 0).sum() for w in part.tensors]).sum() for part, m in pairs])
