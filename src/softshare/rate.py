"""Rate-aware zeroing: a weight must be worth its bits.

Objective: loss + price * bits. To second order, a weight of value v adds h v^2 / 2 to the loss when it is zeroed,
h being its curvature. It saves about the bits that say it is there and what it is. A weight that saves more than it
costs becomes 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

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


class Zeroing:
    """What is done after each epoch on quantized weights, and how strongly the prior pulls until then."""

    tau_scale = 1.0

    def __init__(self, zeroing: float) -> None:
        self.zeroing = zeroing

    def zero_(self, prior: MixturePrior, curvatures: Sequence[Tensor], price: float, progress: float) -> None:
        """`price` is what tau asks for a bit, in nats of mean loss; `progress` the share of the run that is done."""
        zero_cheap_(prior, curvatures, self.zeroing * price)


@torch.no_grad()
def zero_cheap_(
    prior: MixturePrior,
    curvatures: Sequence[Tensor],  # of the mean loss, one for each tensor of `prior.view`, in its shape
    price: float,  # of a bit, in nats of mean loss
) -> None:
    """Set to 0 every weight whose value is not worth its bits."""
    for w, cost, bits in _costs(prior, curvatures):
        w.masked_fill_(cost < price * bits, 0.0)


@torch.no_grad()
def price_of(prior: MixturePrior, curvatures: Sequence[Tensor], bits: float) -> float:
    """The price at which zeroing saves about so many bits; infinite where all weights together do not."""
    costs = [(cost[own > 0], own[own > 0]) for _, cost, own in _costs(prior, curvatures)]
    return float(Prices(costs).saving(bits)) if costs else math.inf


def _costs(prior: MixturePrior, curvatures: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each tensor of weights, with what zeroing its weights costs and saves."""
    curvature = iter(curvatures)
    for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
        for w in part.tensors:
            index, h = mixture.assign(w), next(curvature)
            if w.numel():
                yield w, *cost_and_bits(index.view_as(w), mixture.mean, h)


def cost_and_bits(
    index: Tensor,  # the component of each weight
    values: Tensor,  # (K,), of the components
    curvature: Tensor,  # as `index`
) -> tuple[Tensor, Tensor]:  # as `index`
    """Of zeroing each weight: what it adds to the loss, and what it saves."""
    return 0.5 * curvature * values[index] ** 2, bits_saved(index, len(values))


class Prices:
    """At which price weights are zeroed, cheapest first."""

    def __init__(self, costs: Iterable[tuple[Tensor, Tensor]]) -> None:  # of the weights that can save bits, (n,) each
        pairs = list(costs)
        bits, prices = torch.cat([own for _, own in pairs]), torch.cat([cost / own for cost, own in pairs])
        self._rising, order = prices[prices < math.inf].sort()
        self._saved = bits[prices < math.inf][order].double().cumsum(0)

    @property
    def total(self) -> float:
        """Bits that all weights save together."""
        return float(self._saved[-1]) if len(self._saved) else 0.0

    def saving(self, bits: float) -> float:
        """The price at which these are saved, about; infinite where that is more than all save."""
        n = int(torch.searchsorted(self._saved, bits)) + 1  # weights to zero
        return float(self._rising[n]) if n < len(self._rising) else math.inf


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
