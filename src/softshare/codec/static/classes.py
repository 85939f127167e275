"""The encoder's choice of tables: which rows, or which columns, have symbols of the same frequencies.

Rows are grouped so that the entropies of the groups add up to little: each row goes to the group whose frequencies code
it in the fewest bits, the frequencies follow from the rows, and so on. All of it works on counts and not on symbols.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from softshare.codec.adaptive.rangecoder import Bytes
from softshare.codec.static import layout, tables
from softshare.codec.static.counting import count_symbols, regroup
from softshare.codec.static.rans import BY_COLUMN, BY_ROW

TRIED = (2, 4, 8)  # tables
ROUNDS = 5
MOST_COUNTS = 1 << 25  # of rows times symbols; with more there is one table
TABLE_BYTES = 1.5  # of a frequency, about
BIT = 1 << 16  # units in which the bits of symbols are added
UNSEEN = 0.02  # added to each count, so that no row is impossible in any group


@dataclass(frozen=True, eq=False)
class Choice:
    axis: int
    classes: Bytes  # of each row or column; one 0 without an axis
    counts: npt.NDArray[np.int64]  # (tables, V)

    @property
    def bits(self) -> float:
        """Of the symbols, the classes and the tables, about."""
        n_tables = len(self.counts)
        own = 8 * TABLE_BYTES * float(np.count_nonzero(self.counts))
        own += layout.class_bits(n_tables) * len(self.classes) if self.axis else 0
        return float(sum(map(entropy, self.counts))) + own


def entropy(counts: npt.NDArray[np.int64]) -> float:
    """Bits of symbols with these counts."""
    some = counts[counts > 0].astype(np.float64)
    return float((some * np.log2(some.sum() / some)).sum())


def choose(
    symbols: Bytes,  # (rows * cols,)
    rows: int,
    cols: int,
    n_symbols: int,
) -> Choice:
    """The cheapest grouping that was found."""
    if (rows + cols) * n_symbols > MOST_COUNTS:
        return _together(np.bincount(symbols, minlength=n_symbols).astype(np.int64))
    by_row = np.zeros((rows, n_symbols), np.int32)
    by_column = np.zeros((cols, n_symbols), np.int32)
    count_symbols(symbols, cols, by_row, by_column)
    found = [_together(by_column.sum(0, dtype=np.int64))]
    for axis, counts in ((BY_ROW, by_row), (BY_COLUMN, by_column)):
        if len(counts) > 1:
            found += [_grouped(axis, counts, n) for n in TRIED if n <= len(counts)]
    return min(found, key=lambda choice: choice.bits)


def _together(counts: npt.NDArray[np.int64]) -> Choice:
    axis, classes = layout.no_axis()
    return Choice(axis, classes, counts[None])


def _grouped(axis: int, counts: npt.NDArray[np.int32], n_tables: int) -> Choice:
    """Rows in `n_tables` groups, at first those of about equal mean symbol: a codebook is ordered by magnitude."""
    mean = counts @ np.arange(counts.shape[1]) / np.maximum(1, counts.sum(1))
    classes = np.empty(len(counts), np.int64)
    classes[np.argsort(mean, kind="stable")] = np.arange(len(counts)) * n_tables // len(counts)
    sums = np.stack([counts[classes == k].sum(0, dtype=np.int64) for k in range(n_tables)])
    for _ in range(ROUNDS):
        seen = sums + UNSEEN
        bits = np.rint(BIT * np.log2(seen.sum(1, keepdims=True) / seen)).astype(np.int32)
        sums = np.zeros_like(sums)
        if not regroup(counts, bits, classes, sums):
            break
    used, classes = np.unique(classes, return_inverse=True)
    if len(used) == 1:
        return _together(sums[used[0]])
    return Choice(axis, classes.astype(np.uint8), sums[used])


def frequencies(choice: Choice) -> list[tables.Frequencies]:
    return [tables.normalized(counts) for counts in choice.counts]
