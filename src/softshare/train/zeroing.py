"""Rate-aware zeroing: a weight must be worth its bits.

The objective is loss + price * bits. To second order, zeroing a weight of value v adds h v^2 / 2 to the loss, where h
is its curvature. It saves about the bits that say where the weight is and what it is. A weight that saves more than it
costs becomes 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from softshare.prior.prior import MixturePrior


def bit_price(tau: float, n_examples: int) -> float:
    """The price of a bit in the objective, in nats of mean loss."""
    return tau / n_examples * math.log(2)


class Zeroing:
    """What happens to the weights after each hard epoch, and how strongly the prior pulls until then."""

    tau_scale = 1.0

    def __init__(self, zeroing: float) -> None:
        self.zeroing = zeroing

    def zero_(self, prior: MixturePrior, curvatures: Sequence[Tensor], price: float, progress: float) -> None:
        """`price` is tau's price of a bit, in nats of mean loss. `progress` is the share of the run that is done."""
        zero_cheap_(prior, curvatures, self.zeroing * price)


@torch.no_grad()
def zero_cheap_(
    prior: MixturePrior,
    curvatures: Sequence[Tensor],  # of the mean loss, one for each tensor of `prior.view`, in its shape
    price: float,  # of a bit, in nats of mean loss
) -> None:
    """Zero every weight whose value is not worth its bits."""
    for w, cost, bits in _costs(prior, curvatures):
        w.masked_fill_(cost < price * bits, 0.0)


@torch.no_grad()
def zero_cheapest_(prior: MixturePrior, curvatures: Sequence[Tensor], bits: float, price: float = math.inf) -> None:
    """Zero the weights that cost least per bit, until about `bits` are saved. Spare weights that cost the price."""
    found = list(_costs(prior, curvatures))
    masks = Cheapest([(cost, own) for _, cost, own in found]).saving(bits, price)
    for (w, _, _), mask in zip(found, masks, strict=True):
        w.masked_fill_(mask.view_as(w), 0.0)


def _costs(prior: MixturePrior, curvatures: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each tensor of weights, with the cost of zeroing each weight and the bits that saves."""
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
    """What zeroing each weight adds to the loss, and the bits it saves."""
    return 0.5 * curvature * values[index] ** 2, bits_saved(index, len(values))


class Cheapest:
    """Weights ordered by what zeroing them costs for each bit saved."""

    def __init__(self, costs: Sequence[tuple[Tensor, Tensor]]) -> None:  # costs and bits of each tensor
        self._sizes = [cost.numel() for cost, _ in costs]
        cost = torch.cat([cost.flatten() for cost, _ in costs])
        bits = torch.cat([own.flatten() for _, own in costs])
        places = ((bits > 0) & (cost < math.inf)).nonzero()[:, 0]
        self._prices, order = (cost[places] / bits[places]).sort(stable=True)
        self._places = places[order]
        self._saved = bits[self._places].double().cumsum(0)

    @property
    def total(self) -> float:
        """The bits that all weights save together."""
        return float(self._saved[-1]) if len(self._saved) else 0.0

    def saving(self, bits: float, price: float = math.inf) -> tuple[Tensor, ...]:  # bool, flat, of each tensor
        """The first weights that together save `bits`, and each cost less than the price."""
        n = min(int(torch.searchsorted(self._saved, bits)) + 1, int(torch.searchsorted(self._prices, price)))
        mask = torch.zeros(sum(self._sizes), dtype=torch.bool, device=self._places.device)
        mask[self._places[:n]] = True
        masks: tuple[Tensor, ...] = mask.split(self._sizes)
        return masks


def bits_saved(
    index: Tensor,  # the component of each weight, 0: the zero component
    n_values: int,
) -> Tensor:  # in the same shape, float32
    """The bits that each weight would save as a zero: log2((1 - p) / p) - log2 q.

    p is the chance that it is non-zero, by the densities of its row and its column. q is the share of its value among
    the non-zero weights. Zeros save nothing.
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
