"""Quantized weights to the bytes of a `.sws` file: header, one section per tensor, checksum (docs/format.md).

Tensors are coded one by one; threads share the work for a large network. Beside the network itself, memory holds a few
tensors at most. The bytes do not depend on the number of threads.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import IO, BinaryIO, cast

from torch import Tensor

from softshare._util.files import write_atomic
from softshare.codec import rest_section as rest
from softshare.codec import shared_section as shared
from softshare.codec.header import Codebook, Entry, Header, Rest, Shared, dtype_name
from softshare.codec.header_checks import check_writable
from softshare.codec.header_writing import pack_header
from softshare.codec.parallel import in_order, parts_in_threads
from softshare.codec.sharing_out import exchanged
from softshare.codec.wire import CRC, PIECE
from softshare.config import EncodeConfig
from softshare.distributed.group import ALONE, Group
from softshare.errors import ConfigError, ModelError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

COMPACT_BELOW = 1 << 14  # bytes of the sections: a larger file gains little, and its tensors would not decode alone
_SPOOL = 1 << 24  # bytes of sections kept in memory until the header can be written
_DEFAULTS = EncodeConfig()


def encode(
    quantized: QuantizedWeights,
    config: EncodeConfig = _DEFAULTS,
    threads: int | None = None,
    coded: Mapping[str, shared.Section] = MappingProxyType({}),
    group: Group = ALONE,
) -> bytes:
    """The bytes of the file. A large network is encoded in threads: by default one per processor, at most 8.

    `coded` has the sections of shared tensors that are encoded already. In a group each process encodes the tensors
    that it owns, and gets the bytes of the others.
    """
    return b"".join(_parts(quantized, config, threads, coded, group))


def save(
    quantized: QuantizedWeights,
    path: str | os.PathLike[str],
    config: EncodeConfig = _DEFAULTS,
    threads: int | None = None,
    group: Group = ALONE,
) -> int:
    """Write the whole file or nothing, and return its size in bytes. In a group, the first process writes."""
    parts = _parts(quantized, config, threads, {}, group)
    n_bytes = write_atomic(path, parts) if group.is_first else sum(len(part) for part in parts)
    return int(group.first(n_bytes))  # the file is there before any process goes on


def write_to(
    file: BinaryIO,
    quantized: QuantizedWeights,
    config: EncodeConfig = _DEFAULTS,
    coded: Mapping[str, shared.Section] = MappingProxyType({}),
) -> int:
    """Write the bytes of `encode` to an open file, and return their number. They are never in memory as a whole."""
    return sum(file.write(part) for part in _parts(quantized, config, None, coded))


def check(quantized: QuantizedWeights, config: EncodeConfig = _DEFAULTS) -> None:
    """Raise `ModelError` if no file can hold the weights. Nothing is encoded."""
    _header(quantized, config)
    for name, tensor in quantized.rest.items():
        if not tensor.is_meta:  # another process has it
            rest.check(name, tensor, config)


def _header(quantized: QuantizedWeights, config: EncodeConfig) -> Header:
    """The header without the lengths of the sections, and without the choice of how each unshared tensor is coded."""
    if quantized.dropped and config.names == "none":
        raise ConfigError(
            f"names='none': such a file cannot say which tensors are left out, here {quantized.dropped[0]} by a drop "
            "rule. Use names='keep'"
        )
    codebooks: dict[tuple[bytes, str], tuple[int, Codebook]] = {}  # equal codebooks are stored once
    _require_names(quantized)
    entries = tuple(_entry(name, t, config, codebooks) for name, t in quantized.items())
    books = tuple(book for _, book in codebooks.values())
    named = config.names == "keep"
    header = Header(config.codec, named, books, entries, quantized.tied, quantized.base, quantized.alone)
    check_writable(header)
    return header


def _parts(
    quantized: QuantizedWeights,
    config: EncodeConfig,
    threads: int | None,
    known: Mapping[str, shared.Section],
    group: Group = ALONE,
) -> Iterator[bytes]:
    """The file from front to back. The header has every section's length, so the sections are coded before it."""
    header = _header(quantized, config)

    def section(item: tuple[Entry, QuantizedTensor | Tensor]) -> tuple[Entry, bytes]:
        entry, tensor = item
        if isinstance(tensor, QuantizedTensor) and isinstance(entry.kind, Shared):
            coded = known[tensor.name] if tensor.name in known else shared.encode(tensor, config, run)
            own = dataclasses.replace(entry.kind, static=coded.static, bands=coded.bands)
            return dataclasses.replace(entry, n_bytes=len(coded), kind=own), coded.data
        kind, data = rest.encode(entry.name, cast(Tensor, tensor), config, run, not quantized.shared)
        return dataclasses.replace(entry, n_bytes=len(data), kind=kind), data

    n_weights = sum(e.n for e in header.entries)
    with parts_in_threads(n_weights, threads) as run, tempfile.SpooledTemporaryFile(_SPOOL) as spool:
        coded = []
        items = ((entry, tensor) for entry, (_, tensor) in zip(header.entries, quantized.items(), strict=True))
        owners = quantized.owners(group.size) if group.size > 1 else [0] * len(header.entries)
        own = (item for item, owner in zip(items, owners, strict=True) if owner == group.rank)
        sections = in_order(section, own, n_weights // group.size, threads)
        for entry, data in exchanged(sections, header.entries, owners, group):
            coded.append(entry)
            spool.write(data)
        header = dataclasses.replace(header, entries=tuple(coded))
        packed = pack_header(header)
        compact = _compact(header, spool, config)
        if compact is not None and len(compact) < len(packed) + spool.tell() + CRC.size:
            yield compact
            return
        spool.seek(0)
        crc = 0
        for part in itertools.chain([packed], iter(lambda: spool.read(PIECE), b"")):
            crc = zlib.crc32(part, crc)
            yield part
        yield CRC.pack(crc)


def _compact(header: Header, spool: IO[bytes], config: EncodeConfig) -> bytes | None:
    """The compact form of a small file, if it has one. The sections are in `spool`, and its end is its place."""
    n_bytes = spool.tell()
    if not config.compact or header.codec != "adaptive" or n_bytes >= COMPACT_BELOW:
        return None
    from softshare.codec import compact  # loads numba

    spool.seek(0)
    return compact.packed(header, [spool.read(entry.n_bytes) for entry in header.entries])


def _require_names(quantized: QuantizedWeights) -> None:
    names = sorted([*(t.name for t in quantized.shared), *quantized.rest])
    if sorted(quantized.order or names) != names or len(set(names)) < len(names):
        raise ModelError(f"expected each name once, and an order of exactly these names, got {names[:20]}")
    astray = sorted(set(quantized.tied.values()) - set(names))
    if astray:
        raise ModelError(f"tied: expected names of stored tensors, got {astray}")


def _entry(
    name: str,
    tensor: QuantizedTensor | Tensor,
    config: EncodeConfig,
    codebooks: dict[tuple[bytes, str], tuple[int, Codebook]],
) -> Entry:
    """What is known about a tensor before it is coded. Adds its codebook to the others."""
    kind: Shared | Rest
    if isinstance(tensor, Tensor):
        kind = rest.kind(name, tensor, config)
    else:
        book = shared.rounded_codebook(tensor, config)
        number, _ = codebooks.setdefault((book.values.tobytes(), book.dtype), (len(codebooks), book))
        scaled = tensor.row_scales is not None, tensor.column_scales is not None
        kind = Shared(dtype_name(name, tensor.dtype), number, *scaled)
    return Entry(name, tuple(tensor.shape), kind, 0)
