"""Repeated blocks of a network as one row: layers.0.weight to layers.11.weight become layers.{0-11}.weight x12."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softshare.codec import TensorInfo

LEAST = 3  # tensors in a row that stands for several
MOST_NUMBERS, MOST_DIGITS = 8, 9  # in a name that folds: names come from files


@dataclass(frozen=True)
class Row:
    """One tensor, or several of one kind and one shape. Numbers are sums over them."""

    name: str
    tensors: tuple[TensorInfo, ...]

    @property
    def n_bytes(self) -> int:
        return sum(t.n_bytes for t in self.tensors)

    @property
    def n(self) -> int | None:
        counts = [t.n for t in self.tensors if t.n is not None]
        return sum(counts) if len(counts) == len(self.tensors) else None

    @property
    def n_nonzero(self) -> int | None:
        """None if one of them is kept as it is, because a header does not count there."""
        counts = [t.n_nonzero for t in self.tensors if t.n_nonzero is not None]
        return sum(counts) if len(counts) == len(self.tensors) else None


def unfolded(tensors: Iterable[TensorInfo]) -> list[Row]:
    """A row for each tensor. One without a name has its number."""
    return [Row(t.name if t.name is not None else f"#{k}", (t,)) for k, t in enumerate(tensors)]


def folded(tensors: Iterable[TensorInfo]) -> list[Row]:
    """The rows in the order of their first tensors. Tensors fold if only the numbers in their names differ."""
    rows = unfolded(tensors)
    place = {id(row.tensors[0]): k for k, row in enumerate(rows)}
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(_pattern(row), []).append(row)
    found = [one for group in groups.values() for one in _fold(group)]
    return sorted(found, key=lambda row: place[id(row.tensors[0])])


def _pattern(row: Row) -> object:
    """The same for tensors that may fold. A name with very many numbers is not a block's."""
    (tensor,) = row.tensors
    parts = ["#" if _is_number(part) else part for part in row.name.split(".")]
    if tensor.name is None or parts.count("#") > MOST_NUMBERS:
        return row.name
    return tuple(parts), tensor.kind, tensor.shape


def _is_number(part: str) -> bool:
    return len(part) <= MOST_DIGITS and part.isascii() and part.isdecimal() and (part == "0" or part[0] != "0")


def _fold(rows: list[Row]) -> list[Row]:
    """One row if the numbers in the names are a whole grid, otherwise the rows of each first number that differs."""
    if len(rows) < LEAST:
        return rows
    columns = list(zip(*(row.name.split(".") for row in rows), strict=True))
    differing = {k: sorted({int(part) for part in column}) for k, column in enumerate(columns) if len({*column}) > 1}
    if math.prod(map(len, differing.values())) == len(rows):
        parts = [f"{{{_ranges(differing[k])}}}" if k in differing else column[0] for k, column in enumerate(columns)]
        return [Row(f"{'.'.join(parts)} x{len(rows)}", tuple(t for row in rows for t in row.tensors))]
    first = min(differing)
    apart: dict[str, list[Row]] = {}
    for row in rows:
        apart.setdefault(row.name.split(".")[first], []).append(row)
    return [one for group in apart.values() for one in _fold(group)]


def _ranges(numbers: Sequence[int]) -> str:
    """'0-3,5' for 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
