"""Quantize weights to the multiples of one step, by distortion and rate, without a loss of scale.

Entropy-coded, an even grid is as good as any at two bits and more, and no weight moves further than a step. The borders
between levels minimize distortion + price x bits. That moves weights towards 0, so a network would fade from layer to
layer. All values are therefore stretched by one factor, the `gain`: then their product with the weights is the
weights' own square (docs/math.md, "Without data").
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from softshare.datafree.fit import Cells, Floats
from softshare.quantization.assignment import order_values
from softshare.quantization.quantized import index_dtype

PRICE = 2 * np.log(2) / 12  # of a bit, in squared steps: what an even grid pays for one at a high rate
FARTHEST = 0.1  # steps that a border may move; more saves bits but costs more at the outputs than it saves
MOST_GAIN = 1.5  # below about half a bit a weight, a larger one would add more noise than it restores
ROUNDS = 4  # of borders, then counts
MOST_LEVELS = 1 << 14  # other than 0, of each sign
VALUE_BITS = 16  # of a value of the codebook in the file
_CHUNK = 1 << 20  # weights at a time


@dataclass(frozen=True, eq=False)
class Grid:
    borders: Floats = field(repr=False)  # (K,) rising magnitudes; weights above the last one are at level K
    values: Floats = field(repr=False)  # (K + 1,) the magnitude that each level stands for, from 0
    bits: float  # order-0 entropy of all indices, plus the codebook


def grid(
    cells: Cells,  # of the weights' magnitudes
    step: float,
) -> Grid:
    """The levels of a tensor, at about the multiples of a step. A level's value is the mean of its weights, stretched.

    So weights that have few values already keep them, at a step that tells them apart.
    """
    if cells.rms == 0:
        return Grid(np.zeros(0), np.zeros(1), 0.0)
    centre = cells.centre * cells.rms
    step = max(step, float(centre[-1]) / MOST_LEVELS)
    middle: Floats = step * np.arange(0.5, round(float(centre[-1]) / step), dtype=np.float64)
    borders = middle
    for _ in range(ROUNDS):
        count, _, _ = _by_level(cells, centre, borders)
        shift: Floats = np.clip(PRICE * np.diff(_level_bits(count + 0.5)) / 2, 0, FARTHEST)
        borders = np.maximum.accumulate(np.asarray(middle + shift * step, np.float64))
    count, total, square = _by_level(cells, centre, borders)
    value = np.where(count > 0, total * cells.rms / np.maximum(count, 1), np.arange(len(count)) * step)
    value[0] = 0.0
    product = float(value @ total) * cells.rms
    gain = min(MOST_GAIN, float(square.sum()) * cells.rms**2 / product) if product > 0 else 1.0
    used = count > 0
    entropy = float(count[used] @ _level_bits(count)[used])
    return Grid(borders, value * gain, entropy + VALUE_BITS * 2 * int(used[1:].sum()))


def _by_level(cells: Cells, centre: Floats, borders: Floats) -> Floats:
    """(3, K + 1) number, sum and sum of squares of the weights at each level, in the units of the cells."""
    edges = np.concatenate([[0], np.searchsorted(centre, borders), [len(centre)]])
    found: Floats = np.diff(cells.sums[:, edges])
    return found


def _level_bits(count: Floats) -> Floats:
    """Bits of an index at each level. A weight at a level other than 0 has a sign too."""
    with np.errstate(divide="ignore"):
        bits: Floats = -np.log2(count / count.sum())
    bits[1:] += 1
    return bits


def levels(
    weights: Tensor,  # (n,) in the units of the grid
    found: Grid,
) -> tuple[Tensor, Tensor]:  # (n,) indices, (K,) codebook
    """The index of each weight in a codebook of the values that occur."""
    borders = torch.from_numpy(found.borders).float()
    signed = torch.empty(weights.numel(), dtype=torch.int16)
    for part, target in zip(weights.split(_CHUNK), signed.split(_CHUNK), strict=True):
        level = torch.bucketize(part.abs().float(), borders, out_int32=True)
        target.copy_(torch.where(part < 0, -level, level))
    return indexed(signed, found.values)


def indexed(
    signed: Tensor,  # (n,) int16: a level and a sign
    values: Floats,  # magnitudes of the levels
) -> tuple[Tensor, Tensor]:  # (n,) indices, (K,) codebook
    """Signed levels as indices into a codebook of those that occur."""
    low, high = (int(v) for v in signed.aminmax()) if signed.numel() else (0, 0)
    low, high = min(low, 0), max(high, 0)
    counts = torch.zeros(high - low + 1, dtype=torch.int64)
    for part in signed.split(_CHUNK):
        counts += (part.int() - low).bincount(minlength=len(counts))
    counts[-low] = max(1, int(counts[-low]))  # the codebook has a zero
    used = counts.nonzero()[:, 0]
    level = used + low
    codebook, index_of = order_values((torch.from_numpy(values)[level.abs()] * level.sign()).float())
    table = torch.zeros(len(counts), dtype=index_dtype(len(codebook)))
    table[used] = index_of.to(table.dtype)
    indices = torch.empty(signed.numel(), dtype=table.dtype)
    for part, target in zip(signed.split(_CHUNK), indices.split(_CHUNK), strict=True):
        torch.index_select(table, 0, part.int() - low, out=target)
    return indices, codebook
