"""A binary range coder in integers, and the mixing of several contexts' predictions into one probability for it.

The same functions encode and decode, so each model is written once. All sums and products stay far inside 64 bits,
whatever the data.

Specified in docs/format.md 8.1 and 8.2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from softshare.codec.adaptive.logistic import LIMIT, PROBABILITY_BITS, SQUASH, STRETCH
from softshare.codec.compiled_coder import compiled
from softshare.errors import FormatError

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Coder = tuple[int, int, int, int]  # low, range, position in the data, the decoder's code - low

RANGE_BITS = 40  # of low and range
RANGE_BYTES = RANGE_BITS // 8
MIN_RANGE = 1 << 32  # a smaller range takes in a byte, so a part of a range is never under 2^10 * 25
ROOM = 64  # bytes that a weight or an octet cannot fill: 17 decisions of at most 22 bits

ESTIMATE_BITS = 30  # of a context's estimate of a 1: enough for the least estimate to move at the slowest rate
INDEX_SHIFT = ESTIMATE_BITS - 16  # from an estimate to its place in STRETCH
FLOOR = 1 << 13  # estimates stay this far from 0 and 1: log-odds of 11.8, inside LIMIT
COUNT_BITS = 12  # a context's state is its estimate << COUNT_BITS | its number of uses, up to LAST
LAST = (1 << COUNT_BITS) - 1  # 4095: noise at 0.2% density costs the fast model 0.7% over its entropy; 1023: 2.7%
RATES = np.array([(2 << 16) // (2 * n + 3) for n in range(LAST + 1)], np.int32)  # 65536 / (n + 1.5)

UNIT = 1 << 16  # mixing weight 1
WEIGHT_LIMIT = 16 * UNIT  # far above any weight on real data; it bounds the sum


@compiled
def code_bit(
    bit: int,  # to encode; ignored when decoding
    probability: int,  # of a 1, in 2^-PROBABILITY_BITS, neither 0 nor 1
    coder: Coder,
    decoding: bool,
    data: Bytes,
) -> tuple[int, Coder]:
    """Encode or decode one decision. A 1 is the lower part of the range."""
    low, width, position, code = coder
    bound = (width >> PROBABILITY_BITS) * probability
    if decoding:
        bit = 1 if code < bound else 0
    if bit == 1:
        width = bound
    else:
        width -= bound
        low += bound
        code -= bound
    while width < MIN_RANGE:
        width <<= 8
        if decoding:  # zeros follow the end of the data
            code = (code << 8) | (int(data[position]) if position < len(data) else 0)
            low = 0
        else:
            if low >> RANGE_BITS:
                carry(position, data)
            data[position] = (low >> (RANGE_BITS - 8)) & 255
            low = (low << 8) & ((1 << RANGE_BITS) - 1)
            code = 0
        position += 1
    return bit, (low, width, position, code)


@compiled
def carry(position: int, data: Bytes) -> None:
    """Add 1 to the number written before the position. It never runs past the first byte, as low + range <= 1."""
    k = position - 1
    while data[k] == 255:
        data[k] = 0
        k -= 1
    data[k] += 1


@compiled
def grown(data: Bytes) -> Bytes:
    """The same bytes, with twice the room."""
    more = np.zeros(2 * len(data), np.uint8)
    for k in range(len(data)):  # a slice would take numba five seconds to compile
        more[k] = data[k]
    return more


@compiled
def learned(estimate: int, bit: int, uses: int) -> int:
    """The estimate, moved towards the bit by 1 / (uses + 1.5) of the distance."""
    moved = estimate + ((((bit << ESTIMATE_BITS) - estimate) * int(RATES[uses])) >> 16)
    return min((1 << ESTIMATE_BITS) - FLOOR, max(FLOOR, moved))


@compiled
def next_state(state: int, bit: int) -> int:
    """The state of a context after it saw the bit."""
    uses = state & LAST
    return (learned(state >> COUNT_BITS, bit, uses) << COUNT_BITS) | min(LAST, uses + 1)


@compiled
def code_mixed(
    bit: int,  # to encode; ignored when decoding
    inputs: Ints,  # log-odds: the first `n_given` are given, and the first of all is the base; the contexts' follow
    n_given: int,
    slots: Ints,  # (contexts,) where in `states` each context is
    states: Ints,
    weights: Ints,  # (n_given + contexts,) of the mix, in 1 / UNIT
    learning_rate: int,  # of the weights, in 1 / UNIT
    coder: Coder,
    decoding: bool,
    data: Bytes,
) -> tuple[int, Coder]:
    """Predict a decision by the weighted sum of log-odds, code it, and learn from it.

    A context's input is the distance of its estimate from the base, so a context that knows nothing changes nothing.
    """
    base = inputs[0]
    mix = UNIT // 2
    for k in range(n_given):
        mix += weights[k] * inputs[k]
    for k in range(len(slots)):
        distance = int(STRETCH[states[slots[k]] >> (COUNT_BITS + INDEX_SHIFT)]) - base
        inputs[n_given + k] = distance
        mix += weights[n_given + k] * distance
    probability = int(SQUASH[min(LIMIT, max(-LIMIT, mix >> 16)) + LIMIT])
    bit, coder = code_bit(bit, probability, coder, decoding, data)

    error = (((bit << PROBABILITY_BITS) - probability) >> (PROBABILITY_BITS - 16)) * learning_rate
    for k in range(n_given + len(slots)):
        weights[k] = min(WEIGHT_LIMIT, max(-WEIGHT_LIMIT, weights[k] + ((inputs[k] * error + (1 << 23)) >> 24)))
    for k in range(len(slots)):
        states[slots[k]] = next_state(states[slots[k]], bit)
    return bit, coder


def start_encoding() -> Coder:
    return 0, 1 << RANGE_BITS, 0, 0


def start_decoding(data: Bytes) -> Coder:
    return 0, 1 << RANGE_BITS, RANGE_BYTES, _number(data[:RANGE_BYTES])


def _number(tail: Bytes) -> int:
    """RANGE_BYTES of the code as a number. Zeros follow the end of the code."""
    return int.from_bytes(tail.tobytes().ljust(RANGE_BYTES, b"\0"), "big")


def _shortest(low: int, width: int) -> int:
    """The number in [low, low + width) with the most zero bits at its end."""
    zeros = next(s for s in range(RANGE_BITS, -1, -1) if -(-low >> s) << s < low + width)
    return -(-low >> zeros) << zeros


def finish(coder: Coder, data: Bytes) -> bytes:
    """The bytes written, and the shortest number in the range without the zero bytes at its end."""
    low, width, position, _ = (int(x) for x in coder)
    code = _shortest(low, width)
    if code >> RANGE_BITS:
        carry(position, data)
    tail = (code & ((1 << RANGE_BITS) - 1)).to_bytes(RANGE_BYTES, "big")
    return data[:position].tobytes() + tail.rstrip(b"\0")


def check_end(coder: Coder, data: Bytes) -> None:
    """Raise unless the data is exactly what `finish` writes. The decoder reads at most RANGE_BYTES past its end."""
    _, width, most, distance = (int(x) for x in coder)
    least = most - RANGE_BYTES
    if not least <= len(data) <= most:
        raise FormatError(f"expected {least} to {most} bytes of code, got {len(data)}")
    tail = data[least:]
    code = _number(tail)
    if code != _shortest(code - distance, width) or (len(tail) and tail[-1] == 0):
        raise FormatError(f"expected the shortest code, got {len(data)} bytes ending in {tail.tobytes().hex()!r}")
