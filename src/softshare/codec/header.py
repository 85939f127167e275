"""The header of a `.sws` file, version 1: its contents, to bytes and back (docs/format.md 3 and 4).

The reader believes nothing before it has checked it, and allocates no more than the file's own size accounts for.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from softshare.codec.symbols import MAX_CODEBOOK_VALUES
from softshare.codec.wire import Reader, varint
from softshare.config.settings import Codec
from softshare.errors import ModelError

MAGIC = b"\x89SWS"  # 3.1
VERSION = 1
CODECS: tuple[Codec, ...] = ("han", "adaptive")  # 3.1: bit 0 of the flags
_HAS_NAMES = 2  # bit 1
MAX_ENTRIES = 1 << 16  # section 7 has all the limits
MAX_CODEBOOKS = 1 << 16
MAX_DIMENSIONS = 64  # torch's own
MAX_VALUES = 1 << 40  # of all tensors together
MAX_NAME_BYTES = 1 << 12
MAX_NAMES_BYTES = 1 << 24  # of all names together, because a name may repeat most of the one before it
SUFFIXES = (  # 4.3
    b"", b".weight", b".bias", b".running_mean", b".running_var", b".num_batches_tracked", b".in_proj_weight",
    b".in_proj_bias",
)  # fmt: skip
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")
_LONG_PREFIX = 31
_VECTOR = 128  # 4.4
DTYPES: dict[str, torch.dtype] = {  # 4.2: a dtype's number is its place here
    name: getattr(torch, name)
    for name in (
        "float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool",
    )
}  # fmt: skip
FLOATS = tuple(name for name, dtype in DTYPES.items() if dtype.is_floating_point)
CODEBOOK_DTYPES = FLOATS[:3]  # 3.2
_NAMES = tuple(DTYPES)


@dataclass(frozen=True, eq=False)
class Codebook:
    """Values as float32, ordered by magnitude from 0.0, and the dtype that stores them."""

    values: npt.NDArray[np.float32]
    dtype: str


@dataclass(frozen=True)
class Shared:
    """How a shared tensor is stored (4.2)."""

    dtype: str  # that it decodes to
    codebook: int


@dataclass(frozen=True)
class Rest:
    """How a tensor that is not shared is stored (4.2)."""

    dtype: str  # that it decodes to
    stored: str  # dtype of the values in its section
    planes: bool  # whether it is coded by byte plane; else it is raw


@dataclass(frozen=True)
class Entry:
    """One stored tensor. If the file has no names, the network gives name and shape."""

    name: str
    shape: tuple[int, ...]
    kind: Shared | Rest
    n_bytes: int  # of its section
    offset: int = 0  # of its section, in the file

    @property
    def n(self) -> int:
        return math.prod(self.shape)

    @property
    def decoded_bytes(self) -> int:
        return self.n * DTYPES[self.kind.dtype].itemsize


_FIRST_KIND = Shared("float32", 0)  # the first entry may repeat this
_NO_SHAPE: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Header:
    codec: str
    has_names: bool
    codebooks: tuple[Codebook, ...]
    entries: tuple[Entry, ...]
    tied: dict[str, str]


# Write


def pack_header(header: Header) -> bytes:
    flags = CODECS.index(header.codec) | (_HAS_NAMES if header.has_names else 0)
    parts = [MAGIC, bytes([VERSION, flags]), varint(len(header.codebooks))]
    for codebook in header.codebooks:
        parts.append(varint((len(codebook.values) - 1) << 2 | CODEBOOK_DTYPES.index(codebook.dtype)))
        parts.append(pack_values(codebook.values[1:], codebook.dtype))
    parts.append(varint(len(header.entries)))
    kind, shape, stem = _FIRST_KIND, _NO_SHAPE, b""
    for entry in header.entries:
        plain = entry.kind == kind
        parts.append(varint(entry.n_bytes << 1 | plain))
        if not plain:
            parts.append(_pack_kind(entry.kind))
        if header.has_names:
            name, stem = _pack_name(entry.name, stem)
            parts += [name, _pack_shape(entry.shape, shape)]
        shape, kind = entry.shape, entry.kind if isinstance(entry.kind, Shared) else kind
    if header.has_names:
        number = {entry.name: k for k, entry in enumerate(header.entries)}
        parts.append(varint(len(header.tied)))
        for alias, target in header.tied.items():
            name, stem = _pack_name(alias, stem)
            parts += [name, varint(number[target])]
    return b"".join(parts)


def pack_values(values: npt.NDArray[np.float32], dtype: str) -> bytes:
    """Little-endian bytes of float32 values that `dtype` holds exactly. A bfloat16 is the upper half of a float32."""
    if dtype == "bfloat16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype("<f4" if dtype == "float32" else "<f2").tobytes()


def _pack_kind(kind: Shared | Rest) -> bytes:
    dtype = _NAMES.index(kind.dtype)
    if isinstance(kind, Shared):
        return bytes([dtype << 1]) + varint(kind.codebook)
    narrowed = kind.stored != kind.dtype
    first = dtype << 3 | narrowed << 2 | kind.planes << 1 | 1
    return bytes([first, _NAMES.index(kind.stored)] if narrowed else [first])


def _pack_name(name: str, stem_before: bytes) -> tuple[bytes, bytes]:
    """The bytes of a name, relative to the stem of the name before it, and its own stem."""
    data = name.encode()
    suffix = max((k for k, s in enumerate(SUFFIXES) if data.endswith(s)), key=lambda k: len(SUFFIXES[k]))
    stem = data[: len(data) - len(SUFFIXES[suffix])]
    prefix = next((k for k in range(len(stem), 0, -1) if stem_before.startswith(stem[:k])), 0)
    out = bytes([suffix << 5 | min(prefix, _LONG_PREFIX)])
    if prefix >= _LONG_PREFIX:
        out += varint(prefix - _LONG_PREFIX)
    return out + varint(len(stem) - prefix) + stem[prefix:], stem


def _pack_shape(shape: tuple[int, ...], before: tuple[int, ...]) -> bytes:
    if before and shape == before[:1]:
        return bytes([_VECTOR])
    return bytes([len(shape)]) + b"".join(varint(size) for size in shape)


def dtype_name(name: str, dtype: torch.dtype) -> str:
    known = str(dtype).removeprefix("torch.")
    if known not in DTYPES:
        raise ModelError(f"tensor {name!r}: cannot store {dtype}; expected one of {', '.join(DTYPES)}")
    return known


def check_writable(header: Header) -> None:
    """Raise `ModelError` if the format cannot hold the header. The reader would refuse it."""
    check_names([e.name for e in header.entries], header.tied)
    problems = [_shape_problem(e.shape) for e in header.entries]
    problems += [codebook_problem(codebook.values) for codebook in header.codebooks]
    problems += _header_problems(header)
    _raise_first(problems)


def check_names(names: Sequence[str], tied: Collection[str]) -> None:
    """Raise `ModelError` if a file cannot hold these names of stored tensors, or these tied names."""
    every = [*names, *tied]
    _raise_first([*_names_problems(names, tied), *(_name_problem(n.encode(errors="surrogatepass")) for n in every)])


def _raise_first(problems: Sequence[str | None]) -> None:
    found = [problem for problem in problems if problem]
    if found:
        raise ModelError("; ".join(found[:5]))


# Checks of both the writer and the reader


def _name_problem(name: bytes) -> str | None:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return f"expected a name in UTF-8, got {name[:40]!r}"
    if not 1 <= len(name) <= MAX_NAME_BYTES:
        return f"expected a name of 1 to {MAX_NAME_BYTES} bytes, got {len(name)}"
    if _CONTROL.search(text):
        return f"expected a name without control characters, got {text[:40]!r}"
    return None


def _shape_problem(shape: tuple[int, ...]) -> str | None:
    if len(shape) > MAX_DIMENSIONS or _n_values(shape) > MAX_VALUES:
        return f"expected at most {MAX_DIMENSIONS} sizes of at most {MAX_VALUES} values together, got {shape[:8]}"
    return None


def _n_values(shape: tuple[int, ...]) -> int:
    """The number of values, with a size of 0 counted as 1, so that the sizes beside it are bounded too."""
    return math.prod(max(size, 1) for size in shape)


def codebook_problem(values: npt.NDArray[np.float32]) -> str | None:
    magnitudes = np.abs(values)
    if len(values) > MAX_CODEBOOK_VALUES:
        return f"expected at most {MAX_CODEBOOK_VALUES} values, got {len(values)}"
    if not np.isfinite(values).all() or not magnitudes[1:].all() or (np.diff(magnitudes) < 0).any():
        return f"expected finite values other than 0, ordered by magnitude, got {values[1:9].tolist()}"
    return None


def _header_problems(header: Header) -> list[str]:
    """Problems that concern more than one entry."""
    problems = []
    total = sum(_n_values(e.shape) for e in header.entries)
    if total > MAX_VALUES:
        problems.append(f"expected at most {MAX_VALUES} values over all tensors, got {total}")
    return problems + _names_problems([e.name for e in header.entries], header.tied)


def _names_problems(stored: Sequence[str], tied: Collection[str]) -> list[str]:
    problems, names = [], [*stored, *tied]
    n_bytes = sum(len(name.encode(errors="surrogatepass")) for name in names)
    if max(len(stored), len(tied)) > MAX_ENTRIES or n_bytes > MAX_NAMES_BYTES:
        limit = f"{MAX_ENTRIES} names of {MAX_NAMES_BYTES} bytes together"
        problems.append(f"expected at most {limit}, got {len(names)} of {n_bytes}")
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        problems.append(f"expected each name once, got {twice[:3]} more than once")
    return problems


# Read


def read_prefix(reader: Reader) -> None:
    magic = reader.take(min(len(MAGIC), reader.remaining)) if reader.remaining > 0 else b""
    reader.expect(magic == MAGIC, f"a file that begins with {MAGIC!r}, as every .sws file does", magic, at=0)
    version = reader.byte()
    if version != VERSION:
        reader.fail(f"expected version {VERSION}, got {version}. Another version of softshare may read it", len(MAGIC))


def read_header(reader: Reader, layout: Sequence[tuple[str, tuple[int, ...]]] | None = None) -> Header:
    """Everything between prefix and sections. `layout`, a network's names and shapes, is for a file without names.

    If both are missing, entries have numbers as names, and empty shapes. That suffices to inspect the file, but not to
    decode it.
    """
    reader.section = "header"
    flags = reader.byte()
    reader.expect(flags < 4, "flags below 4", flags, reader.offset - 1)
    has_names = bool(flags & _HAS_NAMES)
    n_codebooks = _read_count(reader, MAX_CODEBOOKS, "codebooks")
    codebooks = tuple(_read_codebook(reader, k) for k in range(n_codebooks))
    reader.section = "header"
    n_entries = _read_count(reader, MAX_ENTRIES, "tensors")
    names = _Names(reader)
    entries: list[Entry] = []
    kind, shape = _FIRST_KIND, _NO_SHAPE
    given = None if has_names else layout
    if given is not None and len(given) != n_entries:
        raise ModelError(f"expected a network of {n_entries} tensors, the number in the file, got {len(given)}")
    for k in range(n_entries):
        reader.section = f"header, tensor {k}"
        n_bytes, own_kind = _read_kind(reader, kind, len(codebooks))
        if has_names:
            name, shape = names.read(), _read_shape(reader, shape)
        else:
            name, shape = given[k] if given is not None else (f"#{k}", _NO_SHAPE)
        entries.append(Entry(name, shape, own_kind, n_bytes))
        kind = own_kind if isinstance(own_kind, Shared) else kind
    reader.section = "header, tied names"
    tied = _read_tied(reader, names, entries) if has_names else {}
    reader.section = "header"
    header = Header(CODECS[flags & 1], has_names, codebooks, _located(reader, entries), tied)
    for problem in _header_problems(header):
        reader.fail(problem)
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


def _read_kind(reader: Reader, before: Shared, n_codebooks: int) -> tuple[int, Shared | Rest]:
    """Length of the section, and the kind of its tensor. A plain tensor is like the shared tensor before it."""
    start = reader.offset
    n_bytes, plain = divmod(reader.varint(), 2)
    first = reader.byte() if not plain else 0
    if first & 1:
        dtype = _dtype(reader, first >> 3, _NAMES)
        stored = _dtype(reader, reader.byte(), _NAMES) if first & 4 else dtype
        narrower = {stored, dtype} <= set(FLOATS) and DTYPES[stored].itemsize < DTYPES[dtype].itemsize
        reader.expect(narrower or not first & 4, f"a narrower dtype that decodes to {dtype}", stored, start)
        return n_bytes, Rest(dtype, stored, bool(first & 2))
    kind = before if plain else Shared(_dtype(reader, first >> 1, FLOATS), reader.varint())
    reader.expect(kind.codebook < n_codebooks, f"a codebook below {n_codebooks}", kind.codebook, start)
    return n_bytes, kind


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
        if prefix == _LONG_PREFIX:
            prefix += reader.varint()
        reader.expect(prefix <= len(self._stem), f"at most {len(self._stem)} bytes of the name before", prefix, start)
        n = reader.varint()
        reader.expect(prefix + n <= MAX_NAME_BYTES, f"a name of at most {MAX_NAME_BYTES} bytes", prefix + n, start)
        self._stem = self._stem[:prefix] + reader.take(n)
        name = self._stem + SUFFIXES[suffix]
        self._total += len(name)
        reader.expect(self._total <= MAX_NAMES_BYTES, f"names of at most {MAX_NAMES_BYTES} bytes", self._total, start)
        problem = _name_problem(name)
        if problem:
            reader.fail(problem, start)
        return name.decode()


def _read_shape(reader: Reader, before: tuple[int, ...]) -> tuple[int, ...]:
    start = reader.offset
    n_dims = reader.byte()
    if n_dims == _VECTOR and before:
        return before[:1]
    reader.expect(n_dims <= MAX_DIMENSIONS, f"at most {MAX_DIMENSIONS} dimensions", n_dims, start)
    shape = tuple(reader.varint() for _ in range(n_dims))
    problem = _shape_problem(shape)
    if problem:
        reader.fail(problem, start)
    return shape


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
