"""The chunks of the static code: A interleaved rANS coders with one stream of 16-bit words (docs/format.md 13.3).

The lanes' states do not depend on each other, so a processor works on several at once. A number never exceeds 32 bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from softshare.codec.adaptive.rangecoder import Bytes, Ints
from softshare.codec.compiled_coder import compiled
from softshare.codec.static.tables import SLOTS, TABLE_BITS, Lookup

Units = npt.NDArray[np.uint16]  # states and words of chunks, 2 bytes each
LEAST = 1 << 16  # of a state between two symbols; where it starts and ends
AT_ONCE = 256  # symbols decoded between two looks at the end of the words
MARGIN = AT_ONCE + 1  # units behind the last chunk that may be read and do not count
# Of a reciprocal, so that a product is at or just above the exact quotient. It is below 2^20 and its fraction at most
# 4095/4096, so the 2^-25 that this adds never reaches the next integer.
INVERSE = 1 + 2.0**-45
NO_AXIS, BY_ROW, BY_COLUMN = 0, 1, 2


@compiled
def _step(units: Units, at: int, state: int, lookup: Lookup, base: int) -> tuple[int, int, int]:
    """One symbol, the state after it, and the place of the next word."""
    entry = int(lookup[np.uint64(base + (state & (SLOTS - 1)))])  # numba need not look for an index below 0
    state = ((entry >> 8 & (SLOTS - 1)) + 1) * (state >> TABLE_BITS) + (entry >> 20)
    word = int(units[np.uint64(at)])
    if state < LEAST:
        state = state << 16 | word
        at += 1
    return entry & 255, state, at


@compiled
def _four_lanes(
    units: Units, at: int, lookup: Lookup, base: int, axis: int, classes: Bytes, col: int, out: Bytes, start: int,
    groups: int, states: Ints,
) -> int:  # fmt: skip
    """Fill `out[start : start + 4 * groups]`, with the states in variables of their own: registers. The next word."""
    a, b, c, d = states[0], states[1], states[2], states[3]
    base_a, base_b, base_c, base_d = base, base, base, base
    for k in range(0, 4 * groups, 4):
        if axis == BY_COLUMN:
            base_a, base_b = int(classes[col + k]) * SLOTS, int(classes[col + k + 1]) * SLOTS
            base_c, base_d = int(classes[col + k + 2]) * SLOTS, int(classes[col + k + 3]) * SLOTS
        out[start + k], a, at = _step(units, at, a, lookup, base_a)
        out[start + k + 1], b, at = _step(units, at, b, lookup, base_b)
        out[start + k + 2], c, at = _step(units, at, c, lookup, base_c)
        out[start + k + 3], d, at = _step(units, at, d, lookup, base_d)
    states[0], states[1], states[2], states[3] = a, b, c, d
    return at


@compiled
def _decode_chunk(
    units: Units, at: int, end: int, lanes: int, lookup: Lookup, axis: int, classes: Bytes, cols: int,
    first: int, out: Bytes, start: int, n: int, states: Ints,
) -> bool:  # fmt: skip
    """Fill `out[start : start + n]` with the symbols from number `first` of the matrix. False if the chunk is bad."""
    for lane in range(lanes):
        states[lane] = int(units[at + 2 * lane]) | int(units[at + 2 * lane + 1]) << 16
        if states[lane] < LEAST:
            return False
    at += 2 * lanes
    row, col, i = first // cols, first % cols, 0
    while i < n:
        if at > end:
            return False
        part = min(n - i, AT_ONCE, cols - col)
        base = int(classes[row]) * SLOTS if axis == BY_ROW else 0
        groups = part // lanes if i & (lanes - 1) == 0 else 0
        if lanes == 4:
            at = _four_lanes(units, at, lookup, base, axis, classes, col, out, start + i, groups, states)
        else:
            for group in range(groups):
                for lane in range(lanes):
                    if axis == BY_COLUMN:
                        base = int(classes[col + group * lanes + lane]) * SLOTS
                    symbol, states[lane], at = _step(units, at, states[lane], lookup, base)
                    out[start + i + group * lanes + lane] = symbol
        for k in range(groups * lanes, part):
            lane = (i + k) & (lanes - 1)
            if axis == BY_COLUMN:
                base = int(classes[col + k]) * SLOTS
            symbol, states[lane], at = _step(units, at, states[lane], lookup, base)
            out[start + i + k] = symbol
        i += part
        col += part
        if col == cols:
            row, col = row + 1, 0
    good = at == end
    for lane in range(lanes):
        good = good and states[lane] == LEAST
    return good


@compiled
def decode_chunks(
    units: Units,  # of these chunks, and MARGIN more
    offsets: Ints,  # (chunks + 1,) where each begins in `units`
    lanes: int,
    chunk: int,  # symbols of a chunk
    lookup: Lookup,  # (tables * SLOTS,)
    axis: int,
    classes: Bytes,  # of each row or column; anything without an axis
    cols: int,
    first: int,  # the number of the first symbol in the matrix
    out: Bytes,  # the symbols of these chunks
) -> int:
    """Decode chunks in a row. The number of the first bad one, or -1."""
    states = np.zeros(32, np.int64)
    for k in range(len(offsets) - 1):
        start = k * chunk
        n = min(chunk, len(out) - start)
        if not _decode_chunk(
            units, int(offsets[k]), int(offsets[k + 1]), lanes, lookup, axis, classes, cols, first + start,
            out, start, n, states,
        ):  # fmt: skip
            return k
    return -1


@compiled
def encode_chunk(
    symbols: Bytes,  # of the whole matrix
    first: int,
    n: int,
    lanes: int,
    frequencies: Ints,  # (tables * V,)
    inverse: npt.NDArray[np.float64],  # (tables * V,) INVERSE / frequency
    below: Ints,  # (tables * V,) the sums of the frequencies before
    n_symbols: int,
    axis: int,
    classes: Bytes,
    cols: int,
    units: Units,  # (at least 2 lanes + n,) filled from its end
) -> int:
    """Where the chunk begins in `units`: the states, then the words."""
    at = len(units)
    states = np.full(32, LEAST, np.int64)
    row, col = (first + n - 1) // cols, (first + n - 1) % cols
    for i in range(n - 1, -1, -1):
        lane = i & (lanes - 1)
        state = states[lane]
        entry = int(symbols[first + i])
        if axis == BY_ROW:
            entry += int(classes[row]) * n_symbols
        elif axis == BY_COLUMN:
            entry += int(classes[col]) * n_symbols
        frequency = frequencies[entry]
        if state >= frequency << (32 - TABLE_BITS):
            at -= 1
            units[at] = state & 0xFFFF
            state >>= 16
        quotient = int(state * inverse[entry])
        states[lane] = (quotient << TABLE_BITS) + (state - quotient * frequency) + below[entry]
        col -= 1
        if col < 0:
            row, col = row - 1, cols - 1
    for lane in range(lanes - 1, -1, -1):
        at -= 2
        units[at] = states[lane] & 0xFFFF
        units[at + 1] = states[lane] >> 16
    return at
