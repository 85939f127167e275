"""Files of GGUF, the format of llama.cpp. Quantized tensors come back as the float32 numbers that they stand for."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from softshare._util.files import cannot_read
from softshare.network.readers.gguf_blocks import QUANTIZED
from softshare.network.readers.lazy import MOST_DIMENSIONS, MOST_TENSORS, Cursor, LazyTensors, kind_of, read_span

MAGIC = b"GGUF"
VERSIONS = (2, 3)
PLAIN = {
    0: torch.float32, 1: torch.float16, 24: torch.int8, 25: torch.int16, 26: torch.int32, 27: torch.int64,
    28: torch.float64, 30: torch.bfloat16,
}  # fmt: skip
KNOWN = "F32, F16, BF16, F64, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K and integers"
ALIGNMENT = 32  # unless the file says otherwise
_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, None, None, 8, 8, 8)  # bytes of a value in the metadata, by the number of its type
_UINT32, _TEXT, _ARRAY = 4, 8, 9
_CHUNK = 1 << 14  # blocks that are decoded at a time


@dataclass(frozen=True)
class _Place:
    type: int
    offset: int  # in the data
    n_bytes: int


def open_gguf(path: str | os.PathLike[str]) -> LazyTensors:
    """The header is read once, and every size in it is checked against the file."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            cursor = Cursor(file, len(MAGIC), size, path, "GGUF")
            kinds, places, start = _read_header(cursor)
    except OSError as error:
        raise cannot_read(path, error) from error
    _require_apart(cursor, places, start)

    def read(name: str) -> Tensor:
        kind, place = kinds[name], places[name]
        data = read_span(path, start + place.offset, place.n_bytes)
        if place.type in PLAIN:
            return torch.from_numpy(data).view(kind.dtype).reshape(kind.shape)
        blocks = QUANTIZED[place.type]
        out = np.empty((place.n_bytes // blocks.n_bytes, blocks.size), np.float32)
        rows = data.reshape(-1, blocks.n_bytes)
        with np.errstate(all="ignore"):  # a scale may be infinite. Whoever uses the weights says so
            for k in range(0, len(rows), _CHUNK):
                out[k : k + _CHUNK] = blocks.decode(rows[k : k + _CHUNK])
        return torch.from_numpy(out).reshape(kind.shape)

    return LazyTensors(kinds, read)


def _read_header(cursor: Cursor) -> tuple[dict[str, Tensor], dict[str, _Place], int]:
    """Shapes and dtypes, where the tensors are, and where the data begin."""
    version = cursor.number(4)
    if version not in VERSIONS:
        cursor.fail(f"expected version {VERSIONS[0]} or {VERSIONS[1]}, little-endian, got {version}")
    n_tensors, n_values = cursor.number(8), cursor.number(8)
    if n_tensors > MOST_TENSORS:
        cursor.fail(f"expected at most {MOST_TENSORS} tensors, got {n_tensors}")
    if 13 * n_values + 24 * n_tensors > cursor.remaining:  # the least that each of them takes
        cursor.fail(f"expected {n_values} values and {n_tensors} tensors, got {cursor.remaining} bytes in all")
    alignment = ALIGNMENT
    for _ in range(n_values):
        key, kind = cursor.text(cursor.number(8)), cursor.number(4)
        if key == "general.alignment" and kind == _UINT32:
            alignment = cursor.number(4)
        else:
            _skip_value(cursor, kind)
    if not 1 <= alignment <= 1 << 20:
        cursor.fail(f"expected an alignment of 1 to {1 << 20} bytes, got {alignment}")
    kinds: dict[str, Tensor] = {}
    places: dict[str, _Place] = {}
    for _ in range(n_tensors):
        name = cursor.text(cursor.number(8))
        if name in kinds:
            cursor.fail(f"expected each name once, got {name!r} twice")
        kinds[name], places[name] = _read_place(cursor)
    return kinds, places, -(-cursor.offset // alignment) * alignment


def _skip_value(cursor: Cursor, kind: int) -> None:
    if kind == _ARRAY:
        inner, n = cursor.number(4), cursor.number(8)
        if inner == _TEXT:
            cursor.require(8 * n)
            for _ in range(n):
                cursor.skip(cursor.number(8))
        else:
            cursor.skip(n * _size(cursor, inner))
    elif kind == _TEXT:
        cursor.skip(cursor.number(8))
    else:
        cursor.skip(_size(cursor, kind))


def _size(cursor: Cursor, kind: int) -> int:
    size = _SIZES[kind] if kind < len(_SIZES) else None
    return size or cursor.fail(f"expected a value of a known type in the metadata, got type {kind}")


def _read_place(cursor: Cursor) -> tuple[Tensor, _Place]:
    n_dims = cursor.number(4)
    if n_dims > MOST_DIMENSIONS:
        cursor.fail(f"expected at most {MOST_DIMENSIONS} dimensions, got {n_dims}")
    shape = [cursor.number(8) for _ in range(n_dims)][::-1]  # the file has the last dimension first
    number, offset = cursor.number(4), cursor.number(8)
    if number not in PLAIN and number not in QUANTIZED:
        cursor.fail(f"expected a tensor of type {KNOWN}, got type {number}")
    dtype = PLAIN.get(number, torch.float32)
    kind = kind_of(shape, dtype, cursor.fail)
    if number in PLAIN:
        return kind, _Place(number, offset, kind.nbytes)
    blocks = QUANTIZED[number]
    if not shape or shape[-1] % blocks.size:
        cursor.fail(f"expected rows of whole blocks of {blocks.size} weights, got the shape {shape}")
    return kind, _Place(number, offset, math.prod(shape) // blocks.size * blocks.n_bytes)


def _require_apart(cursor: Cursor, places: dict[str, _Place], start: int) -> None:
    """Every tensor lies within the file, and no two of them overlap: so decoding takes no more than the file allows."""
    end, before = 0, ""
    for name, place in sorted(places.items(), key=lambda item: (item[1].offset, item[1].n_bytes)):
        if place.n_bytes and place.offset < end:
            cursor.fail(f"expected tensors that do not overlap, but {name!r} begins within {before!r}")
        end, before = max(end, place.offset + place.n_bytes), name
    if start + end > cursor.end:
        cursor.fail(f"expected {start + end} bytes, as its tensors need, got {cursor.end}: it is cut short or damaged")
