"""The same sweep by a table: exact at the points of a grid, linear between them, without an exponential per weight.

The prior is one function of one weight, and all weights share it. So the score is computed at the points of a grid, and
each weight's gradient is interpolated between the two points beside it. The two shares of the interpolation are added
to a histogram over the points. The loss, and the sums for the mixture's own gradients, are those of the points,
weighted by the histogram. The cost of a weight does not depend on the number of components.

The grid has fixed coarse cells. The bits of the float |w| + unit give the cell: its exponent and its first four binary
digits. Each coarse cell is cut into 2^bits fine ones, as many as the components near it need. docs/math.md bounds the
error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from softshare.prior.kernels.sweep import Sweep

FINENESS = 16  # no cell is wider than max(std_j, |x - mean_j| / FAR) / FINENESS, for every component j
FAR = 4
CAPACITY = 2**14  # points
OCTAVES = 12  # of |w| + unit, up to the reach
COARSE_BITS = 4  # 2^4 coarse cells in an octave
CELLS = OCTAVES << COARSE_BITS  # coarse cells of each sign; those of weights from 0 up come first
LOW_BITS = 23 - COARSE_BITS  # bits of a float32 that say where in its coarse cell it is
MOST_BITS = 14  # 2^14 fine cells in a coarse one: the capacity
SHARE = 2**16  # parts of one weight, which its two points divide between them
COUNT = 40  # one whole number for each cell: its number of weights times 2^40, plus their shares for the outer point
MOST_COUNTED = 2**22  # weights in one row, so that neither half overflows; of a sample of blocks, weights in all rows


@dataclass(frozen=True, eq=False)
class Grid:
    """Points from 0 outwards: first for weights from 0 up, then for weights below 0."""

    reach: float  # a power of two; a weight further out counts as one at the reach
    cells: Tensor  # (2 * CELLS,) int32: the coarse cell's first point << 5 | LOW_BITS - bits
    points: Tensor  # (G,) float32; unused ones at the end, if any, repeat the last

    @property
    def unit(self) -> float:
        return math.ldexp(self.reach, -OCTAVES)

    @property
    def first(self) -> int:
        """The coarse cell of a weight of 0: the bits of the float `unit`, shifted."""
        return _bits(self.unit) >> LOW_BITS

    @property
    def last_bits(self) -> int:
        """The bits of the largest float below the reach."""
        return _bits(self.reach) - 1


GridMaker = Callable[[Tensor, Tensor, float], Grid]  # means, logarithms of variances, reach
# From weights, a grid, scores at its points (G,), gradients or None, and whether to add to the gradients (else they are
# filled), to the number of weights at each point, (G,) float32.
Lookup = Callable[[Sequence[Tensor], Grid, Tensor, Sequence[Tensor] | None, bool], Tensor]


def reach_of(largest: float) -> float:
    """A power of two, at least four times the largest weight, so that weights can grow."""
    return math.ldexp(1.0, math.ceil(math.log2(max(4 * largest, 2.0**-100))))


def n_points(mean: Tensor, log_var: Tensor, reach: float) -> int:
    """The number of points of a grid as fine as the bound asks. No grid that is made has more than `CAPACITY`."""
    return int((1 << _bits_wanted(mean, log_var, reach).clamp(max=MOST_BITS + 1)).sum()) + 2


def make_grid_ref(
    mean: Tensor,  # (J,)
    log_var: Tensor,  # (J,)
    reach: float,
) -> Grid:
    """The definition: as fine as the bound asks, or coarser by the power of two that the capacity needs."""
    bits = _bits_wanted(mean, log_var, reach).clamp(max=MOST_BITS)
    coarser = torch.arange(MOST_BITS + 1, device=mean.device)[:, None]
    fits = (1 << (bits - coarser).clamp(min=0)).sum(1) + 2 <= CAPACITY
    bits = (bits - torch.argmax(fits.to(torch.int32))).clamp(min=0)
    sizes = 1 << bits
    sizes.view(2, CELLS)[:, -1] += 1  # the outer end of the last cell
    ends = torch.cumsum(sizes, 0)
    starts = ends - sizes
    at = torch.arange(int(ends[-1]), device=mean.device)
    cell = torch.searchsorted(ends, at, right=True)
    inner, widths = coarse_cells(reach, mean.device)
    points = inner[cell] + (at - starts[cell]) * (widths / (1 << bits))[cell]
    cells = (starts << 5 | (LOW_BITS - bits)).to(torch.int32)
    return Grid(reach, cells, points.to(torch.float32))


def _bits_wanted(mean: Tensor, log_var: Tensor, reach: float) -> Tensor:  # (2 * CELLS,) int64
    inner, widths = coarse_cells(reach, mean.device)
    low, high = torch.minimum(inner, inner + widths), torch.maximum(inner, inner + widths)
    distance = torch.maximum(low[:, None] - mean, mean - high[:, None])  # (2 * CELLS, J), negative inside the cell
    wanted = torch.maximum(torch.exp(0.5 * log_var.double()), distance / FAR).amin(1)
    return torch.ceil(torch.log2(widths.abs() * FINENESS / wanted)).clamp(min=0).to(torch.int64)


@cache
def coarse_cells(reach: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The end nearer to 0 of each coarse cell, and its width, which is negative for weights below 0; float64."""
    k = torch.arange(CELLS + 1, dtype=torch.float64)
    whole, part = k // 2**COARSE_BITS, k % 2**COARSE_BITS
    edges = reach / 2**OCTAVES * (2**whole * (1 + part / 2**COARSE_BITS) - 1)
    inner, widths = edges[:-1], edges.diff()
    return torch.cat([inner, -inner]).to(device), torch.cat([widths, -widths]).to(device)


def _bits(value: float) -> int:
    return int(torch.tensor(value, dtype=torch.float32).view(torch.int32))


def tabulated(exact: Sweep, grid_maker: GridMaker, look_up: Lookup, reach: float) -> Sweep:
    """The sweep by table, made of one backend's exact sweep, its grids and its lookup."""

    def sweep(
        weights: Sequence[Tensor],
        log_mixing: Tensor,
        mean: Tensor,
        log_var: Tensor,
        grads: Sequence[Tensor] | None,
        scale: Tensor | None = None,
        times: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        if times is not None:
            raise ValueError("times: expected None, because a table counts each weight once")
        grid = grid_maker(mean, log_var, reach)
        score = torch.empty_like(grid.points)
        exact([grid.points], log_mixing, mean, log_var, [score])
        if scale is not None:
            score *= scale
        counts = look_up(weights, grid, score, grads, scale is not None)
        return exact([grid.points], log_mixing, mean, log_var, None, None, [counts])

    return sweep
