"""The table on the GPU, in Triton: its grid and the lookup of weights.

Interpolation takes little longer than reading the weights and writing the gradient. Counting takes seven times as long:
it needs an atomic addition of a whole number for each weight. With more than `MOST_COUNTED` weights, therefore, only a
sample of the blocks is counted and stands for all blocks; each call takes another sample. The gradient of a weight is
never estimated. The loss and the mixture's own gradients are then estimates. For a component, their relative error is
about one over the root of its counted weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from softshare.prior.kernels import table as table
from softshare.prior.kernels.sweep_triton import OPTIONS
from softshare.prior.kernels.table import Grid

BLOCK = 2048
COUNT_PROGRAMS = 1056
ROWS = 64  # rows of counts, so that programs do not wait for each other
LEAST_BLOCKS = 64  # counted of each tensor that has them

CAPACITY, CELLS = tl.constexpr(table.CAPACITY), tl.constexpr(table.CELLS)
CELLS_OF_OCTAVE = tl.constexpr(1 << table.COARSE_BITS)
FINENESS, FAR, MOST_BITS = tl.constexpr(table.FINENESS), tl.constexpr(table.FAR), tl.constexpr(table.MOST_BITS)
LOW_BITS, INSIDE = tl.constexpr(table.LOW_BITS), tl.constexpr((1 << table.LOW_BITS) - 1)
COUNT, ONE_WEIGHT = tl.constexpr(table.COUNT), tl.constexpr(1 << table.COUNT)
SHARE = tl.constexpr(float(table.SHARE))


@triton.jit
def _coarse_cell(c, unit):
    """The end nearer to 0 of a coarse cell, and its width. Both are negative in the cells of weights below 0."""
    k = c % CELLS
    octave = tl.exp2((k // CELLS_OF_OCTAVE).to(tl.float64)) * unit
    inner = octave * (1.0 + (k % CELLS_OF_OCTAVE).to(tl.float64) / CELLS_OF_OCTAVE) - unit
    width = octave / CELLS_OF_OCTAVE
    return tl.where(c < CELLS, inner, -inner), tl.where(c < CELLS, width, -width)


@triton.jit
def _cut_cells(mean_ptr, log_var_ptr, cells_ptr, unit, components, WIDTH: tl.constexpr):
    """The first point and the bits of every coarse cell, as in `make_grid_ref`, in one program."""
    c = tl.arange(0, WIDTH)
    inner, width = _coarse_cell(c, unit)
    low, high = tl.minimum(inner, inner + width), tl.maximum(inner, inner + width)
    wanted = tl.full([WIDTH], float("inf"), tl.float64)
    for j in range(components):
        mean = tl.load(mean_ptr + j).to(tl.float64)
        std = tl.exp(0.5 * tl.load(log_var_ptr + j).to(tl.float64))
        wanted = tl.minimum(wanted, tl.maximum(std, tl.maximum(low - mean, mean - high) / FAR))
    bits = tl.ceil(tl.log2(tl.abs(width) * FINENESS / wanted))
    bits = tl.minimum(tl.maximum(bits, 0.0), MOST_BITS).to(tl.int32)
    real = c < 2 * CELLS
    for _ in range(MOST_BITS):
        too_many = tl.sum(tl.where(real, 1 << bits, 0), 0) + 2 > CAPACITY
        bits = tl.maximum(bits - too_many.to(tl.int32), 0)
    sizes = (1 << bits) + (c % CELLS == CELLS - 1).to(tl.int32)  # with the outer end of the last cell
    starts = tl.cumsum(sizes, 0) - sizes
    tl.store(cells_ptr + c, starts << 5 | (-bits + LOW_BITS), mask=real)


@triton.jit
def _fill_points(cells_ptr, points_ptr, unit, BLOCK: tl.constexpr):
    """One program for each coarse cell. The last program repeats its last point up to the capacity."""
    c = tl.program_id(0)
    cell = tl.load(cells_ptr + c)
    start, size = cell >> 5, 1 << (-(cell & 31) + LOW_BITS)
    inner, width = _coarse_cell(c, unit)
    last = c % CELLS == CELLS - 1
    n = tl.where(c == 2 * CELLS - 1, CAPACITY - start, size + last.to(tl.int32))
    for k in range(0, n, BLOCK):
        i = k + tl.arange(0, BLOCK)
        x = inner + tl.minimum(i, size).to(tl.float64) * (width / size)
        tl.store(points_ptr + start + i, x.to(tl.float32), mask=i < n)


def make_grid(mean: Tensor, log_var: Tensor, reach: float) -> Grid:
    """`make_grid_ref` in two launches, with `CAPACITY` points."""
    cells = torch.empty(2 * table.CELLS, dtype=torch.int32, device=mean.device)
    grid = Grid(reach, cells, torch.empty(table.CAPACITY, device=mean.device))
    width = triton.next_power_of_2(2 * table.CELLS)
    _cut_cells[(1,)](mean.contiguous(), log_var.contiguous(), cells, grid.unit, len(mean), WIDTH=width, **OPTIONS)
    _fill_points[(2 * table.CELLS,)](cells, grid.points, grid.unit, BLOCK=128, num_warps=1, **OPTIONS)
    return grid


@triton.jit
def _place(w, cells_ptr, unit, first, last_bits):
    """The point beside a weight on the side of 0, and the weight's share of the way to the next point."""
    bits = tl.minimum((tl.abs(w) + unit).to(tl.int32, bitcast=True), last_bits)
    cell = tl.load(cells_ptr + (bits >> LOW_BITS) - first + tl.where(w < 0.0, CELLS, 0))
    shift = cell & 31
    inside = bits & INSIDE
    fine = inside >> shift
    share = (inside - (fine << shift)).to(tl.float32) * ((127 - shift) << 23).to(tl.float32, bitcast=True)
    return (cell >> 5) + fine, share


@triton.jit
def _pair_up(score_ptr, pairs_ptr, BLOCK: tl.constexpr):
    """Each point's score, and the step to the next point's score, side by side."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(score_ptr + i)
    tl.store(pairs_ptr + 2 * i, score)
    tl.store(pairs_ptr + 2 * i + 1, tl.load(score_ptr + i + 1, mask=i + 1 < CAPACITY, other=0.0) - score)


@triton.jit
def _interpolate(
    w_ptr, grad_ptr, cells_ptr, pairs_ptr, unit, first, last_bits, n, ADD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    w = tl.load(w_ptr + i, mask=live, other=0.0).to(tl.float32)
    at, share = _place(w, cells_ptr, unit, first, last_bits)
    pair = tl.load(pairs_ptr + at)  # two floats in one load
    inner = pair.to(tl.int32).to(tl.float32, bitcast=True)
    step = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    grad = inner + share * step
    if ADD:
        grad += tl.load(grad_ptr + i, mask=live, other=0.0).to(tl.float32)
    tl.store(grad_ptr + i, grad, mask=live)


@triton.jit(do_not_specialize=["first_row", "stride"])
def _count(
    w_ptr, counts_ptr, cells_ptr, unit, first, last_bits, n, n_rows, first_row, start_ptr, stride, BLOCK: tl.constexpr
):  # fmt: skip
    program = tl.program_id(0)
    offset = (tl.load(start_ptr) * stride).to(tl.int32)
    row = counts_ptr + (program + first_row) % n_rows * CAPACITY
    for block in range(offset + program * stride, tl.cdiv(n, BLOCK), tl.num_programs(0) * stride):
        i = block * BLOCK + tl.arange(0, BLOCK)
        live = i < n
        w = tl.load(w_ptr + i, mask=live, other=0.0).to(tl.float32)
        at, share = _place(w, cells_ptr, unit, first, last_bits)
        one = (share * SHARE).to(tl.int64) + ONE_WEIGHT
        tl.atomic_add(row + at, stride * one, mask=live, sem="relaxed")


@triton.jit
def _unpack(counts_ptr, out_ptr, n_rows, BLOCK: tl.constexpr):
    """Weights at each point: those of its own cell less their shares, plus the shares of the cell before it."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float64)
    for row in range(n_rows):
        own = tl.load(counts_ptr + row * CAPACITY + i)
        before = tl.load(counts_ptr + row * CAPACITY + i - 1, mask=i > 0, other=0)
        shares = (before & (ONE_WEIGHT - 1)) - (own & (ONE_WEIGHT - 1))
        total += (own >> COUNT).to(tl.float64) + shares.to(tl.float64) / SHARE
    tl.store(out_ptr + i, total.to(tl.float32))


def look_up(weights: Sequence[Tensor], grid: Grid, score: Tensor, grads: Sequence[Tensor] | None, add: bool) -> Tensor:
    """A `Lookup`. Counts are whole numbers, so the order of additions changes nothing."""
    weights_and_grads = [(w, g) for w, g in zip(weights, grads or weights, strict=True) if len(w)]
    place = (grid.unit, grid.first, grid.last_bits)
    if grads is not None:
        pairs = torch.empty(table.CAPACITY, 2, device=score.device)
        _pair_up[(table.CAPACITY // BLOCK,)](score, pairs, BLOCK=BLOCK, **OPTIONS)
        for w, grad in weights_and_grads:
            arguments = (w, grad, grid.cells, pairs.view(torch.int64), *place, len(w))
            _interpolate[(triton.cdiv(len(w), BLOCK),)](*arguments, ADD=add, BLOCK=BLOCK, **OPTIONS)

    n = sum(len(w) for w, _ in weights_and_grads)
    n_rows = max(ROWS, -(-2 * n // table.MOST_COUNTED))
    counts = torch.zeros(n_rows, table.CAPACITY, dtype=torch.int64, device=score.device)
    one_in = max(1, -(-n // table.MOST_COUNTED))
    start = (torch.rand if one_in > 1 else torch.zeros)((), device=score.device)  # on the GPU, for captured steps too
    for k, (w, _) in enumerate(weights_and_grads):
        blocks = triton.cdiv(len(w), BLOCK)
        stride = max(1, min(one_in, blocks // LEAST_BLOCKS))
        programs = (min(COUNT_PROGRAMS, triton.cdiv(blocks, stride)),)
        _count[programs](w, counts, grid.cells, *place, len(w), n_rows, k, start, stride, BLOCK=BLOCK, **OPTIONS)
    histogram = torch.empty_like(grid.points)
    _unpack[(table.CAPACITY // 128,)](counts, histogram, n_rows, BLOCK=128, **OPTIONS)
    return histogram
