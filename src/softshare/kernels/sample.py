"""Appendix C: the sweep on K of the I weights, scaled by I / K. Its expectation is the sweep on all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from softshare.kernels.mixture import Sweep


def sampled(sweep: Sweep, one_in: int, schedule: str) -> Sweep:
    """On one weight in so many, others in each call, as torch's random state has it. The cost is in proportion.

    'block': K weights in a row, from a random one on, around the end. 'random': one of every `one_in` in a row, each
    drawn by itself. Weights that are not drawn have a gradient of 0.
    """
    if one_in == 1:
        return sweep
    draw = _draw_block if schedule == "block" else _draw_random

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
            raise ValueError("a sample counts each weight once")
        picks, factor = draw([len(w) for w in weights], one_in, mean.device)
        if grads is not None and scale is None:
            for grad in grads:
                grad.zero_()
        own_scale = mean.new_full((), factor) if scale is None else factor * scale
        drawn = [weights[k][pick] for k, pick in picks]
        outs = None if grads is None else [grads[k][pick] for k, pick in picks]
        loss, sums = sweep(drawn, log_mixing, mean, log_var, outs, own_scale)
        if grads is not None and outs is not None:
            for (k, pick), out in zip(picks, outs, strict=True):
                if not isinstance(pick, slice):  # a slice was added to where it is
                    grads[k][pick] = out
        return factor * loss, factor * sums

    return on_sample


Picks = list[tuple[int, slice | Tensor]]  # the number of a tensor, and which of its weights


def _draw_block(sizes: Sequence[int], one_in: int, device: torch.device) -> tuple[Picks, float]:
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


def _draw_random(sizes: Sequence[int], one_in: int, device: torch.device) -> tuple[Picks, float]:
    picks: Picks = []
    for t, size in enumerate(sizes):
        whole, left = divmod(size, one_in)
        pick = torch.arange(whole, device=device) * one_in + torch.randint(one_in, (whole,), device=device)
        if left and (last := int(torch.randint(one_in, ()))) < left:
            pick = torch.cat([pick, pick.new_full((1,), whole * one_in + last)])
        if len(pick):
            picks.append((t, pick))
    return picks, float(one_in)
