"""Lossless code for tensors that are not shared, by byte plane: all first bytes of the numbers, all second bytes, ...

Numbers are little-endian, so the last plane of floats holds sign and exponent. It is coded first, and helps to predict
the next. A plane is zeros, one constant, coded or raw, whichever is shortest. Two bits for each plane say which, in the
first bytes. Then follow, from the last plane to the first, the byte of each constant plane and the bytes of each raw
plane, and at the end the code of all others. A byte takes eight decisions, from the highest bit. Each mixes the
predictions of three contexts: the plane so far, the byte before it in the plane, and the byte of the same number in the
plane after.

Specified in docs/format.md 8.7.
"""

from __future__ import annotations

import numpy as np

from softshare.codec.adaptive.logistic import STRETCH
from softshare.codec.adaptive.rangecoder import (
    COUNT_BITS,
    ESTIMATE_BITS,
    INDEX_SHIFT,
    RANGE_BYTES,
    ROOM,
    UNIT,
    Bytes,
    Coder,
    Ints,
    check_end,
    code_mixed,
    finish,
    grown,
    start_decoding,
    start_encoding,
)
from softshare.codec.compiled_coder import compiled
from softshare.errors import FormatError

ZEROS, CONSTANT, CODED, RAW = 0, 1, 2, 3  # modes of a plane
CONTEXTS, SLOTS = 3, 1 << 16
INITIAL = (1 << (ESTIMATE_BITS - 1)) << COUNT_BITS  # probability 1/2, used 0 times
CONTEXT_WEIGHT = UNIT * 3 // 10  # of a context at the start; the plane so far starts at 1
RATE = UNIT // 50  # at which the weights learn
TRIAL = 1 << 12  # numbers coded first, to see which planes are better raw: all of them would double the time


@compiled
def _code_planes(
    octets: Bytes,  # (n, itemsize) to encode; decoding fills the coded planes and reads the others
    modes: Ints,  # (itemsize,)
    states: Ints,  # (CONTEXTS * SLOTS,)
    weights: Ints,  # (8, 1 + CONTEXTS)
    spent: Ints,  # (itemsize,), filled with the bytes of each plane
    coder: Coder,
    decoding: bool,
    data: Bytes,
) -> tuple[Bytes, Coder]:
    n, itemsize = octets.shape
    inputs, slots = np.zeros(1 + CONTEXTS, np.int64), np.zeros(CONTEXTS, np.int64)
    for plane in range(itemsize - 1, -1, -1):
        if modes[plane] != CODED:
            continue
        states[:] = INITIAL
        weights[:, :] = CONTEXT_WEIGHT
        weights[:, 0] = UNIT
        start, before = coder[2], 0
        for i in range(n):
            if decoding and coder[2] > len(data) + RANGE_BYTES:
                return data, coder
            if not decoding and coder[2] + ROOM > len(data):
                data = grown(data)
            after = int(octets[i, plane + 1]) if plane + 1 < itemsize else 0
            given, node = int(octets[i, plane]), 1
            for level in range(8):
                slots[0] = node
                slots[1] = SLOTS + 256 * before + node
                slots[2] = 2 * SLOTS + 256 * after + node
                inputs[0] = int(STRETCH[states[node] >> (COUNT_BITS + INDEX_SHIFT)])
                bit, coder = code_mixed(
                    (given >> (7 - level)) & 1, inputs, 1, slots, states, weights[level], RATE, coder, decoding, data
                )
                node = 2 * node + bit
            before = node - 256
            if decoding:
                octets[i, plane] = before
        spent[plane] = coder[2] - start
    return data, coder


def encode_planes(
    octets: Bytes,  # (n, itemsize), at least one number
) -> bytes:
    n, itemsize = octets.shape
    octets = np.require(octets, requirements=["C", "W"])  # as in decoding: numba compiles one function
    modes = np.full(itemsize, CODED, np.int64)
    modes[(octets == octets[0]).all(0)] = CONSTANT
    modes[~octets.any(0)] = ZEROS
    _, _, spent = _run(octets[:TRIAL], modes, start_encoding(), False, np.zeros(2 * ROOM, np.uint8))
    spent[modes != CODED] = 0
    modes[spent >= min(n, TRIAL)] = RAW
    data, coder, _ = _run(octets, modes, start_encoding(), False, np.zeros(2 * ROOM, np.uint8))
    header = sum(int(mode) << (2 * plane) for plane, mode in enumerate(modes))
    stored = [octets[: 1 if modes[k] == CONSTANT else n, k].tobytes() for k in _stored(modes)]
    return header.to_bytes(_header_bytes(itemsize), "little") + b"".join(stored) + finish(coder, data)


def decode_planes(data: bytes | memoryview, n: int, itemsize: int) -> Bytes:  # (n, itemsize)
    source = np.frombuffer(data, np.uint8)
    octets = np.zeros((n, itemsize), np.uint8)
    position = _header_bytes(itemsize)
    header = int.from_bytes(source[:position].tobytes(), "little")
    if len(source) < position or header >> (2 * itemsize):
        raise FormatError(
            f"expected the modes of {itemsize} planes in {position} bytes, got {header:#x} in {len(source[:position])}"
        )
    modes = np.array([(header >> (2 * plane)) & 3 for plane in range(itemsize)], np.int64)
    for plane in _stored(modes):
        size = 1 if modes[plane] == CONSTANT else n
        if len(source) < position + size:
            raise FormatError(f"expected {size} bytes of plane {plane}, got {len(source) - position}")
        octets[:, plane] = source[position : position + size]
        if modes[plane] == CONSTANT and not source[position]:
            raise FormatError(f"expected a constant other than 0 in plane {plane}, got 0")
        position += size
    code = source[position:].copy()
    _, coder, _ = _run(octets, modes, start_decoding(code), True, code)
    check_end(coder, code)
    return octets


def _header_bytes(itemsize: int) -> int:
    return -(-itemsize // 4)


def _stored(modes: Ints) -> list[int]:
    """The constant and the raw planes, from the last to the first."""
    return [k for k in range(len(modes) - 1, -1, -1) if modes[k] in (CONSTANT, RAW)]


def _run(octets: Bytes, modes: Ints, coder: Coder, decoding: bool, data: Bytes) -> tuple[Bytes, Coder, Ints]:
    """`_code_planes` with new tables, if there is a coded plane."""
    spent = np.zeros(len(modes), np.int64)
    if CODED in modes:
        states, weights = np.empty(CONTEXTS * SLOTS, np.int64), np.empty((8, 1 + CONTEXTS), np.int64)
        data, coder = _code_planes(octets, modes, states, weights, spent, coder, decoding, data)
    return data, coder, spent
