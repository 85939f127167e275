"""Rate-aware zeroing: a weight must be worth its bits.

Objective: loss + price * bits. To second order, a weight of value v adds h v^2 / 2 to the loss when it is zeroed,
h being its curvature. It saves about the bits that say it is there and what it is. A weight that saves more than it
costs becomes 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from softshare.prior import MixturePrior


@torch.no_grad()
def zero_cheap_(
    prior: MixturePrior,
    curvatures: Sequence[Tensor],  # of the mean loss, one for each tensor of `prior.view`, in its shape
    price: float,  # of a bit, in nats of mean loss
) -> None:
    """Set to 0 every weight whose value is not worth its bits."""
    curvature = iter(curvatures)
    for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
        for w in part.tensors:
            index, h = mixture.assign(w), next(curvature)
            if not w.numel():
                continue
            cost = 0.5 * h * mixture.mean[index].view_as(w) ** 2
            w.masked_fill_(cost < price * bits_saved(index.view_as(w), len(mixture)), 0.0)


def bits_saved(
    index: Tensor,  # the component of each weight, 0: the zero component
    n_values: int,
) -> Tensor:  # in the same shape, float32
    """What each weight would save as a zero: log2((1 - p) / p) - log2 q.

    p is its chance to be non-zero, by the densities of its row and its column, and q the share of its value among the
    non-zero ones. Zeros save nothing.
    """
    matrix = index.reshape(len(index), -1) if index.dim() else index.reshape(1, 1)
    alive = (matrix != 0).float()
    density = (alive.sum() + 0.5) / (alive.numel() + 1)
    rows = (alive.sum(1, keepdim=True) + density) / (alive.shape[1] + 1)
    columns = (alive.sum(0, keepdim=True) + density) / (alive.shape[0] + 1)
    p = (rows * columns / density).clamp(max=0.5)
    counts = torch.stack([(index == k).sum() for k in range(n_values)]).float()
    counts[0] = 0
    q = (counts + 0.5) / (counts.sum() + 0.5 * n_values)
    saved = torch.log2((1 - p) / p) - torch.log2(q)[matrix]
    return torch.where(matrix != 0, saved, 0.0).view_as(index)
