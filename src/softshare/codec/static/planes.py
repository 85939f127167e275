"""Byte planes with the static code: for tensors that are not shared, at the speed of the wire (docs/format.md 13.4).

A float is rotated by one bit first, so that the last plane is its exponent: it is what there is to gain. A plane that
would not become shorter is raw.
"""

from __future__ import annotations

import io

import numpy as np

from softshare.codec.adaptive.rangecoder import Bytes
from softshare.codec.parallel import Run, one_by_one
from softshare.codec.planes import CODED, CONSTANT, RAW, ZEROS
from softshare.codec.static import code, layout
from softshare.codec.static.classes import choose
from softshare.codec.static.tables import MOST_SYMBOLS
from softshare.codec.wire import Reader

WORTH = 0.995  # of its bytes, at most, for a plane to be coded: else it takes time and saves none


def rotated(octets: Bytes, by: int) -> Bytes:  # (n, itemsize)
    """Numbers with their bits rotated left, or right if `by` is -1."""
    itemsize = octets.shape[1]
    bits = 8 * itemsize
    numbers = np.ascontiguousarray(octets).view(f"<u{itemsize}")
    left = by % bits
    turned = (numbers << numbers.dtype.type(left)) | (numbers >> numbers.dtype.type(bits - left))
    out: Bytes = turned.view(np.uint8).reshape(octets.shape)
    return out


def encode(octets: Bytes, shape: tuple[int, int], is_float: bool, lanes: int, run: Run = one_by_one) -> bytes:
    n, itemsize = octets.shape
    turned = rotated(octets, 1) if is_float else octets
    modes, parts = 0, []
    for plane in range(itemsize - 1, -1, -1):
        symbols = np.ascontiguousarray(turned[:, plane])
        if not symbols.any():
            mode, data = ZEROS, b""
        elif (symbols == symbols[0]).all():
            mode, data = CONSTANT, symbols[:1].tobytes()
        else:
            mode, data = CODED, b""
            choice = choose(symbols, *shape, MOST_SYMBOLS)
            if choice.bits / 8 < WORTH * n:
                data = code.encode(symbols, *shape, MOST_SYMBOLS, lanes, choice=choice, run=run)
            if not data or len(data) >= n:
                mode, data = RAW, symbols.tobytes()
        modes |= mode << (2 * plane)
        parts.append(data)
    return modes.to_bytes(header_bytes(itemsize), "little") + b"".join(parts)


def header_bytes(itemsize: int) -> int:
    return -(-itemsize // 4)


def read_modes(reader: Reader, itemsize: int) -> list[int]:
    start = reader.offset
    modes = int.from_bytes(reader.take(header_bytes(itemsize)), "little")
    reader.expect(modes >> (2 * itemsize) == 0, f"the modes of {itemsize} planes", modes, start)
    return [(modes >> (2 * plane)) & 3 for plane in range(itemsize)]


def read_constant(reader: Reader) -> int:
    start = reader.offset
    constant = reader.byte()
    reader.expect(constant > 0, "a constant other than 0", constant, start)
    return constant


def decode(
    data: bytes, shape: tuple[int, int], itemsize: int, is_float: bool, run: Run = one_by_one
) -> Bytes:  # (n, itemsize)
    reader, n = Reader(io.BytesIO(data), len(data)), shape[0] * shape[1]
    reader.expect(n > 0, "no static code of a tensor without numbers", n, 0)
    modes = read_modes(reader, itemsize)
    octets = np.zeros((n, itemsize), np.uint8)
    for plane in range(itemsize - 1, -1, -1):
        if modes[plane] == CONSTANT:
            octets[:, plane] = read_constant(reader)
        elif modes[plane] == RAW:
            octets[:, plane] = np.frombuffer(reader.take(n), np.uint8)
        elif modes[plane] == CODED:
            head = layout.read(reader, *shape, MOST_SYMBOLS)
            chunks = reader.take(head.end - head.start)
            octets[:, plane] = code.decode_chunk_range(head, range(head.n_chunks), chunks, run)
    reader.expect(not reader.remaining, "planes that end with their section", f"{reader.remaining} bytes more")
    return rotated(octets, -1) if is_float else octets
