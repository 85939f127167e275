"""A header to bytes (docs/format.md 3 and 4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from softshare.codec.header import (
    CODEBOOK_DTYPES,
    CODECS,
    DTYPE_NAMES,
    FIRST_KIND,
    HAS_BASE,
    HAS_NAMES,
    LONG_PREFIX,
    MAGIC,
    NO_SHAPE,
    SUFFIXES,
    VECTOR,
    Header,
    Rest,
    Shared,
)
from softshare.codec.wire import varint


def pack_header(header: Header) -> bytes:
    flags = CODECS.index(header.codec) | (HAS_NAMES if header.has_names else 0) | (HAS_BASE if header.base else 0)
    parts = [MAGIC, bytes([header.version, flags]), header.base, varint(len(header.codebooks))]
    for codebook in header.codebooks:
        parts.append(varint((len(codebook.values) - 1) << 2 | CODEBOOK_DTYPES.index(codebook.dtype)))
        parts.append(pack_values(codebook.values[1:], codebook.dtype))
    parts.append(varint(len(header.entries)))
    kind, shape, stem = FIRST_KIND, NO_SHAPE, b""
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
        if header.base:
            parts.append(varint(len(header.alone)))
            parts += [varint(k) for k in sorted(number[name] for name in header.alone)]
    return b"".join(parts)


def pack_values(values: npt.NDArray[np.float32], dtype: str) -> bytes:
    """Little-endian bytes of float32 values that `dtype` holds exactly. A bfloat16 is the upper half of a float32."""
    if dtype == "bfloat16":
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype("<f4" if dtype == "float32" else "<f2").tobytes()


def _pack_kind(kind: Shared | Rest) -> bytes:
    dtype = DTYPE_NAMES.index(kind.dtype)
    if isinstance(kind, Shared):
        first = dtype << 1 | kind.bands << 4 | kind.row_scales << 5 | kind.column_scales << 6 | kind.static << 7
        return bytes([first]) + varint(kind.codebook)
    narrowed = kind.stored != kind.dtype
    first = kind.static << 7 | dtype << 3 | narrowed << 2 | kind.planes << 1 | 1
    return bytes([first, DTYPE_NAMES.index(kind.stored)] if narrowed else [first])


def _pack_name(name: str, stem_before: bytes) -> tuple[bytes, bytes]:
    """The bytes of a name, relative to the stem of the name before it, and its own stem."""
    data = name.encode()
    suffix = max((k for k, s in enumerate(SUFFIXES) if data.endswith(s)), key=lambda k: len(SUFFIXES[k]))
    stem = data[: len(data) - len(SUFFIXES[suffix])]
    prefix = next((k for k in range(len(stem), 0, -1) if stem_before.startswith(stem[:k])), 0)
    out = bytes([suffix << 5 | min(prefix, LONG_PREFIX)])
    if prefix >= LONG_PREFIX:
        out += varint(prefix - LONG_PREFIX)
    return out + varint(len(stem) - prefix) + stem[prefix:], stem


def _pack_shape(shape: tuple[int, ...], before: tuple[int, ...]) -> bytes:
    if before and shape == before[:1]:
        return bytes([VECTOR])
    return bytes([len(shape)]) + b"".join(varint(size) for size in shape)
