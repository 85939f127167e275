"""Steering to a size: retraining adjusts tau, the zero mixing and the zeroing so that the file fits into its bytes.

The file is measured after each hard look and follows a path that reaches the budget well before the run ends. While it
is above the path, weights are zeroed, the cheapest first. If the network should be larger, tau falls and the zero
component gives weights away. Before the hard phase, tau also falls if a layer has hardly any weights: such a layer
passes on no gradients and cannot recover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from softshare.config import RetrainConfig
from softshare.prior.prior import MixturePrior
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.zeroing import Zeroing, zero_cheapest_

HOLD_FROM = 0.6  # share of the hard phase after which the network settles: it keeps its size and does not grow
SPARE = 1.01  # times the budget during training; the finished network is then cut to the exact budget
CAUTION = 0.85  # share of the bits to save: the estimate is too low when much is zeroed at once
MOST_GROWTH = 1.1  # of the weights in one look, which must make up for them
SOFT_PULL = math.log(2)  # change of the logarithm of tau after a soft look at a layer with hardly any weights
LEAST_TAU = 1 / 64  # of the config's: without the prior there is nothing left to quantize by
FEWEST = 0.002  # share of a mixture's weights, at least one weight: with fewer, a layer passes nothing on
REMEASURE, REMEASURE_AFTER = 0.1, 3  # change of size, or hard looks, after which the simplified size is measured again


class Steering(Zeroing, Hook):
    """Steering of one run. `size(exact)` is the size of the present file; if exact, of the simplified network."""

    def __init__(self, max_bytes: int, config: RetrainConfig, prior: MixturePrior, size: Callable[[bool], int]) -> None:
        super().__init__(config.zeroing)
        self.budget, self.config, self.prior, self.size = SPARE * max_bytes, config, prior, size
        self._is_hard = False
        self._start = 0.0  # bytes at the first hard look
        self._growth = 1.0  # wanted until the next look
        # At the last exact measurement: plain bytes, the exact size as a share of them, and the looks since then.
        self._measured, self._ratio, self._age = 0, 1.0, 0

    def zero_(self, prior: MixturePrior, curvatures: Sequence[Tensor], price: float, progress: float) -> None:
        self._is_hard = True
        now = self._bytes()
        self._start = self._start or max(now, self.budget)
        goal = self.budget * (self._start / self.budget) ** (self._unsettled(progress) ** 2)
        self._growth = goal / now
        if now > goal:
            zero_cheapest_(prior, curvatures, CAUTION * (1 - goal / now))

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
        """The recorded error is that of the network before it grows: new weights need a look to find their place."""
        if record.epoch == 0:
            return
        if not self._is_hard:
            self._growth = self.budget / self.size(False)
            if is_starved(self.prior):
                self._growth = max(self._growth, math.exp(SOFT_PULL))
        self.tau_scale = min(1.0, max(LEAST_TAU, self.tau_scale / self._growth))
        if self._growth > 1 and self._unsettled(record.epoch / self.config.looks):
            # In the soft phase only tau can fall, but a layer with hardly any weights gets some.
            grow_(self.prior, min(MOST_GROWTH, self._growth) if self._is_hard else 1.0)


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
