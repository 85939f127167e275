"""The section of a tensor that is not shared: its values, by byte plane if that is smaller (docs/format.md 6).

A floating-point tensor is stored in `EncodeConfig.rest_dtype` if that is narrower than its own dtype. It decodes to its
own dtype. The default, "float32", loses nothing: a float64 tensor is stored as float64 unless float32 holds all of it.
With another dtype, a tensor keeps its own if a value would become 0.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softshare.codec.header import DTYPES, Entry, Rest, dtype_name
from softshare.codec.parallel import Run, one_by_one
from softshare.codec.symbols import matrix_shape
from softshare.config import EncodeConfig
from softshare.errors import FormatError, ModelError

Octets = npt.NDArray[np.uint8]  # (n, itemsize), the lowest byte first


def kind(name: str, tensor: Tensor, config: EncodeConfig) -> Rest:
    """How the tensor is stored if it is stored raw."""
    dtype = dtype_name(name, tensor.dtype)
    if tensor.is_meta:  # another process has it, and decides
        return Rest(dtype, dtype, planes=False)
    narrower = tensor.is_floating_point() and DTYPES[config.rest_dtype].itemsize < tensor.dtype.itemsize
    if narrower:
        own = tensor.detach().cpu()
        narrower = _is_float32(own) if config.rest_dtype == "float32" else _stays_nonzero(own, config.rest_dtype)
    return Rest(dtype, config.rest_dtype if narrower else dtype, planes=False)


def _is_float32(tensor: Tensor) -> bool:
    """Whether a float64 tensor survives float32, bit for bit."""
    return torch.equal(tensor.float().double().view(torch.int64), tensor.view(torch.int64))


def _stays_nonzero(tensor: Tensor, dtype: str) -> bool:
    return torch.equal(tensor.to(DTYPES[dtype]) == 0, tensor == 0)


def check(name: str, tensor: Tensor, config: EncodeConfig) -> None:
    """Raise `ModelError` if the stored dtype cannot hold a value."""
    _stored(name, tensor.detach().cpu(), kind(name, tensor, config))


def encode(
    name: str, tensor: Tensor, config: EncodeConfig, run: Run = one_by_one, lossless: bool = False
) -> tuple[Rest, bytes]:
    """How the tensor is stored, and its section."""
    from softshare.codec import choice  # loads numba

    raw = kind(name, tensor, config)
    octets = _octets(_stored(name, tensor.detach().cpu(), raw))
    if not octets.size:
        return raw, b""
    is_float = DTYPES[raw.stored].is_floating_point
    coded = choice.encode_rest(octets, is_float, matrix_shape(tuple(tensor.shape)), config.speed, run, lossless)
    if len(coded) < octets.size:
        return dataclasses.replace(raw, planes=True, static=coded.static), coded.data
    return raw, octets.tobytes()


def _stored(name: str, tensor: Tensor, kind: Rest) -> Tensor:
    """The tensor in the dtype of its section."""
    stored = tensor.to(DTYPES[kind.stored])
    if tensor.is_floating_point() and not torch.equal(stored.isfinite(), tensor.isfinite()):
        raise ModelError(
            f"tensor {name!r}: expected values within the range of {kind.stored}, its rest_dtype, got larger ones. "
            "Choose another rest_dtype"
        )
    return stored


def _octets(tensor: Tensor) -> Octets:
    octets: Octets = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().reshape(-1, tensor.dtype.itemsize)
    return octets[:, ::-1] if sys.byteorder == "big" else octets


def decode(data: bytes, entry: Entry, kind: Rest, run: Run = one_by_one) -> Tensor:
    dtype = DTYPES[kind.stored]
    octets = _decode_octets(data, entry, kind, dtype, run)
    return from_octets(octets, dtype, entry.shape, kind)


def from_octets(octets: Octets, stored: torch.dtype, shape: tuple[int, ...], kind: Rest) -> Tensor:
    """A tensor from the bytes of its numbers, little-endian, in their stored dtype."""
    if stored == torch.bool and (octets > 1).any():
        raise FormatError(f"expected bools of 0 or 1, got {octets.max()}")
    if sys.byteorder == "big":
        octets = octets[:, ::-1]
    flat: npt.NDArray[Any] = np.ascontiguousarray(octets).reshape(-1)
    return torch.from_numpy(flat).view(stored).reshape(shape).to(DTYPES[kind.dtype])


def _decode_octets(data: bytes, entry: Entry, kind: Rest, dtype: torch.dtype, run: Run) -> Octets:
    n, itemsize = entry.n, dtype.itemsize
    size = n * itemsize
    if kind.planes:
        if len(data) >= size:
            raise FormatError(f"expected fewer than {size} bytes by byte plane, got {len(data)}")
        if kind.static:
            from softshare.codec.static import planes as static_planes

            return static_planes.decode(data, matrix_shape(entry.shape), itemsize, dtype.is_floating_point, run)
        from softshare.codec import planes

        return planes.decode_planes(data, n, itemsize)
    if len(data) != size:
        raise FormatError(f"expected {size} bytes, got {len(data)}")
    return np.frombuffer(bytearray(data), np.uint8).reshape(n, itemsize)
