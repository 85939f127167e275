"""Rate-aware zeroing: a weight must be worth its bits.

The objective is loss + price * bits. To second order, zeroing a weight of value v adds h v^2 / 2 to the loss, where h
is its curvature. It saves about the bits that say where the weight is and what it is. A weight that saves more than it
costs becomes 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softshare.config import RetrainConfig
from softshare.distributed.group import ALONE, Group
from softshare.distributed.shards import counts_here, flat_places, is_sharded, spans
from softshare.prior.prior import MixturePrior

LEAST_WORTH = 1.0  # nats, where a network gains log 10 nats over zeros: ten classes


def bit_price(tau: float, config: RetrainConfig, n_examples: int) -> float:
    """What a bit costs when weights are zeroed, in nats of mean loss: tau's price in the objective, times zeroing."""
    return config.zeroing * tau / config.counted(n_examples) * math.log(2)


def least_worth(config: RetrainConfig) -> float:
    return LEAST_WORTH if config.scaling == "auto" else 0.0


def spare_bits_(prior: MixturePrior, curvatures: Sequence[Tensor], price: float, least_worth: float) -> None:
    """After a hard look: weights that are not worth their bits become 0, and the others take the value that is.

    A network that fits its training data perfectly has no gradients, and so no curvature: all its weights seem to be
    worth nothing. But it gains nats over zeros. So together they are worth `least_worth` nats of mean loss at least, in
    the proportions that are measured.
    """
    with torch.no_grad():
        costs = zip(_costs(prior, curvatures), prior.view.counted, strict=True)
        worth = sum(float(cost[cost.isfinite()].sum()) for (_, cost, _), counts in costs if counts)
    worth = prior.view.group.total(worth)
    if 0 < worth < least_worth:
        curvatures = [least_worth / worth * h for h in curvatures]
    zero_cheap_(prior, curvatures, price)
    take_common_(prior, curvatures, price)
    prior.gathered.settle_()


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
def take_common_(prior: MixturePrior, curvatures: Sequence[Tensor], price: float) -> None:
    """Give each weight that is not 0 the value whose bits it is worth: to move by d costs h d^2 / 2."""
    curvature = iter(curvatures)
    for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
        for tensor, w in zip(part.tensors, part.locals, strict=True):
            index, h = mixture.assign(w).flatten(), next(curvature).flatten()
            bits = -torch.log2(Uses.of_shard(index.view_as(w), len(mixture), tensor, part.group).shares())
            places = index.nonzero()[:, 0]  # few, so all values can be tried
            index, h = index[places], h[places]
            own, best, least = mixture.mean[index], index, price * bits[index]
            for k in range(1, len(mixture)):
                cost = 0.5 * h * (mixture.mean[k] - own) ** 2 + price * bits[k]
                better = cost < least
                best, least = best.masked_fill(better, k), torch.where(better, cost, least)
            moved = best != index
            new = w.flatten().index_copy(0, places[moved], mixture.mean[best[moved]].to(w.dtype))
            w.copy_(new.view_as(w))


def _costs(prior: MixturePrior, curvatures: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each tensor of weights, with the cost of zeroing each weight and the bits that saves."""
    curvature = iter(curvatures)
    for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
        for tensor, w in zip(part.tensors, part.locals, strict=True):
            index, h = mixture.assign(w).view_as(w), next(curvature)
            uses = Uses.of_shard(index, len(mixture), tensor, part.group)
            yield w, _cost(index, mixture.mean, h), uses.bits_saved(index)


def cost_and_bits(
    index: Tensor,  # the component of each weight
    values: Tensor,  # (K,), of the components
    curvature: Tensor,  # as `index`
) -> tuple[Tensor, Tensor]:  # as `index`
    """What zeroing each weight adds to the loss, and the bits it saves."""
    return _cost(index, values, curvature), bits_saved(index, len(values))


def _cost(index: Tensor, values: Tensor, curvature: Tensor) -> Tensor:
    return 0.5 * curvature * values[index] ** 2


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

    def saving(self, bits: float) -> tuple[Tensor, ...]:  # bool, flat, of each tensor
        """The first weights that together save `bits`."""
        n = min(int(torch.searchsorted(self._saved, bits)) + 1, len(self._places))
        mask = torch.zeros(sum(self._sizes), dtype=torch.bool, device=self._places.device)
        mask[self._places[:n]] = True
        masks: tuple[Tensor, ...] = mask.split(self._sizes)
        return masks


def bits_saved(
    index: Tensor,  # the component of each weight, 0: the zero component
    n_values: int,
) -> Tensor:  # in the same shape, float32
    """The bits that each weight would save as a zero, as `Uses` says."""
    return Uses.of_shard(index, n_values, index, ALONE).bits_saved(index)


@dataclass(frozen=True, eq=False)
class Uses:
    """How often a matrix, which may be sharded, uses each value, and where its non-zero weights are.

    A weight would save log2((1 - p) / p) - log2 q bits as a zero. p is the chance that it is non-zero, by the densities
    of its row and its column. q is the share of its value among the non-zero weights. A weight is no evidence of its
    own presence, so all of these are counts of the others. Zeros save nothing.
    """

    rows: Tensor  # float32, of the whole matrix: non-zero weights in each of the rows that this process holds, (n, 1)
    columns: Tensor  # (1, m), likewise
    n_alive: Tensor  # 0-d
    shape: tuple[int, int]  # of the whole matrix
    values: Tensor  # float32, (n_values,), weights that have each value

    @classmethod
    def of_shard(
        cls,
        index: Tensor,  # of the weights that this process holds
        n_values: int,
        tensor: Tensor,  # that it is a shard of
        group: Group,
    ) -> Uses:
        matrix = _matrix(index)
        alive = (matrix != 0).float()
        rows, columns, values = alive.sum(1), alive.sum(0), index.flatten().bincount(minlength=n_values).float()
        n_rows = tensor.shape[0] if tensor.dim() else 1
        shape = n_rows, (tensor.numel() // n_rows if n_rows else 0)
        if group.size > 1 and is_sharded(tensor):
            held = spans(tensor)
            of_rows = torch.arange(held[0].start, held[0].stop, device=index.device)
            of_columns = flat_places(held[1:], tensor.shape[1:]).flatten().to(index.device)
            whole = torch.zeros(sum(shape) + n_values, device=index.device)
            if counts_here(tensor, group):
                whole[: shape[0]].index_add_(0, of_rows, rows)
                whole[shape[0] : sum(shape)].index_add_(0, of_columns, columns)
                whole[sum(shape) :] += values
            group.sum_(whole)
            rows, columns = whole[of_rows], whole[shape[0] + of_columns]
            values, n_alive = whole[sum(shape) :], whole[: shape[0]].sum()
        else:
            n_alive = alive.sum()
        return cls(rows[:, None], columns[None], n_alive, shape, values)

    def bits_saved(self, index: Tensor) -> Tensor:  # in the same shape, float32
        if not index.numel():
            return torch.zeros_like(index, dtype=torch.float32)
        matrix = _matrix(index)
        n_rows, n_columns = self.shape
        density = (self.n_alive - 0.5).clamp(min=0.5) / (n_rows * n_columns)
        rows = ((self.rows - 1).clamp(min=0) + density) / n_columns
        columns = ((self.columns - 1).clamp(min=0) + density) / n_rows
        p = (rows * columns / density).clamp(max=0.5)
        saved = torch.log2((1 - p) / p) - torch.log2(self.shares())[matrix]
        return torch.where(matrix != 0, saved, 0.0).view_as(index)

    def shares(self) -> Tensor:  # (n_values,)
        """The share of each value among the other non-zero weights."""
        counts = self.values.clone()
        counts[0] = 0
        others = (counts.sum() - 1).clamp(min=0)
        return ((counts - 1).clamp(min=0) + 0.5) / (others + 0.5 * len(counts))


def _matrix(index: Tensor) -> Tensor:
    """One row for each index of the first dimension. A shard may have none."""
    return index.reshape(len(index), math.prod(index.shape[1:])) if index.dim() else index.reshape(1, 1)
