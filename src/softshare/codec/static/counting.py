"""Counts of symbols by row and by column, and the groups that code them in the fewest bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from softshare.codec.adaptive.rangecoder import Bytes
from softshare.codec.compiled_coder import compiled


@compiled
def count_symbols(
    symbols: Bytes,  # (rows * cols,)
    cols: int,
    by_row: npt.NDArray[np.int32],  # (rows, V) zeros
    by_column: npt.NDArray[np.int32],  # (cols, V) zeros
) -> None:
    """How often each row and each column has each symbol."""
    row, col = 0, 0
    for i in range(len(symbols)):
        symbol = int(symbols[i])
        by_row[row, symbol] += 1
        by_column[col, symbol] += 1
        col += 1
        if col == cols:
            row, col = row + 1, 0


@compiled
def regroup(
    counts: npt.NDArray[np.int32],  # (rows or columns, V)
    bits: npt.NDArray[np.int32],  # (groups, V) that a symbol costs in each group, in units of 2^-16
    classes: npt.NDArray[np.int64],  # (rows or columns,) the group of each; replaced by the cheapest
    sums: npt.NDArray[np.int64],  # (groups, V) zeros; becomes the counts of each group
) -> bool:
    """Whether any row or column has changed its group. Integers alone, so that every machine finds the same."""
    n_groups, n_symbols = bits.shape
    changed = False
    for i in range(len(counts)):
        best, least = 0, -1
        for group in range(n_groups):
            total = 0
            for symbol in range(n_symbols):
                total += int(counts[i, symbol]) * int(bits[group, symbol])
            if group == 0 or total < least:
                best, least = group, total
        if best != classes[i]:
            classes[i] = best
            changed = True
        for symbol in range(n_symbols):
            sums[best, symbol] += counts[i, symbol]
    return changed
