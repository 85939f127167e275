"""Appendix C: the sweep on K of the I weights, scaled by I / K. Its expectation is the sweep on all weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from softshare.prior.kernels.sweep import Sweep


def sampled(sweep: Sweep, one_in: int) -> Sweep:
    """The sweep on one weight in `one_in`. Each call draws its weights from torch's random state.

    A sample is a block of K neighbours. It starts at a random weight and wraps around the end. All other weights get a
    gradient of 0.
    """
    if one_in == 1:
        return sweep

    def on_sample(
        weights: Sequence[Tensor],
        log_mixing: Tensor,
        mean: Tensor,
        log_var: Tensor,
        grads: Sequence[Tensor] | None,
        scale: Tensor | None = None,
        times: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        if times is not None:
            raise ValueError("times: expected None, because a sample counts each weight once")
        picks, factor = _draw([len(w) for w in weights], one_in)
        if grads is not None and scale is None:
            for grad in grads:
                grad.zero_()
        own_scale = mean.new_full((), factor) if scale is None else factor * scale
        drawn = [weights[k][pick] for k, pick in picks]
        outs = None if grads is None else [grads[k][pick] for k, pick in picks]
        loss, sums = sweep(drawn, log_mixing, mean, log_var, outs, own_scale)  # slices are views: added to in place
        return factor * loss, factor * sums

    return on_sample


Picks = list[tuple[int, slice]]  # the number of a tensor, and the weights drawn from it


def _draw(sizes: Sequence[int], one_in: int) -> tuple[Picks, float]:
    n = sum(sizes)
    k = -(-n // one_in)
    start = int(torch.randint(max(n, 1), ()))
    picks: Picks = []
    for low, high in ((start, min(start + k, n)), (0, start + k - n)):
        first = 0
        for t, size in enumerate(sizes):
            inside = slice(max(low - first, 0), min(high - first, size))
            if inside.start < inside.stop:
                picks.append((t, inside))
            first += size
    return picks, n / max(k, 1)
