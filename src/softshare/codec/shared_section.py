"""The section of a shared tensor: the number of non-zero weights, then their code (docs/format.md 5)."""

from __future__ import annotations

import io
import math
from importlib import import_module
from types import ModuleType

import torch

from softshare.codec.header import DTYPES, Codebook, Entry, codebook_problem, dtype_name
from softshare.codec.wire import Reader, varint
from softshare.config import EncodeConfig
from softshare.errors import FormatError, ModelError
from softshare.quantization.quantized import QuantizedTensor, index_dtype

_HALF_NORMAL = (2.0**-14, 65504.0)  # magnitudes that float16 rounds by at most 1 in 2048


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
    low, high = (int(v) for v in t.indices.aminmax()) if n else (0, 0)
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
    if not values[-1:].to(t.dtype).isfinite().all():  # the largest in magnitude
        raise ModelError(f"shared tensor {t.name!r}: expected a codebook within {t.dtype}, got {values[-1]:g}")
    return Codebook(values.numpy(), dtype)


def encode(t: QuantizedTensor, codec: str) -> bytes:
    """The section, which is empty for a tensor of zeros."""
    n_nonzero = t.n_nonzero
    if n_nonzero == 0:
        return b""
    code = coder(codec).encode_tensor(t.indices.numpy(), t.shape, len(t.codebook), n_nonzero)
    return varint(n_nonzero) + bytes(code)


def read_n_nonzero(data: bytes) -> tuple[int, int]:
    """The number of non-zero weights, from the beginning of a section, and the byte where the code starts."""
    if not data:
        return 0, 0
    reader = Reader(io.BytesIO(data), len(data))
    n_nonzero = reader.varint()
    reader.expect(n_nonzero > 0, "an empty section for a tensor of zeros", n_nonzero, 0)
    return n_nonzero, reader.offset


def decode(data: bytes, entry: Entry, codebook: Codebook, codec: str) -> QuantizedTensor:
    n_values = len(codebook.values)
    n_nonzero, start = read_n_nonzero(data)
    if n_nonzero > (entry.n if n_values > 1 else 0):
        raise FormatError(f"expected at most {entry.n if n_values > 1 else 0} non-zero weights, got {n_nonzero}")
    if n_nonzero:
        indices = torch.from_numpy(coder(codec).decode_tensor(data[start:], entry.shape, n_values, n_nonzero))
        got, high = int(indices.count_nonzero()), int(indices.max())
        if got != n_nonzero or high >= n_values:
            raise FormatError(f"expected {n_nonzero} non-zero indices below {n_values}, got {got} up to {high}")
    else:
        indices = torch.zeros(entry.n, dtype=index_dtype(n_values))
    values = torch.from_numpy(codebook.values)
    if not values[-1:].to(DTYPES[entry.kind.dtype]).isfinite().all():  # the largest in magnitude
        raise FormatError(f"expected a codebook within the range of {entry.kind.dtype}, got {values[-1]:g}")
    return QuantizedTensor(entry.name, entry.shape, DTYPES[entry.kind.dtype], indices, values)
