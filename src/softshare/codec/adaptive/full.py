"""The full model of a sparse tensor: nine mixed predictions say where the non-zeros are, six contexts say their values.

docs/format.md 8.4 and 8.5 specify it; nothing here may change without a new version of the format. benchmarks/README.md
has its figures. On trained LeNets, none of these earned more than 0.1%: sets of weights chosen by a context, an
adaptive map of the final probability, confidences, the transposed scan, the codebook's signs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from softshare.codec.adaptive.logistic import NAT, STRETCH
from softshare.codec.adaptive.rangecoder import (
    COUNT_BITS,
    ESTIMATE_BITS,
    FLOOR,
    INDEX_SHIFT,
    LAST,
    RANGE_BYTES,
    ROOM,
    UNIT,
    Bytes,
    Coder,
    Ints,
    code_mixed,
    grown,
    learned,
)
from softshare.codec.compiled_coder import compiled
from softshare.codec.symbols import Indices

Row = npt.NDArray[np.int32]

LEVELS = 9  # of a density: one within 1/2 nat of the tensor's, and 4 each below and above, a nat apart
RUN_LEVELS = 12  # of the number of zeros since the last non-zero, by its bit length
MASK_CONTEXTS, MASK_GIVEN, MASK_SLOTS = 5, 4, 512  # of "is it zero": contexts, given inputs, slots of a context
VALUE_CONTEXTS, VALUE_GIVEN = 6, 1  # of a bit of the index
MOST_VALUE_SLOTS = 1 << 16
START = 2  # uses that a density starts with: the tensor's density counts as 3.5 weights
RECENT = 16  # weights, about, that a row's recent density follows
CONTEXT_WEIGHT = UNIT * 3 // 20  # of a prediction at the start; the base starts at 1
VALUE_RATE = UNIT // 64  # at which the weights of values learn
# The learning rate for the weights of "is it zero" falls from 0.04 to 0.002 over 19,000 decisions, in steps of 128.
MASK_RATES = np.array([max(UNIT // 500, UNIT * 40 // (1000 + 128 * k)) for k in range(150)], np.int32)


@compiled
def density_level(
    density: int,  # in 2^-16
    origin: int,  # log-odds of the tensor's density
) -> int:
    """The level, 0 to LEVELS - 1, by the distance of log-odds."""
    distance = int(STRETCH[min(65535, density)]) - origin
    return min(LEVELS - 1, max(0, (distance + NAT // 2 + NAT * (LEVELS // 2)) // NAT))


@compiled
def tree_depth(n_values: int) -> int:
    """The number of decisions that tell the values 1 to n_values - 1 apart."""
    depth = 0
    while (1 << depth) < n_values - 1:
        depth += 1
    return depth


@compiled
def code_value(
    index: int,  # to encode; ignored when decoding
    n_values: int,
    depth: int,
    contexts: Ints,  # (VALUE_CONTEXTS,) the first is 0
    slots: Ints,  # (VALUE_CONTEXTS,) scratch
    states: Ints,  # (VALUE_CONTEXTS * slots of a context,)
    weights: Ints,  # (depth, VALUE_GIVEN + VALUE_CONTEXTS)
    inputs: Ints,  # scratch
    coder: Coder,
    decoding: bool,
    data: Bytes,
) -> tuple[int, Coder]:
    """Code a non-zero's index, from 1 to n_values - 1, by the bits of index - 1 from the highest."""
    n_slots = len(states) // VALUE_CONTEXTS
    value = 0
    for level in range(depth):
        half = 1 << (depth - 1 - level)
        node = (1 << level) + value
        value = 2 * value
        if (value + 1) * half >= n_values - 1:  # the upper half holds no value
            continue
        for k in range(VALUE_CONTEXTS):
            slots[k] = k * n_slots + ((node + (contexts[k] << depth)) & (n_slots - 1))
        inputs[0] = int(STRETCH[states[slots[0]] >> (COUNT_BITS + INDEX_SHIFT)])
        bit, coder = code_mixed(
            ((index - 1) // half) & 1, inputs, VALUE_GIVEN, slots, states, weights[level], VALUE_RATE,
            coder, decoding, data,
        )  # fmt: skip
        value += bit
    return value + 1, coder


@compiled
def _nearest(row: Row, at: int, period: int) -> tuple[int, int]:
    """The first and the second non-zero among six neighbours, nearest first; 0 if there is none."""
    first = 0
    for k in range(6):
        lag = (1, period, period + 1, period - 1, 2, 2 * period)[k]
        if (period > 0 or k == 0 or k == 4) and row[at - lag] != 0:
            if first != 0:
                return first, int(row[at - lag])
            first = int(row[at - lag])
    return first, 0


@compiled
def code_full(
    indices: Indices,  # (rows, cols) to encode, or zeros that decoding fills
    period: int,  # length of a line if a row is an image, the distance of the neighbour above; 0 if not; never 1
    n_values: int,  # size of the codebook
    n_nonzero: int,
    mask_states: Ints,
    mask_weights: Ints,
    value_states: Ints,
    value_weights: Ints,
    row: Row,  # (2 max(1, period) + cols,) zeros: a margin, then the indices of this row so far
    column: Row,  # the same and a second margin, all at the tensor's density: the density of each column so far
    coder: Coder,
    decoding: bool,
    data: Bytes,
) -> tuple[Bytes, Coder]:
    """Code every weight in order, row by row: is it zero, and if not, which value. Ends at the last non-zero."""
    rows, cols = indices.shape
    depth = tree_depth(n_values)
    initial = int(column[0])
    origin = int(STRETCH[initial >> INDEX_SHIFT])
    inputs = np.zeros(MASK_GIVEN + MASK_CONTEXTS, np.int64)
    mask_slots = np.zeros(MASK_CONTEXTS, np.int64)
    contexts, value_slots = np.zeros(VALUE_CONTEXTS, np.int64), np.zeros(VALUE_CONTEXTS, np.int64)
    margin = 2 * max(1, period)
    left, n_left, n_decided = n_nonzero, rows * cols, 0
    for i in range(rows):
        in_row, recent, run, run_level, line, in_line = initial, initial, 0, 0, 0, 0
        for j in range(cols):
            if left == 0 or (decoding and coder[2] > len(data) + RANGE_BYTES):
                return data, coder
            if not decoding and coder[2] + ROOM > len(data):
                data = grown(data)
            at = margin + j
            here = int(column[at])
            column_level = density_level(here >> INDEX_SHIFT, origin)
            nonzero = 1
            if left < n_left:
                left1, left2 = 1 if row[at - 1] != 0 else 0, 1 if row[at - 2] != 0 else 0
                around = (2 * here + int(column[at - 1]) + int(column[at + 1])) >> 2
                above, above_left, above_right, above2 = 0, 0, 0, 0
                if period > 0:
                    around = (2 * around + int(column[at - period]) + int(column[at + period])) >> 2
                    above, above2 = 1 if row[at - period] != 0 else 0, 1 if row[at - 2 * period] != 0 else 0
                    above_left = 1 if row[at - period - 1] != 0 else 0
                    above_right = 1 if row[at - period + 1] != 0 else 0
                base = int(STRETCH[(left << 16) // n_left])
                inputs[0] = base
                inputs[1] = int(STRETCH[in_row >> INDEX_SHIFT]) - base
                inputs[2] = int(STRETCH[here >> INDEX_SHIFT]) - base
                inputs[3] = int(STRETCH[around >> INDEX_SHIFT]) - base
                row_level = density_level(in_row >> INDEX_SHIFT, origin)
                recent_level = density_level(recent >> INDEX_SHIFT, origin)
                around_level = density_level(around >> INDEX_SHIFT, origin)
                mask_slots[0] = 32 * above + 16 * above_left + 8 * above_right + 4 * above2 + 2 * left1 + left2
                mask_slots[1] = MASK_SLOTS + 2 * (line & 255) + left1
                mask_slots[2] = 2 * MASK_SLOTS + 4 * (LEVELS * recent_level + column_level) + 2 * left1 + above
                mask_slots[3] = 3 * MASK_SLOTS + LEVELS * run_level + around_level
                mask_slots[4] = 4 * MASK_SLOTS + LEVELS * row_level + column_level
                rate = int(MASK_RATES[min(len(MASK_RATES) - 1, n_decided >> 7)])
                nonzero, coder = code_mixed(
                    1 if indices[i, j] != 0 else 0, inputs, MASK_GIVEN, mask_slots, mask_states, mask_weights, rate,
                    coder, decoding, data,
                )  # fmt: skip
                n_decided += 1
                column[at] = learned(here, nonzero, min(LAST, i + START))
                in_row = learned(in_row, nonzero, min(LAST, j + START))
                recent = learned(recent, nonzero, min(RECENT, j + START))
            n_left -= 1
            in_line += 1
            if in_line == period:
                line, in_line = line + 1, 0
            if nonzero == 0:
                row[at] = 0
                run += 1
                if run >> run_level and run_level < RUN_LEVELS - 1:
                    run_level += 1
                continue
            left -= 1
            run, run_level = 0, 0
            contexts[1], contexts[2] = _nearest(row, at, period)
            contexts[3] = 16 * min(15, int(row[at - 1])) + (min(15, int(row[at - period])) if period > 0 else 0)
            contexts[4] = j
            contexts[5] = column_level
            index, coder = code_value(
                int(indices[i, j]), n_values, depth, contexts, value_slots, value_states, value_weights, inputs,
                coder, decoding, data,
            )  # fmt: skip
            row[at] = index
            if decoding:
                indices[i, j] = index
    return data, coder


def value_tables(cols: int, n_values: int) -> tuple[Ints, Ints]:
    """States and weights of `code_value` at the start. Small values come first in a codebook, and are likelier."""
    depth = tree_depth(n_values)
    n_slots = min(MOST_VALUE_SLOTS, 1 << ((max(256, cols) - 1).bit_length() + depth))
    states = np.full(VALUE_CONTEXTS * n_slots, ((3 << ESTIMATE_BITS) // 8) << COUNT_BITS, np.int64)
    weights = np.full((max(1, depth), VALUE_GIVEN + VALUE_CONTEXTS), CONTEXT_WEIGHT, np.int64)
    weights[:, 0] = UNIT
    return states, weights


def run_full(
    indices: Indices, period: int, n_values: int, n_nonzero: int, coder: Coder, decoding: bool, data: Bytes
) -> tuple[Bytes, Coder]:
    """`code_full` with new tables."""
    cols = indices.shape[1]
    initial = min((1 << ESTIMATE_BITS) - FLOOR, max(FLOOR, (n_nonzero << ESTIMATE_BITS) // indices.size))
    mask_states = np.full(MASK_CONTEXTS * MASK_SLOTS, (initial << COUNT_BITS) | START, np.int64)
    mask_weights = np.full(MASK_GIVEN + MASK_CONTEXTS, CONTEXT_WEIGHT, np.int64)
    mask_weights[0] = UNIT
    margin = 2 * max(1, period)
    row, column = np.zeros(margin + cols, np.int32), np.full(margin + cols + margin, initial, np.int32)
    return code_full(
        indices, period, n_values, n_nonzero, mask_states, mask_weights, *value_tables(cols, n_values), row, column,
        coder, decoding, data,
    )  # fmt: skip
