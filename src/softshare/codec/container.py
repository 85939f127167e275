"""The `.sws` file, version 1, as docs/format.md specifies it: header, one section per tensor, checksum.

Tensors are coded and decoded one by one; threads share the work for a large network. Beside the network itself, memory
holds a few tensors at most. The bytes do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import struct
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, TypeVar

import torch
from torch import Tensor, nn

from softshare._util.files import require_readable, write_atomic
from softshare.codec import rest_section as rest
from softshare.codec import shared_section as shared
from softshare.codec.budget import FIRST_BYTES, MAX_BYTES, check_budget
from softshare.codec.header import (
    DTYPES,
    VERSION,
    Codebook,
    Entry,
    Header,
    Rest,
    Shared,
    check_writable,
    dtype_name,
    pack_header,
    read_header,
    read_prefix,
)
from softshare.codec.info import FileInfo, TensorInfo
from softshare.codec.wire import Reader
from softshare.config import EncodeConfig
from softshare.errors import ConfigError, FormatError, ModelError
from softshare.network.weights import check_fits, layout
from softshare.network.wrapped import under_names, unwrapped
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

THREADS_FROM = 1 << 20  # weights; with fewer, threads are not worth it
MOST_THREADS = 8  # unless the caller says otherwise; each thread holds a tensor

_CRC = struct.Struct("<I")
_SPOOL = 1 << 26  # bytes of sections kept in memory until the header can be written
_READ = 1 << 20
_DEFAULTS = EncodeConfig()
_PARTIAL = "give strict=False to load it and to leave what is missing as it is in the model"
In = TypeVar("In")
Out = TypeVar("Out")


def _in_order(function: Callable[[In], Out], items: Iterable[In], n_weights: int, threads: int | None) -> Iterator[Out]:
    """`map`, in threads if there are many weights. No more results wait than there are threads."""
    threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
    if threads == 1 or n_weights < THREADS_FROM:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Out]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) == threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# Encode


def encode(quantized: QuantizedWeights, config: EncodeConfig = _DEFAULTS, threads: int | None = None) -> bytes:
    """The bytes of the file. A large network is encoded in threads: by default one per processor, at most 8."""
    return b"".join(_parts(quantized, config, threads))


def save(
    quantized: QuantizedWeights,
    path: str | os.PathLike[str],
    config: EncodeConfig = _DEFAULTS,
    threads: int | None = None,
) -> int:
    """Write the whole file or nothing, and return its size in bytes."""
    return write_atomic(path, _parts(quantized, config, threads))


def check(quantized: QuantizedWeights, config: EncodeConfig = _DEFAULTS) -> None:
    """Raise `ModelError` if no file can hold the weights. Nothing is encoded."""
    _header(quantized, config)
    for name, tensor in quantized.rest.items():
        rest.check(name, tensor, config)


def _header(quantized: QuantizedWeights, config: EncodeConfig) -> Header:
    """The header without the lengths of the sections, and without the choice of how each unshared tensor is coded."""
    if quantized.dropped and config.names == "none":
        raise ConfigError(
            f"names='none': such a file cannot say which tensors are left out, here {quantized.dropped[0]} by a drop "
            "rule. Use names='keep'"
        )
    codebooks: dict[tuple[bytes, str], tuple[int, Codebook]] = {}  # equal codebooks are stored once
    entries = tuple(_entry(name, t, config, codebooks) for name, t in _tensors(quantized).items())
    books = tuple(book for _, book in codebooks.values())
    header = Header(config.codec, config.names == "keep", books, entries, quantized.tied)
    check_writable(header)
    return header


def _parts(quantized: QuantizedWeights, config: EncodeConfig, threads: int | None) -> Iterator[bytes]:
    """The file from front to back. The header has every section's length, so the sections are coded before it."""
    header = _header(quantized, config)

    def section(item: tuple[Entry, QuantizedTensor | Tensor]) -> tuple[Entry, bytes]:
        entry, tensor = item
        if isinstance(tensor, QuantizedTensor):
            data = shared.encode(tensor, config.codec)
            return dataclasses.replace(entry, n_bytes=len(data)), data
        kind, data = rest.encode(entry.name, tensor, config)
        return dataclasses.replace(entry, n_bytes=len(data), kind=kind), data

    with tempfile.SpooledTemporaryFile(_SPOOL) as spool:
        coded = []
        items = zip(header.entries, quantized.tensors.values(), strict=True)
        for entry, data in _in_order(section, items, quantized.n_shared, threads):
            coded.append(entry)
            spool.write(data)
        packed = pack_header(dataclasses.replace(header, entries=tuple(coded)))
        spool.seek(0)
        crc = 0
        for part in itertools.chain([packed], iter(lambda: spool.read(_READ), b"")):
            crc = zlib.crc32(part, crc)
            yield part
        yield _CRC.pack(crc)


def _tensors(quantized: QuantizedWeights) -> dict[str, QuantizedTensor | Tensor]:
    names = sorted([*(t.name for t in quantized.shared), *quantized.rest])
    if sorted(quantized.order or names) != names or len(set(names)) < len(names):
        raise ModelError(f"expected each name once, and an order of exactly these names, got {names[:20]}")
    astray = sorted(set(quantized.tied.values()) - set(names))
    if astray:
        raise ModelError(f"tied: expected names of stored tensors, got {astray}")
    return quantized.tensors


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
        kind = Shared(dtype_name(name, tensor.dtype), number)
    return Entry(name, tuple(tensor.shape), kind, 0)


# Decode


def decode(
    data: bytes, *, like: nn.Module | None = None, max_bytes: int | None = MAX_BYTES, threads: int | None = None
) -> QuantizedWeights:
    """The quantized weights in the bytes of a file. `like` and `max_bytes` are as in `load`."""
    file = io.BytesIO(data)
    header = _open(file, like)
    _limit(file, header, _wanted(header, None), max_bytes)
    tensors = dict(_decode(file, header, header.entries, threads))
    quantized = tuple(t for t in tensors.values() if isinstance(t, QuantizedTensor))
    kept = {name: t for name, t in tensors.items() if isinstance(t, Tensor)}
    return QuantizedWeights(quantized, kept, header.tied, tuple(tensors))


def load(
    path: str | os.PathLike[str],
    names: Collection[str] | None = None,
    *,
    like: nn.Module | None = None,
    max_bytes: int | None = MAX_BYTES,
    threads: int | None = None,
) -> dict[str, Tensor]:
    """The state dict that a file decodes to:

        model.load_state_dict(softshare.load("model.sws"))

    A tied name gives the same tensor object as the name it repeats. A file without names needs `like`, the network it
    was written for.

    `max_bytes` limits the bytes of the tensors, and a tied tensor counts under each of its names. The work of decoding
    is limited too, to 2^30 steps of about 10 ns and 128 for each byte of the file. A `max_bytes` above the default
    raises this limit in proportion. A file beyond a limit is refused before anything is decoded. None: no limit.

    Args:
        path: of the file.
        names: decode only these tensors.
        like: the network that a file without names was written for.
        max_bytes: the most that the tensors may take.
        threads: that decode; by default as many as the file and the machine allow.

    Returns:
        The tensors by name, on the CPU.
    """
    with _opened(path) as file:
        header = _open(file, like)
        wanted = _wanted(header, names)
        stored = set(wanted.values())
        entries = [e for e in header.entries if e.name in stored]
        _limit(file, header, wanted, max_bytes)
        state = {name: _dense(t) for name, t in _decode(file, header, entries, threads)}
    return {name: state[stored] for name, stored in wanted.items()}


def load_into_(
    model: nn.Module, path: str | os.PathLike[str], *, strict: bool = True, threads: int | None = None
) -> None:
    """Copy a file's tensors into the model, in place and one by one:

        softshare.load_into_(model, "model.sws")

    No tensor is larger than the model's own.

    If any tensor does not fit, raise an error that lists all that do not, and copy none. With `strict=False` the file
    may lack tensors of the model, which stay as they are.

    Args:
        model: on any device, of the shapes that the file was written from.
        path: of the file.
        strict: whether the file must have every tensor of the model.
        threads: that decode; by default as many as the file and the machine allow.
    """
    with _opened(path) as file:
        header = _open(file, model)
        names = under_names(_wanted(header, None), unwrapped(model).state_dict())
        stored = {e.name: torch.empty(e.shape, dtype=DTYPES[e.kind.dtype], device="meta") for e in header.entries}
        fitting = {name: stored[s] for name, s in names.items()}
        target = check_fits(model, fitting, os.fspath(path), strict=strict, advice=_PARTIAL)
        aliases: dict[str, list[str]] = {}
        for name, s in names.items():
            aliases.setdefault(s, []).append(name)
        for name, tensor in _decode(file, header, header.entries, threads):
            dense = _dense(tensor)
            with torch.no_grad():
                for alias in aliases[name]:
                    target[alias].copy_(dense)


def inspect(source: str | os.PathLike[str] | bytes) -> FileInfo:
    """What a file, or its bytes, holds, by its headers alone:

        print(softshare.inspect("model.sws").file_bytes)

    No tensor is decoded, and the checksum is not checked."""
    if isinstance(source, bytes):
        return _inspect(io.BytesIO(source))
    with _opened(source) as file:
        return _inspect(file)


def _inspect(file: BinaryIO) -> FileInfo:
    reader = _reader(file)
    read_prefix(reader)
    header = read_header(reader)
    tensors = tuple(_tensor_info(file, header, entry) for entry in header.entries)
    return FileInfo(VERSION, header.codec, reader.end + _CRC.size, tensors)


def _tensor_info(file: BinaryIO, header: Header, entry: Entry) -> TensorInfo:
    name, shape, n = (entry.name, entry.shape, entry.n) if header.has_names else (None, None, None)
    if isinstance(entry.kind, Rest):
        return TensorInfo(name, "rest", shape, n, None, 0, entry.n_bytes)
    with _in_section(entry):
        n_nonzero, _ = shared.read_n_nonzero(_section(file, entry, FIRST_BYTES))
    n_components = len(header.codebooks[entry.kind.codebook].values)
    return TensorInfo(name, "shared", shape, n, n_nonzero, n_components, entry.n_bytes)


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file open for reading. Errors carry its path."""
    require_readable(path)
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise ConfigError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    except FormatError as error:
        raise FormatError(error.problem, error.section, error.offset, os.fspath(path)) from error
    except ConfigError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from error


@contextlib.contextmanager
def _in_section(entry: Entry) -> Iterator[None]:
    """Errors name the tensor of the section, and the byte where the section begins."""
    try:
        yield
    except FormatError as error:
        raise FormatError(error.problem, f"tensor {entry.name!r}", entry.offset) from error


def _reader(file: BinaryIO) -> Reader:
    """A reader of everything before the checksum."""
    end = file.seek(0, os.SEEK_END) - _CRC.size
    file.seek(0)
    return Reader(file, end)


def _open(file: BinaryIO, like: nn.Module | None) -> Header:
    """The header, read after the checksum is checked. A file without names takes names and shapes from the network."""
    reader = _reader(file)
    read_prefix(reader)
    _check_crc(file, reader)
    tensors, tied = layout(like) if like is not None else ({}, {})
    header = read_header(reader, None if like is None else [(name, tuple(t.shape)) for name, t in tensors.items()])
    if header.has_names:
        return header
    if like is None:
        raise ConfigError(
            "the file has no names and shapes (names='none'): expected the network it was written for. In Python, use "
            "load_into_(model, path) or load(path, like=model); to decompress it, use --task"
        )
    return dataclasses.replace(header, tied=tied)


def _check_crc(file: BinaryIO, reader: Reader) -> None:
    crc, left = 0, reader.end
    file.seek(0)
    while left > 0:
        part = file.read(min(_READ, left))
        left -= len(part) or left
        crc = zlib.crc32(part, crc)
    stored = file.read(_CRC.size)
    if stored != _CRC.pack(crc):
        problem = f"expected {_CRC.pack(crc).hex()}, got {stored.hex()}: the file is damaged or cut short"
        raise FormatError(problem, "checksum", reader.end)
    file.seek(reader.offset)


def _wanted(header: Header, names: Collection[str] | None) -> dict[str, str]:
    """The name of each wanted tensor, and the name under which it is stored."""
    known = {e.name: e.name for e in header.entries} | header.tied
    if isinstance(names, str):
        raise ConfigError(f"names: expected a list of names, got the text {names!r}")
    unknown = [name for name in names or () if name not in known]
    if unknown:
        some = ", ".join(list(known)[:50]) + (", ..." if len(known) > 50 else "")
        raise ConfigError(f"names: expected tensors of the file ({some}), got {', '.join(unknown)}")
    return known if names is None else {name: known[name] for name in names}


def _limit(file: BinaryIO, header: Header, wanted: dict[str, str], max_bytes: int | None) -> None:
    size = file.seek(0, os.SEEK_END)
    check_budget(header, wanted.values(), size, lambda entry: _section(file, entry, FIRST_BYTES), max_bytes)


def _decode(
    file: BinaryIO, header: Header, entries: Collection[Entry], threads: int | None
) -> Iterator[tuple[str, QuantizedTensor | Tensor]]:
    def tensor(item: tuple[Entry, bytes]) -> QuantizedTensor | Tensor:
        entry, data = item
        with _in_section(entry):
            if isinstance(entry.kind, Rest):
                return rest.decode(data, entry, entry.kind)
            return shared.decode(data, entry, header.codebooks[entry.kind.codebook], header.codec)

    sections = ((entry, _section(file, entry, entry.n_bytes)) for entry in entries)
    n_weights = sum(e.n for e in entries if isinstance(e.kind, Shared))
    decoded = _in_order(tensor, sections, n_weights, threads)
    return zip((e.name for e in entries), decoded, strict=True)


def _section(file: BinaryIO, entry: Entry, most: int) -> bytes:
    file.seek(entry.offset)
    return file.read(min(entry.n_bytes, most))


def _dense(tensor: QuantizedTensor | Tensor) -> Tensor:
    return tensor if isinstance(tensor, Tensor) else tensor.dense()
