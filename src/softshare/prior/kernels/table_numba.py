"""The table on the CPU, compiled by numba: its grid and the lookup of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softshare.prior.kernels.sweep_numba import NO_TENSOR, Floats, as_float32, compiled, cut, in_threads, n_threads
from softshare.prior.kernels.table import (
    CAPACITY,
    CELLS,
    COUNT,
    FAR,
    FINENESS,
    LOW_BITS,
    MOST_BITS,
    MOST_COUNTED,
    SHARE,
    Grid,
    coarse_cells,
)

Ints = npt.NDArray[np.int32]
Doubles = npt.NDArray[np.float64]
BLOCK = 1024  # weights at a time: their places stay in the cache
_INSIDE = np.int32((1 << LOW_BITS) - 1)
_LOW_BITS, _CELLS = np.int32(LOW_BITS), np.int32(CELLS)
_ONE_WEIGHT, _SHARE = np.int64(1 << COUNT), np.float32(SHARE)


@compiled
def _look_up_part(
    w: Floats,
    cells: Ints,
    unit: np.float32,
    first: np.int32,
    last_bits: np.int32,
    score: Floats,
    grad: Floats,  # empty: not wanted
    add: bool,
    counts: npt.NDArray[np.int64],
) -> None:
    value, share = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    bits = value.view(np.int32)
    cell, inside, at = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32)
    for start in range(0, len(w), BLOCK):  # the loops are plain enough to be vectorized
        block = w[start : start + BLOCK]
        n = len(block)
        for i in range(n):
            value[i] = abs(block[i]) + unit
        for i in range(n):
            b = min(bits[i], last_bits)
            cell[i] = (b >> _LOW_BITS) - first + (_CELLS if block[i] < np.float32(0) else np.int32(0))
            inside[i] = b & _INSIDE
        for i in range(n):
            cell[i] = cells[cell[i]]
        for i in range(n):
            shift = cell[i] & np.int32(31)
            fine = inside[i] >> shift
            at[i] = (cell[i] >> np.int32(5)) + fine
            inside[i] -= fine << shift
            bits[i] = (np.int32(127) - shift) << np.int32(23)  # the float 2^-shift
        for i in range(n):
            share[i] = np.float32(inside[i]) * value[i]
        if len(grad) > 0:
            out = grad[start : start + BLOCK]
            if add:
                for i in range(n):
                    inner = score[at[i]]
                    out[i] += inner + share[i] * (score[at[i] + 1] - inner)
            else:
                for i in range(n):
                    inner = score[at[i]]
                    out[i] = inner + share[i] * (score[at[i] + 1] - inner)
        for i in range(n):
            counts[at[i]] += _ONE_WEIGHT + np.int64(np.int32(share[i] * _SHARE))


@compiled
def _fill(
    inner: Doubles, widths: Doubles, mean: Doubles, std: Doubles, bits: npt.NDArray[np.int64], cells: Ints
) -> Floats:
    """`make_grid_ref`, one coarse cell after the other."""
    n_cells = len(inner)
    for c in range(n_cells):
        low, high = min(inner[c], inner[c] + widths[c]), max(inner[c], inner[c] + widths[c])
        wanted = np.inf
        for j in range(len(mean)):
            wanted = min(wanted, max(std[j], max(low - mean[j], mean[j] - high) / FAR))
        bits[c] = min(max(math.ceil(math.log2(abs(widths[c]) * FINENESS / wanted)), 0), MOST_BITS)
    n = CAPACITY + 1
    while n > CAPACITY:
        n = 2
        for c in range(n_cells):
            n += 1 << bits[c]
        if n > CAPACITY:
            for c in range(n_cells):
                bits[c] = max(bits[c] - 1, 0)
    points = np.empty(n, np.float32)
    at = 0
    for c in range(n_cells):
        cells[c] = at << 5 | (LOW_BITS - bits[c])
        size = 1 << bits[c]
        for k in range(size + (c % CELLS == CELLS - 1)):
            points[at] = inner[c] + k * (widths[c] / size)
            at += 1
    return points


def make_grid(mean: Tensor, log_var: Tensor, reach: float) -> Grid:
    """`make_grid_ref` in a tenth of the time."""
    inner, widths = (t.numpy() for t in coarse_cells(reach, mean.device))
    bits, cells = np.empty(len(inner), np.int64), np.empty(len(inner), np.int32)
    std = torch.exp(0.5 * log_var.double())
    points = _fill(inner, widths, mean.double().numpy(), std.numpy(), bits, cells)
    return Grid(reach, torch.from_numpy(cells), torch.from_numpy(points))


def look_up(weights: Sequence[Tensor], grid: Grid, score: Tensor, grads: Sequence[Tensor] | None, add: bool) -> Tensor:
    """A `Lookup`. Counts are whole numbers, so neither the number of threads nor their order changes a bit."""
    parts, grad_parts = cut(weights), cut(grads or ())
    n_rows = max(n_threads(len(parts)), -(-sum(len(w) for w in weights) // MOST_COUNTED), 1)
    counts = np.zeros((n_rows, len(grid.points)), np.int64)
    cells, at_points = grid.cells.numpy(), score.float().numpy()
    unit, first, last_bits = np.float32(grid.unit), np.int32(grid.first), np.int32(grid.last_bits)

    def row(r: int) -> None:
        for k in range(r, len(parts), n_rows):
            w = parts[k].float().numpy()
            with as_float32(grad_parts[k] if grad_parts else NO_TENSOR, add) as out:
                _look_up_part(w, cells, unit, first, last_bits, at_points, out, add, counts[r])

    in_threads(row, n_rows)
    outer = (counts & (_ONE_WEIGHT - 1)).sum(0) / SHARE
    histogram = (counts >> COUNT).sum(0) - outer
    histogram[1:] += outer[:-1]
    return torch.from_numpy(histogram.astype(np.float32))
