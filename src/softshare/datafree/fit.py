"""Fit a mixture to the weights of one tensor, with all components held at one width.

Up to a constant, the negative log-joint of a weight and a component is then (w - mean)^2 / (2 width^2) - log mixing:
distortion plus rate. EM by the most responsible component minimizes their sum. The width sets their exchange rate
(docs/math.md, "Without data"). The weights enter as sums over narrow cells, so a step of EM costs the same for a
hundred million weights as for a thousand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softshare.errors import ConfigError
from softshare.prior.mixture import Mixture
from softshare.quantization.assignment import order_values
from softshare.quantization.quantized import QuantizedTensor, index_dtype

Floats = npt.NDArray[np.float64]

RESOLUTION = 1 << 10  # cells per root mean square of the weights
REACH = 1 << 5  # in root mean squares; each of the few weights beyond has its own cell
SPACING = math.sqrt(12)  # of the initial means, in widths: optimal for many narrow components
VALUE_BITS = 16  # of a value of the codebook in the file
MOST_STEPS = 100  # of EM
TOLERANCE = 1e-6  # nats per weight that a step must gain
_CHUNK = 1 << 16  # weights at a time


@dataclass(frozen=True, eq=False)
class Cells:
    """A tensor's weights, in units of their root mean square, summed over cells from the smallest to the largest."""

    rms: float  # 0 if all weights are 0
    centre: Floats  # (B,) the mean of each cell's weights
    sums: Floats  # (3, B + 1) number, sum and sum of squares of the weights before each cell

    @property
    def n(self) -> int:
        return int(self.sums[0, -1])


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted mixture and the cost of quantizing by it. Means rise, and every component has weights."""

    rms: float
    width: float  # of all components, in units of `rms`
    mean: Floats = field(repr=False)  # (K,) in units of `rms`; the zero component's is exactly 0
    mixing: Floats = field(repr=False)  # (K,)
    error: float  # root mean square of the quantization error, in units of `rms`
    bits: float  # order-0 entropy of all indices, plus the codebook

    def mixture(self) -> Mixture:
        """The mixture with the zero component first, even if no weight belongs to it."""
        free = self.mean != 0
        mean = np.concatenate([[0.0], self.mean[free]]) * self.rms
        mixing = np.concatenate([[self.mixing[~free].sum()], self.mixing[free]])
        log_var = torch.full((len(mean),), 2 * math.log(self.width * self.rms))
        return Mixture(torch.from_numpy(mixing).log().float(), torch.from_numpy(mean).float(), log_var)


def cells_of(
    weights: Tensor,  # any shape, finite
) -> Cells:
    parts = weights.detach().reshape(-1).split(_CHUNK)
    rms = math.sqrt(sum(float(part.double().square().sum()) for part in parts) / max(1, weights.numel()))
    if rms == 0:
        return Cells(0.0, np.zeros(1), np.array([[0, weights.numel()], [0, 0], [0, 0]], np.float64))
    half = RESOLUTION * REACH
    sums = torch.zeros(3, 2 * half + 1, dtype=torch.float64)
    far = []
    for part in parts:
        x = part.double() / rms
        place = (x * RESOLUTION).round_()
        near = place.abs() <= half
        far.append(x[~near])
        x, index = x[near], (place[near] + half).long()
        for total, values in zip(sums, (None, x, x * x), strict=True):
            total += index.bincount(values, minlength=len(total))
    alone = torch.cat(far)
    sums = torch.cat([sums[:, sums[0] > 0], torch.stack([torch.ones_like(alone), alone, alone * alone])], 1)
    sums = sums[:, (sums[1] / sums[0]).argsort(stable=True)]
    return Cells(rms, (sums[1] / sums[0]).numpy(), torch.nn.functional.pad(sums.cumsum(1), (1, 0)).numpy())


def fit(
    cells: Cells,
    width: float,  # in units of the root mean square
) -> Fit:
    """Run EM from an even grid that contains 0 until it gains nothing, drop values not worth their bits, and repeat.

    The E step gives each cell to its most responsible component. The M step gives each component the mean and the
    share of its cells, where the gradient of the objective is zero. The zero component's mean stays 0.
    """
    if cells.rms == 0:
        return Fit(0.0, width, np.zeros(1), np.ones(1), 0.0, 0.0)
    group = np.rint(cells.centre / (SPACING * width))
    edges = _edges(np.flatnonzero(np.diff(group)) + 1, cells)
    zero = group[edges[:-1]] == 0
    best, steps = math.inf, 0
    while True:
        count, total, square = np.diff(cells.sums[:, edges])
        used = count > 0
        zero, count, total, square = zero[used], count[used], total[used], square[used]
        mean = np.where(zero, 0.0, total / count)
        price = -np.log(count / cells.n)
        distortion = float((square - 2 * mean * total + count * mean**2).sum())
        cost = (distortion / (2 * width**2) + float(count @ price)) / cells.n
        steps += 1
        alive = np.arange(len(mean))
        if cost > best - TOLERANCE or steps == MOST_STEPS:
            dear = _not_worth_it(zero, mean, price, (count, total, square), width)
            if not dear.any():
                break
            alive, cost, steps = np.flatnonzero(~dear), math.inf, 0
        best = cost
        alive, borders = _regions(mean, price, width, alive)
        zero, edges = zero[alive], _edges(np.searchsorted(cells.centre, borders), cells)
    bits = float(count @ price) / math.log(2) + VALUE_BITS * int((~zero).sum())
    return Fit(cells.rms, width, mean, count / cells.n, math.sqrt(max(0.0, distortion) / cells.n), bits)


def _edges(inner: npt.NDArray[np.int64], cells: Cells) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], inner, [len(cells.centre)]])


def _regions(
    mean: Floats,  # (K,) rising
    price: Floats,  # (K,) -log mixing
    width: float,
    alive: npt.NDArray[np.int64],  # the components in use, rising
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The components that are the most responsible somewhere, and the borders between them.

    The log-joints of two components differ by a straight line. A component that its two neighbours overrule on both
    sides is therefore overruled everywhere.
    """
    while True:
        m, p = mean[alive], price[alive]
        borders = (m[1:] + m[:-1]) / 2 + width**2 * np.diff(p) / np.diff(m)
        overruled = borders[1:] <= borders[:-1]
        if not overruled.any():
            return alive, borders
        alive = alive[np.concatenate([[True], ~overruled, [True]])]


def _not_worth_it(
    zero: npt.NDArray[np.bool_], mean: Floats, price: Floats, sums: tuple[Floats, Floats, Floats], width: float
) -> npt.NDArray[np.bool_]:  # (K,)
    """Values whose bits in the codebook cost more than moving all of their weights to a neighbour."""
    count, total, square = sums

    def cost(mean: Floats, price: Floats) -> Floats:
        return (square - 2 * mean * total + count * mean**2) / (2 * width**2) + count * price

    moved = np.full(len(mean), math.inf)
    for step in (1, -1):
        neighbours = cost(np.roll(mean, step), np.roll(price, step))
        neighbours[0 if step == 1 else -1] = math.inf
        moved = np.minimum(moved, neighbours)
    lost = np.where(zero, math.inf, moved - cost(mean, price))
    beside = np.concatenate([[math.inf], lost, [math.inf]])  # of two neighbours, drop the cheaper one
    return (lost < VALUE_BITS * math.log(2)) & (lost < beside[:-2]) & (lost <= beside[2:])


def quantized(name: str, weights: Tensor, fitted: Fit) -> QuantizedTensor:
    """Assign every weight to its most responsible component, by the borders between components."""
    alive, borders = _regions(fitted.mean, -np.log(fitted.mixing), fitted.width, np.arange(len(fitted.mean)))
    means = torch.from_numpy(fitted.mean[alive] * fitted.rms).float()
    codebook, index_of = order_values(means)
    index_of = index_of.to(index_dtype(len(codebook)))
    edges = torch.from_numpy(borders * fitted.rms).float()
    indices = torch.empty(weights.numel(), dtype=index_of.dtype)
    for part, target in zip(weights.detach().reshape(-1).split(_CHUNK), indices.split(_CHUNK), strict=True):
        torch.index_select(index_of, 0, torch.bucketize(part.float(), edges, out_int32=True), out=target)
    return QuantizedTensor(name, tuple(weights.shape), weights.dtype, indices, codebook)


def with_norms(
    tensor: QuantizedTensor,
    weights: Tensor,  # that the tensor was quantized from
    magnitudes: Sequence[int],  # shape of the magnitudes: a size above 1 where each slice has its own norm
) -> QuantizedTensor:
    """The direction of a `weight_norm`, where no slice has become 0: its norm divides it, so the weight would be NaN.

    The largest weight of such a slice takes the nearest value other than 0.
    """
    own = [k for k, size in enumerate(magnitudes) if size > 1]
    order = [*own, *(k for k in range(len(tensor.shape)) if k not in own)]
    n = math.prod(tensor.shape[k] for k in own)
    indices = tensor.indices.clone()
    place = torch.arange(indices.numel()).reshape(tensor.shape).permute(order).reshape(n, -1)
    values = weights.detach().reshape(-1).float()[place]  # (slices, weights)
    dead = (indices[place] == 0).all(1) & (values != 0).any(1)
    if not dead.any():
        return tensor
    if len(tensor.codebook) == 1:
        raise ConfigError(
            f"tensor {tensor.name}: all of its weights would become 0, and its norm divides them; allow more bits, or "
            f"store it unchanged by the rule keep:{tensor.name}"
        )
    largest = values[dead].abs().argmax(1, keepdim=True)
    nearest = (values[dead].gather(1, largest) - tensor.codebook[1:]).abs().argmin(1) + 1
    indices[place[dead].gather(1, largest).flatten()] = nearest.to(indices.dtype)
    return dataclasses.replace(tensor, indices=indices)
