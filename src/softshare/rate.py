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

DECAY = 0.999  # of the running mean: it remembers about a thousand steps


class Curvature:
    """Of the mean task loss by each shared weight, about: the batch size times the mean square of its gradient.

    Infinite for a weight that is not trained, of which nothing is known.
    """

    def __init__(self, prior: MixturePrior) -> None:
        self._weights = prior.view.tensors
        self._squares = [torch.zeros_like(w, dtype=torch.float32) for w in self._weights]
        self._share = torch.zeros((), device=prior.means.device)  # of the running means that has been seen

    @torch.no_grad()
    def note_(self) -> None:
        """To be called when the weights have the gradients of the task loss, and no other."""
        noted = [(s, w.grad.float()) for s, w in zip(self._squares, self._weights, strict=True) if w.grad is not None]
        squares, grads = [s for s, _ in noted], [g for _, g in noted]
        torch._foreach_mul_(self._squares, DECAY)
        if noted:  # torch refuses an empty list
            torch._foreach_addcmul_(squares, grads, grads, 1 - DECAY)
        self._share.mul_(DECAY).add_(1 - DECAY)

    def estimate(self, batch_size: float) -> list[Tensor]:
        return [
            batch_size * s / self._share if w.requires_grad else torch.full_like(s, torch.inf)
            for s, w in zip(self._squares, self._weights, strict=True)
        ]


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
