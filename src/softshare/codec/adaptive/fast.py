"""The fast model of a large sparse tensor: one context for each weight, from the densities of its row and column.

docs/format.md 8.6 specifies it; nothing here may change without a new version of the format. It is two to three times
as fast as the full model (benchmarks/README.md), for some per cent more bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from softshare.codec.adaptive.full import (
    LEVELS,
    START,
    VALUE_CONTEXTS,
    VALUE_GIVEN,
    code_value,
    density_level,
    tree_depth,
    value_tables,
)
from softshare.codec.adaptive.logistic import PROBABILITY_BITS, STRETCH
from softshare.codec.adaptive.rangecoder import (
    COUNT_BITS,
    ESTIMATE_BITS,
    FLOOR,
    RANGE_BYTES,
    ROOM,
    Bytes,
    Coder,
    Ints,
    code_bit,
    grown,
    next_state,
)
from softshare.codec.compiled_coder import compiled
from softshare.codec.symbols import Indices

EVERY = 16  # rows (columns) between two updates of a column's (row's) level; its own non-zeros update it at once


@compiled
def _level(count: int, seen: int, density: int, origin: int) -> int:
    """Level of a row or column with `count` non-zeros of `seen` weights. The tensor's density counts as 4 weights."""
    return density_level(((count << 16) + 4 * density) // (seen + 4), origin)


@compiled
def code_fast(
    indices: Indices,  # (rows, cols) to encode, or zeros that decoding fills
    n_values: int,  # size of the codebook
    n_nonzero: int,
    place: Ints,  # (6,) row, column, non-zeros to come, and three facts of the row: where to go on
    mask_states: Ints,  # (4 * LEVELS * LEVELS,)
    value_states: Ints,
    value_weights: Ints,
    counts: npt.NDArray[np.int32],  # (cols,) zeros: non-zeros of each column
    levels: npt.NDArray[np.int8],  # (cols,) scratch: 4 * level of each column
    coder: Coder,
    decoding: bool,
    data: Bytes,
) -> Coder:
    """Code weights in order, row by row: is it zero, and if not, which value. Ends at the last non-zero, or at a block
    of EVERY weights for which the data may have no room.

    It is the caller who makes room: a loop in which `data` may become another array takes numba twice the time.
    """
    rows, cols = indices.shape
    depth = tree_depth(n_values)
    density = (n_nonzero << 16) // (rows * cols)
    origin = int(STRETCH[min(65535, density)])
    inputs = np.zeros(VALUE_GIVEN + VALUE_CONTEXTS, np.int64)
    contexts, slots = np.zeros(VALUE_CONTEXTS, np.int64), np.zeros(VALUE_CONTEXTS, np.int64)
    limit = len(data) + RANGE_BYTES if decoding else len(data) - EVERY * ROOM
    i, start, left = int(place[0]), int(place[1]), int(place[2])
    in_row, recent, last = int(place[3]), int(place[4]), int(place[5])
    while left > 0 and coder[2] <= limit:
        if start == 0:
            in_row, recent, last = 0, 0, 0
            if i < EVERY or i % EVERY == 0:
                for j in range(cols):
                    levels[j] = 4 * _level(int(counts[j]), i, density, origin)
        row_slot = 4 * LEVELS * _level(in_row, start, density, origin)
        n_left = (rows - i) * cols - start
        for j in range(start, min(cols, start + EVERY)):
            nonzero = 1
            if left < n_left:
                slot = row_slot + int(levels[j]) + recent
                state = mask_states[slot]
                nonzero, coder = code_bit(
                    1 if indices[i, j] != 0 else 0, state >> (COUNT_BITS + ESTIMATE_BITS - PROBABILITY_BITS),
                    coder, decoding, data,
                )  # fmt: skip
                mask_states[slot] = next_state(state, nonzero)
            n_left -= 1
            recent = (2 * recent + nonzero) & 3
            if nonzero == 0:
                continue
            contexts[1] = last
            contexts[3] = min(15, int(indices[i, j - 1])) if j > 0 else 0
            contexts[4] = j
            contexts[5] = levels[j] >> 2
            last, coder = code_value(
                int(indices[i, j]), n_values, depth, contexts, slots, value_states, value_weights, inputs,
                coder, decoding, data,
            )  # fmt: skip
            if decoding:
                indices[i, j] = last
            left -= 1
            if left == 0:
                break
            in_row += 1
            row_slot = 4 * LEVELS * _level(in_row, j + 1, density, origin)
            counts[j] += 1
            levels[j] = 4 * _level(int(counts[j]), i + 1, density, origin)
        start += EVERY
        if start >= cols:
            i, start = i + 1, 0
    place[0], place[1], place[2], place[3], place[4], place[5] = i, start, left, in_row, recent, last
    return coder


def run_fast(
    indices: Indices, n_values: int, n_nonzero: int, coder: Coder, decoding: bool, data: Bytes
) -> tuple[Bytes, Coder]:
    """`code_fast` with new tables, and with more room for the data where it needs it."""
    cols = indices.shape[1]
    initial = min((1 << ESTIMATE_BITS) - FLOOR, max(FLOOR, (n_nonzero << ESTIMATE_BITS) // indices.size))
    mask_states = np.full(4 * LEVELS * LEVELS, (initial << COUNT_BITS) | START, np.int64)
    tables = (mask_states, *value_tables(cols, n_values), np.zeros(cols, np.int32), np.zeros(cols, np.int8))
    place = np.array([0, 0, n_nonzero, 0, 0, 0])
    while True:
        coder = code_fast(indices, n_values, n_nonzero, place, *tables, coder, decoding, data)
        if decoding or place[2] == 0:
            return data, coder
        data = grown(data)
