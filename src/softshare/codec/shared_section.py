"""The section of a shared tensor: its scales, the number of non-zero weights, then their code (docs/format.md 5)."""

from __future__ import annotations

import dataclasses
import io
import math
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from softshare.codec.header import DTYPES, Codebook, Entry, Shared, dtype_name
from softshare.codec.header_checks import codebook_problem
from softshare.codec.parallel import Run, one_by_one
from softshare.codec.symbols import Indices, matrix_shape
from softshare.codec.wire import Reader, varint
from softshare.config import EncodeConfig
from softshare.errors import FormatError, ModelError
from softshare.quantization.quantized import QuantizedTensor, index_dtype
from softshare.quantization.scales import factors

_HALF_NORMAL = (2.0**-14, 65504.0)  # magnitudes that float16 rounds by at most 1 in 2048


@dataclass(frozen=True, eq=False)
class Section:
    """The section of a tensor, or its code alone, and which code it is."""

    data: bytes
    static: bool = False
    bands: bool = False

    def __len__(self) -> int:
        return len(self.data)


def coder(codec: str) -> ModuleType:
    """The module with a codec's `encode_tensor` and `decode_tensor`. It is imported on use, because one needs numba."""
    return import_module(f"softshare.codec.{codec}")


def _check(t: QuantizedTensor) -> None:
    """Raise unless a QuantizedTensor keeps its promises. A file that breaks them could not be read back."""
    n = math.prod(t.shape)
    where, book = f"shared tensor {t.name!r}", t.codebook
    if book.dtype != torch.float32 or book.dim() != 1 or len(book) == 0 or float(book[0]) != 0:
        raise ModelError(f"{where}: expected a float32 codebook that begins with 0.0, got {book}")
    problem = codebook_problem(book.numpy())
    if problem:
        raise ModelError(f"{where}, codebook: {problem}")
    if not t.dtype.is_floating_point:
        raise ModelError(f"{where}: expected a floating-point dtype, got {t.dtype}")
    dtype_name(t.name, t.dtype)  # raises if the format has no number for it
    dtype = index_dtype(len(book))
    if t.indices.dtype != dtype or t.indices.shape != (n,):
        got = f"{t.indices.dtype} of shape {tuple(t.indices.shape)}"
        raise ModelError(f"{where}: expected {dtype} indices of shape ({n},), got {got}")
    for scales, size in zip((t.row_scales, t.column_scales), matrix_shape(t.shape), strict=True):
        if scales is not None and (scales.dtype != torch.int8 or scales.shape != (size,) or len(t.shape) < 2):
            got = f"{scales.dtype} of shape {tuple(scales.shape)} for a tensor of {len(t.shape)} dimensions"
            raise ModelError(f"{where}: expected int8 scales of shape ({size},), in two or more dimensions, got {got}")
    low, high = (int(v) for v in t.indices.aminmax()) if n and not t.indices.is_meta else (0, 0)
    if low < 0 or high >= len(book):
        raise ModelError(f"{where}: expected indices from 0 to {len(book) - 1}, got {low} to {high}")


def rounded_codebook(t: QuantizedTensor, config: EncodeConfig) -> Codebook:
    """The tensor's codebook as the file holds it. Decoded tensors have these values."""
    _check(t)
    dtype = config.codebook_dtype
    if dtype == "auto":
        low, high = _HALF_NORMAL
        magnitudes = t.codebook[1:].abs()
        dtype = "float16" if bool(((magnitudes >= low) & (magnitudes <= high)).all()) else "float32"
    values = t.codebook.to(DTYPES[dtype]).float()
    lost = ~values.isfinite() | (values == 0)
    if lost[1:].any():
        raise ModelError(
            f"shared tensor {t.name!r}: expected a codebook that {dtype} can hold, got "
            f"{t.codebook[1:][lost[1:]][0]:g}. Set codebook_dtype='float32'"
        )
    if not _largest(values, t.row_scales, t.column_scales).to(t.dtype).isfinite().all():
        raise ModelError(f"shared tensor {t.name!r}: expected weights within {t.dtype}, got up to {values[-1]:g}")
    return Codebook(values.numpy(), dtype)


def _largest(values: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """The largest value of a codebook in magnitude, which is the last one, under the largest scale."""
    top = [None if s is None or not len(s) else s.max()[None] for s in (rows, columns)]
    return values[-1:] * factors(top[0], top[1], (1, 1))[0]


def encode(t: QuantizedTensor, config: EncodeConfig, run: Run = one_by_one) -> Section:
    """The section, which is empty for a tensor of zeros, and which code it has."""
    n_nonzero = t.n_nonzero
    if n_nonzero == 0:
        return Section(b"")
    from softshare.codec import choice  # loads numba

    coded = choice.encode(t.indices.numpy(), t.shape, len(t.codebook), n_nonzero, config, run)
    scales = b"".join(packed_scales(s) for s in (t.row_scales, t.column_scales) if s is not None)
    return dataclasses.replace(coded, data=varint(n_nonzero) + scales + coded.data)


def packed_scales(exponents: Tensor) -> bytes:
    """Their length, then the exponents by byte plane if that is shorter."""
    from softshare.codec import planes  # loads numba

    octets = exponents.view(torch.uint8).numpy().reshape(-1, 1)
    coded = planes.encode_planes(octets)
    data = coded if len(coded) < octets.size else octets.tobytes()
    return varint(len(data)) + data


def _read_scales(reader: Reader, n: int) -> Tensor:
    from softshare.codec import planes

    start = reader.offset
    length = reader.varint()
    reader.expect(length <= n, f"the scales of {n} rows or columns in at most {n} bytes", length, start)
    data = reader.take(length)
    octets = planes.decode_planes(data, n, 1) if length < n else np.frombuffer(bytearray(data), np.uint8)
    return torch.from_numpy(octets.reshape(-1)).view(torch.int8)


def read_n_nonzero(data: bytes) -> tuple[int, int]:
    """The number of non-zero weights, from the beginning of a section, and the byte where the code starts."""
    if not data:
        return 0, 0
    reader = Reader(io.BytesIO(data), len(data))
    n_nonzero = reader.varint()
    reader.expect(n_nonzero > 0, "an empty section for a tensor of zeros", n_nonzero, 0)
    return n_nonzero, reader.offset


@dataclass(frozen=True, eq=False)
class Head:
    """What a section says before the code of its indices."""

    n_nonzero: int
    rows: Tensor | None = None  # scales
    columns: Tensor | None = None


def read_head(reader: Reader, entry: Entry, kind: Shared, codebook: Codebook) -> Head:
    """A reader at the beginning of a section, up to the code."""
    empty, start = not reader.remaining, reader.offset
    n_nonzero = 0 if empty else reader.varint()
    reader.expect(empty or n_nonzero > 0, "an empty section for a tensor of zeros", n_nonzero, start)
    most = entry.n if len(codebook.values) > 1 else 0
    if n_nonzero > most:
        reader.fail(f"expected at most {most} non-zero weights, got {n_nonzero}")
    rows, columns = None, None
    if (kind.row_scales or kind.column_scales) and len(entry.shape) < 2:
        reader.fail(f"expected scales of a tensor of two or more dimensions, got {len(entry.shape)}")
    if n_nonzero:
        n_rows, n_columns = matrix_shape(entry.shape)
        rows = _read_scales(reader, n_rows) if kind.row_scales else None
        columns = _read_scales(reader, n_columns) if kind.column_scales else None
    largest = _largest(torch.from_numpy(codebook.values), rows, columns)
    if not largest.to(DTYPES[kind.dtype]).isfinite().all():
        reader.fail(f"expected weights within the range of {kind.dtype}, got up to {float(largest):g}")
    return Head(n_nonzero, rows, columns)


def decode(
    data: bytes, entry: Entry, kind: Shared, codebook: Codebook, codec: str, run: Run = one_by_one
) -> QuantizedTensor:
    n_values = len(codebook.values)
    reader = Reader(io.BytesIO(data), len(data))
    head = read_head(reader, entry, kind, codebook)
    if head.n_nonzero:
        indices = torch.from_numpy(_indices(data, reader, entry.shape, kind, n_values, head.n_nonzero, codec, run))
        check_indices(int(indices.count_nonzero()), int(indices.max()), head.n_nonzero, n_values)
    else:
        indices = torch.zeros(entry.n, dtype=index_dtype(n_values))
    values = torch.from_numpy(codebook.values)
    return QuantizedTensor(entry.name, entry.shape, DTYPES[kind.dtype], indices, values, head.rows, head.columns)


def check_indices(n_nonzero: int, highest: int, expected: int, n_values: int) -> None:
    if n_nonzero != expected or highest >= n_values:
        raise FormatError(f"expected {expected} non-zero indices below {n_values}, got {n_nonzero} up to {highest}")


def _indices(
    data: bytes, reader: Reader, shape: tuple[int, ...], kind: Shared, n_values: int, n_nonzero: int, codec: str,
    run: Run,
) -> Indices:  # fmt: skip
    if kind.static:
        from softshare.codec.static import code

        return code.decode(memoryview(data)[reader.offset :], *matrix_shape(shape), n_values, run)
    if kind.bands:
        from softshare.codec.adaptive import bands

        found = bands.read_bands(reader, shape, n_nonzero)
        view = memoryview(data)
        return bands.decode_bands(found, lambda at, n: view[at : at + n], matrix_shape(shape)[1], n_values, run)
    decoded: Indices = coder(codec).decode_tensor(data[reader.offset :], shape, n_values, n_nonzero)
    return decoded
