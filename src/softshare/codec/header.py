"""The header of a `.sws` file, version 0: zlib-compressed JSON, checked by hand before anything is believed."""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
import typing
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from softshare.config import Codec
from softshare.errors import FormatError, ModelError, SoftShareError

CODECS = typing.get_args(Codec)
MAX_VALUES = 1 << 33  # over all tensors of a file
MAX_HEADER_BYTES = 1 << 24  # decompressed
MAX_DIMENSIONS = 64  # torch's own limit

_FLOATS = ("float64", "float32", "float16", "bfloat16")
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in (*_FLOATS, "int8", "int16", "int32", "int64", "uint8", "bool")
}


@dataclass(frozen=True)
class SharedEntry:
    """A shared tensor in the header, as a JSON list in this order."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # decodes to
    codebook: int
    is_conv: bool
    n_bytes: int


@dataclass(frozen=True)
class RestEntry:
    """A tensor of the rest in the header, as a JSON list in this order."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # decodes to
    stored: str  # dtype of its bytes
    n_bytes: int


@dataclass(frozen=True)
class Header:
    codec: str
    codebooks: tuple[int, ...]
    shared: tuple[SharedEntry, ...]
    rest: tuple[RestEntry, ...]
    tied: dict[str, str]

    @property
    def entries(self) -> tuple[SharedEntry | RestEntry, ...]:
        return (*self.shared, *self.rest)

    @property
    def section_bytes(self) -> list[int]:
        return [4 * n for n in self.codebooks] + [e.n_bytes for e in self.entries]


def pack_header(header: Header) -> bytes:
    values = {f.name: getattr(header, f.name) for f in dataclasses.fields(header)}
    rows = {kind: [dataclasses.astuple(e) for e in values[kind]] for kind in ("shared", "rest")}
    text = json.dumps(values | rows, separators=(",", ":")).encode()
    expect(len(text) <= MAX_HEADER_BYTES, "header", f"at most {MAX_HEADER_BYTES} bytes", len(text), ModelError)
    return zlib.compress(text, 9)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_shape(value: Any) -> bool:
    return (
        type(value) is list
        and len(value) <= MAX_DIMENSIONS
        and all(_is_count(size) for size in value)
        and _n_values(value) <= MAX_VALUES
    )


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda v: type(v) is str, "a string"),
    "shape": (_is_shape, f"at most {MAX_DIMENSIONS} sizes of at most {MAX_VALUES} values together"),
    "dtype": (lambda v: type(v) is str and v in DTYPES, "one of " + ", ".join(DTYPES)),
    "stored": (lambda v: type(v) is str and v in DTYPES, "one of " + ", ".join(DTYPES)),
    "codebook": (_is_count, "a number of at least 0"),
    "is_conv": (lambda v: type(v) is bool, "true or false"),
    "n_bytes": (_is_count, "a number of at least 0"),
}

Entry = TypeVar("Entry", SharedEntry, RestEntry)


def _n_values(shape: Any) -> int:
    """A size of 0 counts as 1 here, so that the sizes beside it are bounded too."""
    return math.prod(max(size, 1) for size in shape)


def expect(
    condition: bool, where: str, expected: str, value: object, error: type[SoftShareError] = FormatError
) -> None:
    if not condition:
        raise error(f"{where}: expected {expected}, got {reprlib.repr(value)}")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def parse_header(packed: bytes) -> Header:
    values = _parse_json(_decompress(packed))
    names = [f.name for f in dataclasses.fields(Header)]
    expect(type(values) is dict and list(values) == names, "header", "an object of " + ", ".join(names), values)
    codec, codebooks, tied = values["codec"], values["codebooks"], values["tied"]
    expect(type(codec) is str and codec in CODECS, "codec", "one of " + ", ".join(CODECS), codec)
    counts = type(codebooks) is list and all(_is_count(n) and n > 0 for n in codebooks)
    expect(counts, "codebooks", "a list of sizes of at least 1", codebooks)
    expect(type(tied) is dict and all(type(v) is str for v in tied.values()), "tied", "names for names", tied)
    shared, rest = _rows(SharedEntry, values["shared"], "shared"), _rows(RestEntry, values["rest"], "rest")
    header = Header(codec, tuple(codebooks), shared, rest, tied)
    check_header(header, FormatError)
    return header


def _decompress(packed: bytes) -> bytes:
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(packed, MAX_HEADER_BYTES)
    except zlib.error as error:
        raise FormatError(f"header: expected zlib data, got {error}") from None
    whole = inflate.eof and not inflate.unused_data
    limit = f"one whole zlib stream of at most {MAX_HEADER_BYTES} bytes decompressed"
    expect(whole, "header", limit, "one that is longer or ends elsewhere")
    return text


def _parse_json(text: bytes) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        expect(len(dict(pairs)) == len(pairs), "header", "every key once", [key for key, _ in pairs])
        return dict(pairs)

    try:
        return json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"header: expected JSON, got {error}") from None


def _rows(kind: type[Entry], value: Any, where: str) -> tuple[Entry, ...]:
    expect(type(value) is list, where, "a list", value)
    return tuple(_row(kind, row, f"{where}[{i}]") for i, row in enumerate(value))


def _row(kind: type[Entry], row: Any, where: str) -> Entry:
    names = [f.name for f in dataclasses.fields(kind)]
    expect(type(row) is list and len(row) == len(names), where, "a list of " + ", ".join(names), row)
    for name, value in zip(names, row, strict=True):
        is_valid, expected = _FIELDS[name]
        expect(is_valid(value), f"{where} ({reprlib.repr(row[0])}) {name}", expected, value)
    name, shape, *others = row
    return kind(name, tuple(shape), *others)


def check_header(header: Header, error: type[SoftShareError]) -> None:
    """What concerns more than one field; the same for what is written as for what is read."""
    total = sum(_n_values(e.shape) for e in header.entries)
    expect(total <= MAX_VALUES, "shapes", f"at most {MAX_VALUES} values over all tensors", total, error)
    stored = Counter(e.name for e in header.entries)
    twice = [name for name, n in (stored + Counter(header.tied.keys())).items() if n > 1]
    expect(not twice, "names", "every name once", twice, error)
    astray = {alias: name for alias, name in header.tied.items() if name not in stored}
    expect(not astray, "tied", "names of stored tensors", astray, error)
    for s in header.shared:
        where, n_codebooks = f"shared tensor {s.name!r}", len(header.codebooks)
        expect(s.dtype in _FLOATS, where, "one of " + ", ".join(_FLOATS), s.dtype, error)
        expect(s.codebook < n_codebooks, where, f"a codebook below {n_codebooks}", s.codebook, error)
    for r in header.rest:
        floats = r.dtype in _FLOATS and r.stored in _FLOATS
        n_bytes = math.prod(r.shape) * DTYPES[r.stored].itemsize
        expect(r.stored == r.dtype or floats, f"tensor {r.name!r}", f"what decodes to {r.dtype}", r.stored, error)
        expect(r.n_bytes == n_bytes, f"tensor {r.name!r}", f"{n_bytes} bytes", r.n_bytes, error)
