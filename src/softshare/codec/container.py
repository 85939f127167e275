"""The `.sws` file, version 0: magic, version, header, sections, checksum. Integers are little-endian.

    4 bytes   b"\\x89SWS"
    1 byte    version, 0
    4 bytes   length of the header
    header    zlib-compressed JSON object: codec, codebooks (number of values of each), shared (rows of
              `SharedEntry`), rest (rows of `RestEntry`), tied (second name -> stored name)
    sections  the codebooks as float32, then the shared tensors, then the rest, in the header's order, without a hole
    4 bytes   CRC-32 of all before it

A floating-point tensor of the rest is stored in `EncodeConfig.rest_dtype` where that is narrower than its own dtype,
and decodes to its own dtype: a float64 tensor under "float32" comes back as float64, rounded to float32's precision.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from softshare.codec.header import (
    DTYPES,
    Header,
    RestEntry,
    SharedEntry,
    check_header,
    dtype_name,
    expect,
    pack_header,
    parse_header,
)
from softshare.config import EncodeConfig
from softshare.errors import FormatError, ModelError
from softshare.files import read_bytes, write_atomic
from softshare.quantize import QuantizedTensor, QuantizedWeights
from softshare.weights import load_state_

MAGIC = b"\x89SWS"
VERSION = 0

_PREFIX = struct.Struct("<4sBI")
_CRC = struct.Struct("<I")
_DEFAULTS = EncodeConfig()
Out = TypeVar("Out")


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor. `n_components` counts the codebook values it uses, zero included; 0 for the rest."""

    name: str
    kind: Literal["shared", "rest"]
    shape: tuple[int, ...]
    n: int
    n_nonzero: int
    n_components: int
    n_bytes: int

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_bytes / self.n if self.n else 0.0


@dataclass(frozen=True)
class FileInfo:
    version: int
    codec: str
    file_bytes: int
    tensors: tuple[TensorInfo, ...]

    @property
    def overhead_bytes(self) -> int:
        """All that is not a tensor's own section: magic, header, codebooks, checksum."""
        return self.file_bytes - sum(t.n_bytes for t in self.tensors)


def _coder(codec: str) -> ModuleType:
    """The module with a codec's `encode_tensor` and `decode_tensor`; loaded on use, for one of them needs numba."""
    return import_module(f"softshare.codec.{codec}")


# Encode


def encode(quantized: QuantizedWeights, config: EncodeConfig = _DEFAULTS) -> bytes:
    coder = _coder(config.codec)
    codebooks: dict[bytes, int] = {}  # bytes -> number: equal codebooks are stored once
    shared, rest, sections = [], [], []
    for t in quantized.shared:
        _check_shared(t)
        number = codebooks.setdefault(t.codebook.numpy().astype("<f4").tobytes(), len(codebooks))
        sections.append(coder.encode_tensor(t))
        shared.append(SharedEntry(t.name, t.shape, dtype_name(t.dtype), number, t.is_conv, len(sections[-1])))
    for name, tensor in quantized.rest.items():
        stored = _stored(name, tensor, config)
        sections.append(_to_bytes(stored))
        dtypes = dtype_name(tensor.dtype), dtype_name(stored.dtype)
        rest.append(RestEntry(name, tuple(tensor.shape), *dtypes, len(sections[-1])))
    header = Header(config.codec, tuple(len(c) // 4 for c in codebooks), tuple(shared), tuple(rest), quantized.tied)
    check_header(header, ModelError)
    packed = pack_header(header)
    body = b"".join([_PREFIX.pack(MAGIC, VERSION, len(packed)), packed, *codebooks, *sections])
    return body + _CRC.pack(zlib.crc32(body))


def save(quantized: QuantizedWeights, path: str | os.PathLike[str], config: EncodeConfig = _DEFAULTS) -> int:
    """Write the file whole or not at all, and return its size in bytes."""
    data = encode(quantized, config)
    write_atomic(path, data)
    return len(data)


def _check_shared(t: QuantizedTensor) -> None:
    """A QuantizedTensor's own promises: a file that breaks them could not be read back."""
    n, where = math.prod(t.shape), f"shared tensor {t.name!r}"
    codebook = t.codebook.dtype == torch.float32 and t.codebook.dim() == 1 and len(t.codebook) > 0
    zero_first = codebook and float(t.codebook[0]) == 0
    expect(zero_first, where, "a float32 codebook that begins with 0.0", t.codebook, ModelError)
    fits = t.indices.dtype == torch.int64 and t.indices.shape == (n,)
    expect(fits, where, f"int64 indices of shape ({n},)", (t.indices.dtype, tuple(t.indices.shape)), ModelError)
    low, high = (int(v) for v in t.indices.aminmax()) if n else (0, 0)
    expect(0 <= low <= high < len(t.codebook), where, f"indices below {len(t.codebook)}", (low, high), ModelError)


def _stored(name: str, tensor: Tensor, config: EncodeConfig) -> Tensor:
    """The tensor in the dtype of its section."""
    if dtype_name(tensor.dtype) not in DTYPES:
        raise ModelError(f"tensor {name!r}: cannot store {tensor.dtype}; expected one of {', '.join(DTYPES)}")
    tensor = tensor.detach().cpu()
    rest_dtype = DTYPES[config.rest_dtype]
    if not tensor.is_floating_point() or rest_dtype.itemsize >= tensor.dtype.itemsize:
        return tensor
    stored = tensor.to(rest_dtype)
    if not torch.equal(stored.isfinite(), tensor.isfinite()):
        raise ModelError(f"tensor {name!r} holds values beyond the range of {config.rest_dtype}, its rest_dtype")
    return stored


def _to_bytes(tensor: Tensor) -> bytes:
    octets = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    if sys.byteorder == "big":
        octets = octets.reshape(-1, tensor.dtype.itemsize)[:, ::-1]
    return octets.tobytes()


# Decode


def decode(data: bytes) -> QuantizedWeights:
    return _decode(*_open(data))


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict a file decodes to; a tied name gives the same tensor object as the name it repeats."""
    return _from_file(path, decode).state_dict()


def load_into_(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Copy a file's tensors into the model in place; if any does not fit, raise with all that do not and copy none."""
    load_state_(model, load(path), os.fspath(path))


def inspect(source: str | os.PathLike[str] | bytes) -> FileInfo:
    """What a file, or its bytes, holds; decodes it whole."""
    return _inspect(source) if isinstance(source, bytes) else _from_file(source, _inspect)


def _inspect(data: bytes) -> FileInfo:
    header, sections = _open(data)
    weights = _decode(header, sections)
    used = [int(t.indices.bincount().count_nonzero()) for t in weights.shared]
    n_nonzero = [t.n_nonzero for t in weights.shared] + [int(t.count_nonzero()) for t in weights.rest.values()]
    tensors = tuple(
        TensorInfo(e.name, "shared" if k < len(used) else "rest", e.shape, math.prod(e.shape), n, u, e.n_bytes)
        for k, (e, n, u) in enumerate(zip(header.entries, n_nonzero, used + [0] * len(header.rest), strict=True))
    )
    return FileInfo(VERSION, header.codec, len(data), tensors)


def _from_file(path: str | os.PathLike[str], read: Callable[[bytes], Out]) -> Out:
    """Apply `read` to a file's bytes; errors carry the path."""
    try:
        return read(read_bytes(path))
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from error


def _open(data: bytes) -> tuple[Header, list[bytes]]:
    """Header and sections, all lengths checked against the file's."""
    if data[:4] != MAGIC:
        raise FormatError(f"not an .sws file: expected it to begin with {MAGIC!r}, got {data[:4]!r}")
    if len(data) < _PREFIX.size:
        raise FormatError(f"truncated: expected at least {_PREFIX.size + _CRC.size} bytes, got {len(data)}")
    _, version, header_bytes = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise FormatError(f"unsupported version: expected {VERSION}, got {version}; a newer softshare may read it")
    first = _PREFIX.size + header_bytes
    if len(data) < first + _CRC.size:
        raise FormatError(f"truncated: expected at least {first + _CRC.size} bytes, got {len(data)}")
    packed = data[_PREFIX.size : first]
    if zlib.crc32(data[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        raise FormatError(_damage(packed, len(data) - first - _CRC.size))
    header = parse_header(packed)
    ends = list(itertools.accumulate(header.section_bytes, initial=first))
    if ends[-1] != len(data) - _CRC.size:
        raise FormatError(f"expected the sections to end at byte {len(data) - _CRC.size}, got {ends[-1]}")
    return header, [data[a:b] for a, b in itertools.pairwise(ends)]


def _damage(packed: bytes, n_section_bytes: int) -> str:
    """Why the checksum does not match, as far as a header that may be damaged itself can tell."""
    with contextlib.suppress(FormatError):
        expected = sum(parse_header(packed).section_bytes)
        if n_section_bytes < expected:
            return f"truncated: {expected - n_section_bytes} bytes are missing"
    return "the file is altered or damaged: its checksum does not match"


def _decode(header: Header, sections: list[bytes]) -> QuantizedWeights:
    coder = _coder(header.codec)
    codebooks = [_codebook(k, sections[k]) for k in range(len(header.codebooks))]
    contents = iter(sections[len(codebooks) :])
    shared = tuple(
        coder.decode_tensor(next(contents), e.name, e.shape, DTYPES[e.dtype], codebooks[e.codebook], e.is_conv)
        for e in header.shared
    )
    rest = {e.name: _from_bytes(next(contents), e) for e in header.rest}
    return QuantizedWeights(shared, rest, header.tied)


def _codebook(number: int, data: bytes) -> Tensor:
    values = torch.from_numpy(np.frombuffer(data, "<f4").astype(np.float32))
    if values[0] != 0:
        raise FormatError(f"expected codebook {number} to begin with 0.0, got {values[0]}")
    return values


def _from_bytes(data: bytes, entry: RestEntry) -> Tensor:
    dtype = DTYPES[entry.stored]
    octets = np.frombuffer(data, np.uint8).reshape(-1, dtype.itemsize)
    if dtype == torch.bool and np.any(octets > 1):
        raise FormatError(f"tensor {entry.name!r}: expected bools of 0 or 1, got {octets.max()}")
    octets = octets[:, ::-1] if sys.byteorder == "big" else octets
    return torch.from_numpy(octets.copy()).reshape(-1).view(dtype).reshape(entry.shape).to(DTYPES[entry.dtype])
