"""`.sws` files by hand, from docs/format.md alone.

This uses nothing of the package, so that tests can compare the two. Every function returns bytes, right or wrong as its
arguments say. `seal` appends the checksum that fits them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

MAGIC = b"\x89SWS"
HAN, ADAPTIVE = 0, 1  # bit 0 of the flags
NAMES = 2  # bit 1
F32, F16, BF16, F64, I8, I16, I32, I64, U8, BOOL = range(10)  # dtype numbers
WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VAR, NUM_BATCHES, IN_PROJ_WEIGHT, IN_PROJ_BIAS = range(1, 8)  # suffixes
VECTOR = b"\x80"  # as long as the first size of the tensor before


def varint(value: int) -> bytes:
    """Section 2."""
    if value < 128:
        return bytes([value])
    return bytes([value % 128 + 128]) + varint(value // 128)


def head(flags: int = NAMES, version: int = 1, magic: bytes = MAGIC) -> bytes:
    """3.1: six bytes."""
    return magic + bytes([version, flags])


def book(*values: float, dtype: int = F16) -> bytes:
    """3.2: a codebook, from its values other than zero. A bfloat16 is the upper half of a float32."""
    if dtype == BF16:
        stored = b"".join(struct.pack("<f", value)[2:] for value in values)
    else:
        stored = struct.pack(f"<{len(values)}{'e' if dtype == F16 else 'f'}", *values)
    return varint(4 * len(values) + dtype) + stored


def name(rest: bytes | str, suffix: int = 0, prefix: int = 0) -> bytes:
    """4.3: the suffix's number, the bytes shared with the stem before, and the rest of the stem."""
    rest = rest.encode() if isinstance(rest, str) else rest
    first = bytes([suffix * 32 + min(prefix, 31)]) + (varint(prefix - 31) if prefix >= 31 else b"")
    return first + varint(len(rest)) + rest


def sizes(*shape: int) -> bytes:
    """4.4."""
    return bytes([len(shape)]) + b"".join(varint(size) for size in shape)


def shared(
    dtype: int = F32,
    codebook: int = 0,
    rows: bool = False,
    columns: bool = False,
    static: bool = False,
    bands: bool = False,
) -> bytes:
    """4.2, a shared tensor. Scales of rows or columns, a static code and bands need version 2."""
    return bytes([dtype << 1 | bands << 4 | rows << 5 | columns << 6 | static << 7]) + varint(codebook)


def rest(dtype: int, stored: int | None = None, planes: bool = False, static: bool = False) -> bytes:
    """4.2, a tensor of the rest."""
    first = static << 7 | dtype << 3 | (stored is not None) << 2 | planes << 1 | 1
    return bytes([first]) + (b"" if stored is None else bytes([stored]))


def entry(n_bytes: int, kind: bytes | None = None, named: bytes = b"", shape: bytes = b"") -> bytes:
    """4: an entry. Without a kind it is a plain one."""
    return varint(2 * n_bytes + (kind is None)) + (kind or b"") + named + shape


def listed(items: Sequence[bytes]) -> bytes:
    """The number of items, then the items."""
    return varint(len(items)) + b"".join(items)


def seal(body: bytes) -> bytes:
    """3.4: the checksum comes last."""
    return body + struct.pack("<I", zlib.crc32(body))


def sws(
    books: Sequence[bytes] = (),
    entries: Sequence[bytes] = (),
    sections: bytes = b"",
    tied: Sequence[bytes] | None = (),  # None: a file without names
    codec: int = HAN,
    version: int = 1,
) -> bytes:
    """A whole file."""
    body = head(codec | (0 if tied is None else NAMES), version) + listed(books) + listed(entries)
    return seal(body + (b"" if tied is None else listed(tied)) + sections)


def bits(digits: str) -> bytes:
    """Digits 0 and 1, filled up with zeros to a whole byte. Spaces are ignored."""
    digits = digits.replace(" ", "")
    n = -(-len(digits) // 8)
    return int(digits.ljust(8 * n, "0") or "0", 2).to_bytes(n, "big")


def static(
    frequencies: Sequence[int],
    states: Sequence[int],
    words: Sequence[int] = (),
    chunk_bits: int = 6,
    form: int = 0,
    n_words: int | None = None,
) -> bytes:
    """13.1: a static code of one table and one chunk, without zeros in the table but for those given as pairs."""
    lanes = len(states).bit_length() - 1
    table = b"".join(map(varint, frequencies))
    count = len(words) if n_words is None else n_words
    code = struct.pack(f"<H{len(states)}I{len(words)}H", count, *states, *words)
    return bytes([lanes, chunk_bits, form]) + table + code


# Rows 0 2 2 and 0 2 0 over a codebook of 3 values. Three entries: w = 2, ends of the rows 2 and 3. Gaps 1 0 1: last
# symbol 1 in 5 bits, lengths of 1 bit, both 1. Indices 2 2 2: last symbol 2 in 2 bits, lengths 0 0 1, three codes 0.
HAN_2X3_INDICES = [0, 2, 2, 0, 2, 0]
HAN_2X3 = varint(3) + bits("000010 10 11  00001 001 1 1 1 0 1  10 001 0 0 1 0 0 0")
