"""Bytes to a header (docs/format.md 3 and 4).

The reader believes nothing before it has checked it, and allocates no more than the file's own size accounts for.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from softshare.codec.header import (
    BASE_BYTES,
    CODEBOOK_DTYPES,
    CODECS,
    COMPACT,
    DTYPE_NAMES,
    DTYPES,
    FIRST_KIND,
    FLOATS,
    HAS_BASE,
    HAS_NAMES,
    LONG_PREFIX,
    MAGIC,
    MAX_CODEBOOKS,
    MAX_DIMENSIONS,
    MAX_ENTRIES,
    MAX_NAME_BYTES,
    MAX_NAMES_BYTES,
    NO_SHAPE,
    SUFFIXES,
    VECTOR,
    VERSIONS,
    Codebook,
    Entry,
    Header,
    Rest,
    Shared,
)
from softshare.codec.header_checks import codebook_problem, header_problems, name_problem, shape_problem
from softshare.codec.symbols import MAX_CODEBOOK_VALUES
from softshare.codec.wire import Reader
from softshare.errors import ModelError


def read_prefix(reader: Reader) -> int:
    """The version of the format."""
    magic = reader.take(min(len(MAGIC), reader.remaining)) if reader.remaining > 0 else b""
    reader.expect(magic == MAGIC, f"a file that begins with {MAGIC!r}, as every .sws file does", magic, at=0)
    version = reader.byte()
    if version not in VERSIONS:
        known = " or ".join(map(str, VERSIONS))
        reader.fail(f"expected version {known}, got {version}. Another version of softshare may read it", len(MAGIC))
    return version


def read_header(reader: Reader, version: int, layout: Sequence[tuple[str, tuple[int, ...]]] | None = None) -> Header:
    """Everything between prefix and sections. `layout`, a network's names and shapes, is for a file without names.

    If both are missing, entries have numbers as names, and empty shapes. That suffices to inspect the file, but not to
    decode it.
    """
    reader.section = "header"
    flags = reader.byte()
    if version > 1 and flags == COMPACT | HAS_NAMES | CODECS.index("adaptive"):
        from softshare.codec import compact  # loads numba

        return compact.opened(reader)
    most = 4 if version == 1 else 8
    reader.expect(flags < most, f"flags below {most}", flags, reader.offset - 1)
    has_names = bool(flags & HAS_NAMES)
    reader.expect(has_names or not flags & HAS_BASE, "names in a file of differences", flags, reader.offset - 1)
    base = reader.take(BASE_BYTES) if flags & HAS_BASE else b""
    n_codebooks = _read_count(reader, MAX_CODEBOOKS, "codebooks")
    codebooks = tuple(_read_codebook(reader, k) for k in range(n_codebooks))
    reader.section = "header"
    n_entries = _read_count(reader, MAX_ENTRIES, "tensors")
    names = _Names(reader)
    entries: list[Entry] = []
    kind, shape = FIRST_KIND, NO_SHAPE
    given = None if has_names else layout
    if given is not None and len(given) != n_entries:
        raise ModelError(f"expected a network of {n_entries} tensors, the number in the file, got {len(given)}")
    for k in range(n_entries):
        reader.section = f"header, tensor {k}"
        n_bytes, own_kind = _read_kind(reader, kind, len(codebooks), version)
        if has_names:
            name, shape = names.read(), _read_shape(reader, shape)
        else:
            name, shape = given[k] if given is not None else (f"#{k}", NO_SHAPE)
        entries.append(Entry(name, shape, own_kind, n_bytes))
        kind = own_kind if isinstance(own_kind, Shared) else kind
    reader.section = "header, tied names"
    tied = _read_tied(reader, names, entries) if has_names else {}
    reader.section = "header"
    alone = _read_alone(reader, entries) if base else ()
    header = Header(CODECS[flags & 1], has_names, codebooks, _located(reader, entries), tied, base, alone)
    for problem in header_problems(header):
        reader.fail(problem)
    if header.version != version:
        reader.fail(f"expected version {header.version}, whose features the file has, got {version}", len(MAGIC))
    return header


def _read_count(reader: Reader, most: int, what: str) -> int:
    """A count of items. Each item takes at least a byte, so there are no more than bytes left in the file."""
    start = reader.offset
    n = reader.varint()
    reader.expect(n <= min(most, reader.remaining), f"at most {min(most, reader.remaining)} {what}", n, start)
    return n


def _located(reader: Reader, entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries with their offsets. Sections follow the header one by one and end at the checksum (3.4)."""
    ends = list(itertools.accumulate((e.n_bytes for e in entries), initial=reader.offset))
    reader.expect(ends[-1] == reader.end, f"sections that end at byte {reader.end}", ends[-1])
    return tuple(dataclasses.replace(e, offset=offset) for e, offset in zip(entries, ends, strict=False))


def _read_codebook(reader: Reader, number: int) -> Codebook:
    reader.section = f"codebook {number}"
    start = reader.offset
    n, code = divmod(reader.varint(), 4)
    reader.expect(code < len(CODEBOOK_DTYPES), f"a dtype below {len(CODEBOOK_DTYPES)}", code, start)
    reader.expect(n < MAX_CODEBOOK_VALUES, f"fewer than {MAX_CODEBOOK_VALUES} values other than 0", n, start)
    dtype = CODEBOOK_DTYPES[code]
    data = reader.take(n * DTYPES[dtype].itemsize)
    values = np.zeros(n + 1, np.float32)
    values[1:] = unpack_values(data, dtype)
    problem = codebook_problem(values)
    if problem:
        reader.fail(problem, start)
    return Codebook(values, dtype)


def unpack_values(data: bytes, dtype: str) -> npt.NDArray[np.float32]:
    """The inverse of `pack_values`."""
    if dtype == "bfloat16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, "<f4" if dtype == "float32" else "<f2").astype(np.float32)


def _read_kind(reader: Reader, before: Shared, n_codebooks: int, version: int) -> tuple[int, Shared | Rest]:
    """Length of the section, and the kind of its tensor. A plain tensor is like the shared tensor before it."""
    start = reader.offset
    n_bytes, plain = divmod(reader.varint(), 2)
    first = reader.byte() if not plain else 0
    if first & 1:
        static = version > 1 and bool(first & 128)
        dtype = _dtype(reader, first >> 3 & 15 if static else first >> 3, DTYPE_NAMES)
        reader.expect(not static or bool(first & 2), "byte planes for a static code of them", first, reader.offset - 1)
        stored = _dtype(reader, reader.byte(), DTYPE_NAMES) if first & 4 else dtype
        narrower = {stored, dtype} <= set(FLOATS) and DTYPES[stored].itemsize < DTYPES[dtype].itemsize
        reader.expect(narrower or not first & 4, f"a narrower dtype that decodes to {dtype}", stored, start)
        return n_bytes, Rest(dtype, stored, bool(first & 2), static)
    kind = before if plain else _read_shared(reader, first, version)
    reader.expect(kind.codebook < n_codebooks, f"a codebook below {n_codebooks}", kind.codebook, start)
    return n_bytes, kind


def _read_shared(reader: Reader, first: int, version: int) -> Shared:
    if version == 1:
        return Shared(_dtype(reader, first >> 1, FLOATS), reader.varint())
    reader.expect(first & 144 != 144, "a static code or bands, not both", first, reader.offset - 1)
    dtype = _dtype(reader, first >> 1 & 7, FLOATS)
    return Shared(dtype, reader.varint(), *(bool(first >> bit & 1) for bit in (5, 6, 7, 4)))


def _dtype(reader: Reader, code: int, known: tuple[str, ...]) -> str:
    reader.expect(code < len(known), f"a dtype below {len(known)}", code, reader.offset - 1)
    return known[code]


class _Names:
    """Reads names, each relative to the stem of the one before it (4.3)."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._stem = b""
        self._total = 0

    def read(self) -> str:
        reader, start = self._reader, self._reader.offset
        suffix, prefix = divmod(reader.byte(), 32)
        if prefix == LONG_PREFIX:
            prefix += reader.varint()
        reader.expect(prefix <= len(self._stem), f"at most {len(self._stem)} bytes of the name before", prefix, start)
        n = reader.varint()
        reader.expect(prefix + n <= MAX_NAME_BYTES, f"a name of at most {MAX_NAME_BYTES} bytes", prefix + n, start)
        self._stem = self._stem[:prefix] + reader.take(n)
        name = self._stem + SUFFIXES[suffix]
        self._total += len(name)
        reader.expect(self._total <= MAX_NAMES_BYTES, f"names of at most {MAX_NAMES_BYTES} bytes", self._total, start)
        problem = name_problem(name)
        if problem:
            reader.fail(problem, start)
        return name.decode()


def _read_shape(reader: Reader, before: tuple[int, ...]) -> tuple[int, ...]:
    start = reader.offset
    n_dims = reader.byte()
    if n_dims == VECTOR and before:
        return before[:1]
    reader.expect(n_dims <= MAX_DIMENSIONS, f"at most {MAX_DIMENSIONS} dimensions", n_dims, start)
    shape = tuple(reader.varint() for _ in range(n_dims))
    problem = shape_problem(shape)
    if problem:
        reader.fail(problem, start)
    return shape


def _read_alone(reader: Reader, entries: list[Entry]) -> tuple[str, ...]:
    """Numbers of entries, rising."""
    found, before = [], -1
    for _ in range(_read_count(reader, MAX_ENTRIES, "tensors that stand alone")):
        start = reader.offset
        number = reader.varint()
        rises = before < number < len(entries) and isinstance(entries[number].kind, Shared)
        reader.expect(rises, f"a shared tensor above {before} and below {len(entries)}", number, start)
        found.append(entries[number].name)
        before = number
    return tuple(found)


def _read_tied(reader: Reader, names: _Names, entries: list[Entry]) -> dict[str, str]:
    n, tied = _read_count(reader, MAX_ENTRIES, "tied names"), {}
    for _ in range(n):
        start = reader.offset
        alias = names.read()
        number = reader.varint()
        reader.expect(number < len(entries), f"a tensor below {len(entries)}", number, start)
        reader.expect(alias not in tied, "each name once", alias, start)
        tied[alias] = entries[number].name
    return tied
