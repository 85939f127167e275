"""How many bits each tensor of a checkpoint gets, without data.

A tensor multiplies all of the signal, whether it is large or small. So what counts is its error relative to its own
rows. If only the sum over the tensors counted, the step would grow with the square root of a tensor's size; if each
weight counted the same, it would not grow. The fourth root lies between them, and measures best. A tensor that is a
negligible part of the file is nearly exact, and the first layers are finer (docs/math.md, "Without data").
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from softshare.datafree.fit import Cells, cells_of
from softshare.datafree.grid import Grid, grid
from softshare.quantization.scales import exponents, factors

GROWTH = 0.25  # of the step, as a power of the size of a tensor
NEGLIGIBLE = 0.005  # of the weights: the smallest tensors, as many as have no more, have finer steps
FINER = 16.0  # times: four bits more
FIRST = 1 / 8  # of the weights that are not embeddings: first layers, whose errors pass through all others
FIRST_FINER = 2.0
LAST_FINER = 4.0  # the last layer, unless it has more than LAST of the weights: no other layer mends its errors
LAST = 1 / 16
EMBEDDINGS = re.compile(r"emb|wte|wpe")  # in the name of a table
SHORTEST = 32  # rows or columns that are shorter have no scales of their own
WIDEST, NARROWEST = 2.0**5, 2.0**-12  # steps in root mean squares
HALVINGS = 18  # of the range of steps, on a logarithmic scale
FEW = 256  # different values, among them 0: a tensor that has no more is quantized already
_SAMPLE = 1 << 14
_CHUNK = 1 << 18  # weights at a time
SCALE_BITS = 4  # of a scale in the file, about


@dataclass(frozen=True, eq=False)
class Part:
    """A shared tensor, and the magnitudes of its weights in units of its scales."""

    name: str
    cells: Cells
    rows: Tensor | None = None  # exponents
    columns: Tensor | None = None
    relative: float = 1.0  # its step, relative to that of the others
    scalable: bool = False  # whether scales are allowed, even if without data it has none
    unit: float | None = None  # that an error counts against, if not the root mean square of the weights themselves

    @property
    def n(self) -> int:
        return self.cells.n

    def grid(self, step: float) -> Grid:
        """`step` is that of a tensor whose `relative` is 1, in root mean squares."""
        return grid(self.cells, step * self.relative * (self.cells.rms if self.unit is None else self.unit))

    def bits(self, step: float) -> float:
        scales = sum(len(s) for s in (self.rows, self.columns) if s is not None)
        return self.grid(step).bits + SCALE_BITS * scales


def relatives(sizes: Mapping[str, int], first_finer: float = FIRST_FINER) -> dict[str, float]:
    """The step of each tensor, relative to that of the others. Sizes are in the order of the network.

    A table of embeddings counts as a tensor of the mean size: only its rows are used, and it may be the head too.
    """
    small = negligible(sizes.values())
    table = {name for name in sizes if EMBEDDINGS.search(name)}
    within = sum(n for name, n in sizes.items() if name not in table)
    usual = sum(n * n for name, n in sizes.items() if name not in table) / max(1, within)
    last = next((name for name in reversed(list(sizes)) if name not in table), None) if len(sizes) > 1 else None
    found, before = {}, 0
    for name, n in sizes.items():
        step = (usual if name in table and usual else float(n)) ** GROWTH
        if n <= small:
            step /= FINER
        elif name == last and n <= LAST * sum(sizes.values()):
            step /= LAST_FINER
        elif name not in table and before < FIRST * within and before + n < 2 * FIRST * within:
            step /= first_finer
        before += 0 if name in table else n
        found[name] = step
    return found


def negligible(sizes: Iterable[int]) -> int:
    """The largest size such that all tensors up to it are a negligible part of the network together."""
    known = list(sizes)
    limit, largest = NEGLIGIBLE * sum(known), 0
    for size in sorted(set(known)):
        if sum(n for n in known if n <= size) > limit:
            break
        largest = size
    return largest


def part_of(
    name: str,
    weights: Tensor,
    scaled: bool = True,
    of: Tensor | None = None,  # if the weights are differences, what they are differences of
    normed: bool = False,  # whether the network has batch norm
) -> Part:
    """With scales for the rows, by their root mean square, and for the columns by the square root of what is left.

    A convolution of a network with batch norm has none: all of its channels have inputs and outputs of about one size.
    """
    known = weights if of is None else of
    matrix = known.reshape(len(known), -1) if known.dim() > 1 and known.numel() else known.reshape(1, -1)
    rows = columns = None
    scalable = scaled and bool(known.any()) and not _few_values(known)
    if scalable and not (normed and known.dim() > 2 and known[0, 0].numel() > 1):
        if matrix.shape[1] >= SHORTEST:
            rows = exponents(rms(matrix, 1))
        if matrix.shape[0] >= SHORTEST:
            left = matrix if rows is None else in_units(matrix, rows, None).view_as(matrix)
            columns = exponents(rms(left, 0).sqrt())
    unit = None if of is None else math.sqrt(float(in_units(of, rows, columns).double().square().mean()))
    return Part(name, cells_of(in_units(weights, rows, columns).abs()), rows, columns, scalable=scalable, unit=unit)


def _few_values(weights: Tensor) -> bool:
    """Whether the weights are quantized already. Scales would tear their values apart."""
    flat = weights.reshape(-1)
    return len(flat[:_SAMPLE].unique()) <= FEW and len(flat.unique()) <= FEW


def rms(matrix: Tensor, dim: int) -> Tensor:
    """Where all are zero, the mean over the others."""
    parts = [part.double().square().sum(dim) for part in matrix.split(_rows_at_a_time(matrix))]
    square = (torch.cat(parts) if dim == 1 else torch.stack(parts).sum(0)) / matrix.shape[dim]
    return torch.where(square > 0, square, square.mean()).sqrt()


def in_units(weights: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """The weights over their scales, as (n,) float32."""
    if rows is None and columns is None:
        return weights.reshape(-1).float()
    matrix = weights.reshape(len(weights), -1)
    found = torch.empty(matrix.shape)
    n = _rows_at_a_time(matrix)
    for start in range(0, len(matrix), n):
        part, own = matrix[start : start + n], None if rows is None else rows[start : start + n]
        torch.div(part.float(), factors(own, columns, (part.shape[0], part.shape[1])), out=found[start : start + n])
    return found.reshape(-1)


def _rows_at_a_time(matrix: Tensor) -> int:
    return max(1, _CHUNK // max(1, matrix.shape[1]))


def step_for(parts: Iterable[Part], bits: float) -> float:
    """The narrowest step for which all parts together take at most these bits."""
    known = list(parts)
    below, above = NARROWEST / max((p.relative for p in known), default=1.0), WIDEST
    for _ in range(HALVINGS):
        middle = math.sqrt(below * above)
        fits = sum(p.bits(middle) for p in known) <= bits
        below, above = (below, middle) if fits else (middle, above)
    return above


def stages(parts: Mapping[str, Part]) -> list[list[str]]:
    """Names, the smallest tensors first, in groups that end at about a tenth, a third and two thirds of all weights.

    Tensors of zeros come before all others: no step changes what they take.
    """
    order = sorted(parts, key=lambda name: (parts[name].cells.rms > 0, parts[name].n, name))
    total = sum(p.n for p in parts.values())
    found: list[list[str]] = [[], [], [], []]
    seen = 0
    for name in order[:-1]:
        seen += parts[name].n
        found[sum(seen > share * total for share in (0.1, 0.33, 0.67))].append(name)
    found[-1].append(order[-1])
    return [names for names in found if names]
