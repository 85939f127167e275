"""The outline of a small file: its ordinary header, and of each section the number of non-zeros and the period.

`code_outline` is the order of its fields, and the models that predict them (docs/format.md 15.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from softshare.codec.compact.fields import (
    CHAIN,
    COLUMNS,
    COUNT,
    DIMENSIONS,
    FIRST,
    FORM,
    LETTER,
    LETTERS,
    NONZERO,
    PERIOD,
    PLAIN,
    PREFIX,
    ROWS,
    SAME,
    SIGN,
    SIZE,
    STEP,
    SUFFIX,
    VALUES,
    VECTOR,
    ZEROS,
    Fields,
)
from softshare.codec.header import CODEBOOK_DTYPES, CODECS, DTYPES, FLOATS, HAS_NAMES, LONG_PREFIX, MAGIC
from softshare.codec.header import VECTOR as AS_VECTOR
from softshare.codec.wire import Reader, varint
from softshare.errors import FormatError

MOST_BYTES = 1 << 10  # of an outline
MOST_TENSORS = 1 << 7
BEGIN = MAGIC + bytes([1, HAS_NAMES | CODECS.index("adaptive")])  # as of an ordinary file


@dataclass
class _Stem:
    """What the next name refers to."""

    octets: bytes = b""
    same: int = 0  # whether it was that of the name before
    suffix: int = 0


def code_outline(fields: Fields) -> bytes:
    """The outline, coded or decoded field by field. It is that of an ordinary file, up to the sections' codes."""
    fields.out += BEGIN
    for _ in range(_count(fields)):
        _codebook(fields)
    places, n_tensors = [], _count(fields)
    if n_tensors > MOST_TENSORS:
        raise FormatError(f"expected at most {MOST_TENSORS} tensors in a compact file, got {n_tensors}")
    stem, first = _Stem(), -1  # no size yet
    for _ in range(n_tensors):
        places.append(len(fields.out))
        _kind(fields)
        _name(fields, stem)
        first = _shape(fields, first, stem.suffix)
        _check_length(fields)
    for _ in range(_count(fields)):
        _name(fields, stem)
        fields.varint(COUNT)
        _check_length(fields)
    for place in places:
        start = len(fields.out)
        if fields.varint(NONZERO):
            period = fields.number(PERIOD, fields.given.byte() if fields.given else 0)
            _expect(period < 128, "a period below 128", period)
            fields.out.append(period)
        else:  # an ordinary section of zeros is empty
            del fields.out[start:]
        fields.out[place] |= (len(fields.out) - start) << 1
        _check_length(fields)
    return bytes(fields.out)


def _expect(condition: bool, expected: str, got: object) -> None:
    if not condition:
        raise FormatError(f"expected {expected}, got {got}")


def _check_length(fields: Fields) -> None:
    _expect(len(fields.out) <= MOST_BYTES, f"a header of at most {MOST_BYTES} bytes", len(fields.out))


def _count(fields: Fields) -> int:
    count = fields.varint(COUNT)
    _expect(count <= MOST_BYTES, f"a count of at most {MOST_BYTES}", count)
    return count


def _codebook(fields: Fields) -> None:
    """Magnitudes rise, so their differences are coded, without the zero bits that all of them end in."""
    n, form = divmod(fields.given.varint(), 4) if fields.given else (0, 0)
    n, form = fields.number(VALUES, n), fields.number(FORM, form)
    _expect(form < len(CODEBOOK_DTYPES), f"a dtype below {len(CODEBOOK_DTYPES)}", form)
    width = DTYPES[CODEBOOK_DTYPES[form]].itemsize
    _expect(n * width <= MOST_BYTES, f"a codebook of at most {MOST_BYTES} bytes", n * width)
    fields.out += varint(n << 2 | form)
    sign = 1 << (8 * width - 1)
    own = [int.from_bytes(fields.given.take(width), "little") for _ in range(n)] if fields.given else [0] * n
    ends = [(x & -x).bit_length() - 1 for x in own]  # the sign bit is above all others
    shift = fields.number(ZEROS, min(ends) if fields.given and n else 0)
    _expect(shift < 8 * width - 1, f"at most {8 * width - 2} zero bits", shift)
    before = 0
    for k, x in enumerate(own):
        negative = fields.bit(SIGN, x // sign)
        before += fields.number(STEP if k else FIRST, ((x % sign) >> shift) - before)
        _expect(before << shift < sign, f"magnitudes below {sign}", before << shift)
        fields.out += (negative * sign | before << shift).to_bytes(width, "little")
    _check_length(fields)


def _kind(fields: Fields) -> None:
    """Bytes of the section, which are added later, and the kind unless it is that of the tensor before."""
    plain = fields.given.varint() & 1 if fields.given else 0
    plain = fields.bit(PLAIN, plain)
    fields.out.append(plain)
    if not plain:
        dtype = fields.number(FORM, fields.given.byte() >> 1 if fields.given else 0)
        _expect(dtype < len(FLOATS), f"a dtype below {len(FLOATS)}", dtype)
        fields.out.append(dtype << 1)
        fields.varint(FORM)


def _name(fields: Fields, stem: _Stem) -> None:
    own, suffix = _given_name(fields.given, stem.octets) if fields.given else (b"", 0)
    same = fields.bit(SAME + stem.same, int(own == stem.octets))
    prefix = len(stem.octets)
    if not same:
        prefix = next((k for k in range(len(own), 0, -1) if stem.octets.startswith(own[:k])), 0)
        prefix, n = fields.number(PREFIX, prefix), fields.number(LETTERS, len(own) - prefix)
        _expect(prefix <= len(stem.octets), f"at most {len(stem.octets)} bytes of the name before", prefix)
        _expect(n <= MOST_BYTES, f"at most {MOST_BYTES} bytes of a name", n)
        letters = own[prefix:] if fields.given else bytes(n)
        stem.octets = stem.octets[:prefix] + bytes(fields.tree(LETTER, 8, x) for x in letters)
    stem.suffix = fields.tree(SUFFIX + 64 * same + 8 * stem.suffix, 3, suffix)
    stem.same = same
    fields.out.append(stem.suffix << 5 | min(prefix, LONG_PREFIX))
    if prefix >= LONG_PREFIX:
        fields.out += varint(prefix - LONG_PREFIX)
    fields.out += varint(len(stem.octets) - prefix) + stem.octets[prefix:]


def _given_name(given: Reader, before: bytes) -> tuple[bytes, int]:
    suffix, prefix = divmod(given.byte(), 32)
    if prefix == LONG_PREFIX:
        prefix += given.varint()
    return before[:prefix] + given.take(given.varint()), suffix


def _shape(fields: Fields, before: int, suffix: int) -> int:
    """Returns the first size, or -1. `before` is that of the tensor before."""
    n_dims = fields.given.byte() if fields.given else 0
    if before >= 0 and fields.bit(VECTOR + suffix, int(n_dims == AS_VECTOR)):
        fields.out.append(AS_VECTOR)
        return before
    n_dims = fields.number(DIMENSIONS, n_dims)
    _expect(n_dims <= 64, "at most 64 dimensions", n_dims)
    fields.out.append(n_dims)
    sizes: list[int] = []
    for k in range(n_dims):
        size = fields.given.varint() if fields.given else 0
        if k == 1 and before >= 0 and fields.bit(CHAIN, int(size == before)):
            size = before
        else:
            size = fields.number((ROWS, COLUMNS, SIZE)[min(k, 2)], size)
        fields.out += varint(size)
        sizes.append(size)
    return sizes[0] if sizes else -1
