"""The numbers in the blocks of GGUF's quantized types, as float32, bit for bit as the package gguf decodes them.

A block has a scale `d` in float16, perhaps an offset `m`, and small integers. In the K-quants, a block of 256 weights
has sixteen or eight sub-blocks with scales and offsets of their own, in 4 to 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Octets = npt.NDArray[np.uint8]  # (n, bytes of a block)
Floats = npt.NDArray[np.float32]  # (n, weights of a block)

LARGE = 256  # weights of a block of the K-quants


class Blocks(NamedTuple):
    size: int  # weights of a block
    n_bytes: int
    decode: Callable[[Octets], Floats]


def _cut(blocks: Octets, *sizes: int) -> list[Octets]:
    """Columns, in parts of these sizes and what is left."""
    return [np.ascontiguousarray(part) for part in np.split(blocks, np.cumsum(sizes), axis=1)]


def _half(octets: Octets) -> Floats:
    return octets.view("<f2").astype(np.float32)


def _fields(octets: Octets, width: int, run: int) -> Octets:
    """Bit fields of `width`: from each `run` of bytes all lowest ones, then all the next ones, and so on."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    found = octets.reshape(len(octets), -1, 1, run) >> shifts & np.uint8((1 << width) - 1)
    return found.reshape(len(octets), -1)


def _fifth_bits(octets: Octets) -> Octets:
    """32 bits as bytes of 0 or 16."""
    return np.unpackbits(octets, axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: Octets) -> Floats:
    d, q = _cut(blocks, 2)
    return _half(d) * (_fields(q, 4, 16).astype(np.int8) - np.int8(8)).astype(np.float32)


def _q4_1(blocks: Octets) -> Floats:
    d, m, q = _cut(blocks, 2, 2)
    return _half(d) * _fields(q, 4, 16).astype(np.float32) + _half(m)


def _q5_0(blocks: Octets) -> Floats:
    d, high, q = _cut(blocks, 2, 4)
    return _half(d) * ((_fields(q, 4, 16) | _fifth_bits(high)).astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Octets) -> Floats:
    d, m, high, q = _cut(blocks, 2, 2, 4)
    return _half(d) * (_fields(q, 4, 16) | _fifth_bits(high)).astype(np.float32) + _half(m)


def _q8_0(blocks: Octets) -> Floats:
    d, q = _cut(blocks, 2)
    return q.view(np.int8).astype(np.float32) * _half(d)


def _by_part(scale: Floats, q: npt.NDArray[np.generic], offset: Floats | None = None) -> Floats:
    """Weights of sub-blocks: `scale * q - offset`, with one scale and one offset for each of them."""
    parts = q.astype(np.float32).reshape(*scale.shape, -1)
    found = scale[:, :, None] * parts
    if offset is not None:
        found = found - offset[:, :, None]
    whole: Floats = found.reshape(len(scale), LARGE)
    return whole


def _q2_k(blocks: Octets) -> Floats:
    scales, q, d, m = _cut(blocks, 16, 64, 2)
    scale, offset = _half(d) * (scales & 15).astype(np.float32), _half(m) * (scales >> 4).astype(np.float32)
    return _by_part(scale, _fields(q, 2, 32), offset)


def _q3_k(blocks: Octets) -> Floats:
    high, q, scales, d = _cut(blocks, 32, 64, 12)
    low, top = _cut(scales, 8)
    six = (_fields(low, 4, 8) | _fields(top, 2, 4) << np.uint8(4)).astype(np.int8) - np.int8(32)
    missing = (_fields(high, 1, 32) ^ np.uint8(1)) << np.uint8(2)  # a bit of 0 stands for 4 less
    return _by_part(_half(d) * six.astype(np.float32), _fields(q, 2, 32).astype(np.int8) - missing.astype(np.int8))


def _scales_of_six_bits(packed: Octets) -> tuple[Floats, Floats]:
    """Eight scales and eight offsets in twelve bytes: the last four of each have their two top bits elsewhere."""
    d, m, both = _cut(packed, 4, 4)
    scale = np.concatenate([d & 63, (both & 15) | (d >> 2 & 48)], axis=1)
    offset = np.concatenate([m & 63, (both >> 4) | (m >> 2 & 48)], axis=1)
    return scale.astype(np.float32), offset.astype(np.float32)


def _q4_k(blocks: Octets) -> Floats:
    d, m, packed, q = _cut(blocks, 2, 2, 12)
    scale, offset = _scales_of_six_bits(packed)
    return _by_part(_half(d) * scale, _fields(q, 4, 32), _half(m) * offset)


def _q5_k(blocks: Octets) -> Floats:
    d, m, packed, high, q = _cut(blocks, 2, 2, 12, 32)
    scale, offset = _scales_of_six_bits(packed)
    five = _fields(q, 4, 32) | _fields(high, 1, 32) << np.uint8(4)
    return _by_part(_half(d) * scale, five, _half(m) * offset)


def _q6_k(blocks: Octets) -> Floats:
    low, high, scales, d = _cut(blocks, 128, 64, 16)
    six = (_fields(low, 4, 64) | _fields(high, 2, 32) << np.uint8(4)).astype(np.int8) - np.int8(32)
    return _by_part(_half(d) * scales.view(np.int8).astype(np.float32), six)


QUANTIZED: dict[int, Blocks] = {  # by the number of the type in a file
    2: Blocks(32, 18, _q4_0),
    3: Blocks(32, 20, _q4_1),
    6: Blocks(32, 22, _q5_0),
    7: Blocks(32, 24, _q5_1),
    8: Blocks(32, 34, _q8_0),
    10: Blocks(LARGE, 84, _q2_k),
    11: Blocks(LARGE, 110, _q3_k),
    12: Blocks(LARGE, 144, _q4_k),
    13: Blocks(LARGE, 176, _q5_k),
    14: Blocks(LARGE, 210, _q6_k),
}
