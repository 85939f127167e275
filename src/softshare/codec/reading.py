"""Files that need not lie on a disk, and parts of tensors: only the blocks that are wanted are read."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from softshare._util.files import require_readable
from softshare.codec import shared_section as shared
from softshare.codec.header import DTYPES, Codebook, Entry, Rest, Shared
from softshare.codec.parallel import Run, one_by_one
from softshare.codec.rest_section import from_octets
from softshare.codec.symbols import matrix_shape
from softshare.codec.wire import Reader
from softshare.errors import ConfigError, FormatError
from softshare.quantization.quantized import QuantizedTensor, index_dtype

if TYPE_CHECKING:
    from softshare.codec.static.layout import Layout

Source = str | os.PathLike[str] | BinaryIO
BLOCK = 1 << 14  # bytes that are read at once, at least, where there is no file on a disk


class _Blocks(io.RawIOBase):
    """Any object with `read` and `seek` as a raw file, so that a buffer can be put before it."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = self._source.seek(offset, whence)
        return int(self._source.tell() if at is None else at)

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def is_open(source: Source) -> bool:
    """Whether this is an object to read from, and not the path of a file."""
    return hasattr(source, "read") and hasattr(source, "seek")


def name_of(source: Source) -> str:
    return str(getattr(source, "name", "the file")) if is_open(source) else os.fspath(cast(str, source))


@contextlib.contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """A file open for reading. Errors carry its path. An object of the caller's stays open."""
    try:
        if is_open(source):
            yield cast(BinaryIO, io.BufferedReader(_Blocks(source), BLOCK))
            return
        path = cast(str, source)
        require_readable(path)
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"cannot read {name_of(source)}: {error.strerror or error}") from error
    except FormatError as error:
        raise FormatError(error.problem, error.section, error.offset, name_of(source)) from error
    except ConfigError as error:
        raise ConfigError(f"{name_of(source)}: {error}") from error


def decoded_part(file: BinaryIO, entry: Entry, rows: range) -> Entry:
    """The entry as if the tensor had only the rows that are decoded for these: of some codes whole bands, or all."""
    if isinstance(entry.kind, Shared) and entry.kind.bands:
        return dataclasses.replace(entry, shape=(_n_rows_of_bands(file, entry, entry.kind, rows), *entry.shape[1:]))
    whole = isinstance(entry.kind, Shared) and not entry.kind.static
    whole = whole or (isinstance(entry.kind, Rest) and entry.kind.planes and not entry.kind.static)
    return entry if whole else dataclasses.replace(entry, shape=(len(rows), *entry.shape[1:]))


def _n_rows_of_bands(file: BinaryIO, entry: Entry, kind: Shared, rows: range) -> int:
    """How many rows the bands have that hold these rows. The scales before them are not decoded."""
    file.seek(entry.offset)
    reader = Reader(file, entry.offset + entry.n_bytes)
    if not reader.remaining or not len(rows):
        return len(rows)
    n_nonzero = reader.varint()
    for has_scales in (kind.row_scales, kind.column_scales):
        if has_scales:
            n_bytes = reader.varint()
            reader.skip_to(reader.offset + n_bytes)
    found = _bands_with(reader, entry.shape, n_nonzero, rows)
    n_rows: int = found[-1][0].stop - found[0][0].start
    return n_rows


def checked_rows(entry: Entry, rows: range) -> None:
    most = entry.shape[0] if entry.shape else 0
    if rows.step != 1 or not 0 <= rows.start <= rows.stop <= most:
        raise ConfigError(f"rows: expected a range within the {most} rows of {entry.name}, got {rows}")


def some_rows(
    file: BinaryIO, entry: Entry, rows: range, codebook: Codebook | None, codec: str, run: Run = one_by_one
) -> QuantizedTensor | Tensor:
    """These rows of a tensor. A code that cannot be read in parts is decoded whole."""
    shape = (len(rows), *entry.shape[1:])
    file.seek(entry.offset)
    reader = Reader(file, entry.offset + entry.n_bytes)
    if isinstance(entry.kind, Rest):
        return _rest_rows(reader, file, entry, entry.kind, rows, run)
    assert codebook is not None
    kind, n_values = entry.kind, len(codebook.values)
    if not kind.static and not kind.bands:
        data = reader.take(entry.n_bytes)
        whole = shared.decode(data, entry, kind, codebook, codec, run)
        return dataclasses.replace(
            whole,
            shape=shape,
            indices=whole.indices.reshape(entry.shape[0], -1)[rows.start : rows.stop].reshape(-1),
            row_scales=None if whole.row_scales is None else whole.row_scales[rows.start : rows.stop],
        )
    from softshare.codec.static import layout

    head = shared.read_head(reader, entry, kind, codebook)
    n_cols = math.prod(entry.shape[1:])
    if not head.n_nonzero or not len(rows) or not n_cols:
        indices = torch.zeros(len(rows) * n_cols, dtype=index_dtype(n_values))
    elif kind.static:
        code = layout.read(reader, *matrix_shape(entry.shape), n_values)
        indices = torch.from_numpy(_symbols(reader, file, code, rows.start * n_cols, rows.stop * n_cols, run))
    else:
        indices = torch.from_numpy(_band_rows(reader, file, entry.shape, n_values, head.n_nonzero, rows, run))
    row_scales = None if head.rows is None else head.rows[rows.start : rows.stop]
    values = torch.from_numpy(codebook.values)
    return QuantizedTensor(entry.name, shape, DTYPES[kind.dtype], indices, values, row_scales, head.columns)


def _at(file: BinaryIO, offset: int, n: int) -> bytes:
    file.seek(offset)
    data = file.read(n)
    if len(data) < n:
        raise FormatError(f"expected {n} bytes from byte {offset} on, got {len(data)}: the file is cut short")
    return data


def _symbols(
    reader: Reader, file: BinaryIO, head: Layout, first: int, last: int, run: Run
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The symbols from number `first` up to `last`, and of the file only the chunks that hold them."""
    from softshare.codec.static import code

    if head.end > reader.end:
        raise FormatError(f"expected chunks that end by byte {reader.end}, got {head.end}")
    chunks = range(first // head.chunk, -(-last // head.chunk))
    symbols = code.decode_chunk_range(head, chunks, _at(file, *code.chunk_bytes(head, chunks)), run)
    begin = chunks.start * head.chunk
    return symbols[first - begin : last - begin]


def _bands_with(
    reader: Reader, shape: tuple[int, ...], n_nonzero: int, rows: range
) -> list[tuple[slice, int, int, int]]:
    from softshare.codec.adaptive import bands

    return [b for b in bands.read_bands(reader, shape, n_nonzero) if b[0].start < rows.stop and b[0].stop > rows.start]


def _band_rows(
    reader: Reader, file: BinaryIO, shape: tuple[int, ...], n_values: int, n_nonzero: int, rows: range, run: Run
) -> Any:
    from softshare.codec.adaptive import bands

    found = _bands_with(reader, shape, n_nonzero, rows)
    n_cols = matrix_shape(shape)[1]
    codes = {at: _at(file, at, n) for _, _, at, n in found}
    indices = bands.decode_bands(found, lambda at, n: codes[at], n_cols, n_values, run).reshape(-1, n_cols)
    first = found[0][0].start
    return indices[rows.start - first : rows.stop - first].reshape(-1)


def _rest_rows(reader: Reader, file: BinaryIO, entry: Entry, kind: Rest, rows: range, run: Run) -> Tensor:
    from softshare.codec import rest_section

    dtype, shape = DTYPES[kind.stored], (len(rows), *entry.shape[1:])
    n_cols = math.prod(entry.shape[1:])
    if not len(rows) or not n_cols:
        return torch.empty(shape, dtype=DTYPES[kind.dtype])
    if kind.planes and not kind.static:
        whole = rest_section.decode(reader.take(entry.n_bytes), entry, kind, run)
        return whole[rows.start : rows.stop].clone()
    if kind.planes:
        octets = _plane_rows(reader, file, entry.shape, dtype, rows, run)
    else:
        size = n_cols * dtype.itemsize
        if entry.n_bytes != entry.n * dtype.itemsize:
            raise FormatError(f"expected {entry.n * dtype.itemsize} bytes, got {entry.n_bytes}")
        data = _at(file, entry.offset + rows.start * size, len(rows) * size)
        octets = np.frombuffer(bytearray(data), np.uint8).reshape(-1, dtype.itemsize)
    return from_octets(octets, dtype, shape, kind)


def _plane_rows(
    reader: Reader, file: BinaryIO, shape: tuple[int, ...], dtype: torch.dtype, rows: range, run: Run
) -> Any:
    from softshare.codec.planes import CODED, CONSTANT, RAW
    from softshare.codec.static import layout, planes
    from softshare.codec.static.tables import MOST_SYMBOLS

    n_cols = math.prod(shape[1:])
    first, last = rows.start * n_cols, rows.stop * n_cols
    modes = planes.read_modes(reader, dtype.itemsize)
    octets = np.zeros((last - first, dtype.itemsize), np.uint8)
    for plane in range(dtype.itemsize - 1, -1, -1):
        if modes[plane] == CONSTANT:
            octets[:, plane] = planes.read_constant(reader)
        elif modes[plane] == RAW:
            start = reader.offset
            octets[:, plane] = np.frombuffer(_at(file, start + first, last - first), np.uint8)
            reader.skip_to(start + shape[0] * n_cols)
        elif modes[plane] == CODED:
            code = layout.read(reader, *matrix_shape(shape), MOST_SYMBOLS)
            octets[:, plane] = _symbols(reader, file, code, first, last, run)
            reader.skip_to(code.end)
    return planes.rotated(octets, -1) if dtype.is_floating_point else octets
