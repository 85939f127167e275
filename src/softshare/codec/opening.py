"""The header of an open file, behind its checksum, and which of its tensors are wanted."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import BinaryIO

from torch import nn

from softshare._util.files import require_readable
from softshare.codec import sections
from softshare.codec.base import Base, BaseSource, open_base
from softshare.codec.budget import MAX_BYTES, check_budget
from softshare.codec.header import MAGIC, Entry, Header
from softshare.codec.header_reading import read_header, read_prefix
from softshare.codec.wire import CRC, PIECE, Reader
from softshare.errors import ConfigError, FormatError, ModelError
from softshare.network.weights import layout


def is_sws(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a `.sws` file does."""
    require_readable(path)
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except IsADirectoryError:
        return False
    except OSError as error:
        raise ConfigError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error


def open_header(file: BinaryIO, like: nn.Module | None, whole: bool = True) -> Header:
    """The header, read after the checksum is checked, unless only parts are to be read.

    A file without names takes names and shapes from the network.
    """
    reader = reader_of(file)
    version = read_prefix(reader)
    if whole:
        _check_crc(file, reader)
    tensors, tied = layout(like) if like is not None else ({}, {})
    given = None if like is None else [(name, tuple(t.shape)) for name, t in tensors.items()]
    header = read_header(reader, version, given)
    if header.has_names:
        return header
    if like is None:
        raise ConfigError(
            "the file has no names and shapes (names='none'): expected the network it was written for. In Python, use "
            "load_into_(model, path) or load(path, like=model); to decompress it, use --task"
        )
    return dataclasses.replace(header, tied=tied)


def reader_of(file: BinaryIO) -> Reader:
    """A reader of everything before the checksum."""
    end = file.seek(0, os.SEEK_END) - CRC.size
    file.seek(0)
    return Reader(file, end)


def _check_crc(file: BinaryIO, reader: Reader) -> None:
    crc, left = 0, reader.end
    file.seek(0)
    while left > 0:
        part = file.read(min(PIECE, left))
        left -= len(part) or left
        crc = zlib.crc32(part, crc)
    stored = file.read(CRC.size)
    if stored != CRC.pack(crc):
        problem = f"expected {CRC.pack(crc).hex()}, got {stored.hex()}: the file is damaged or cut short"
        raise FormatError(problem, "checksum", reader.end)
    file.seek(reader.offset)


def required_base(header: Header, base: BaseSource | Base | None, max_bytes: int | None = MAX_BYTES) -> Base | None:
    """The base, if the file differs from one. It must be the one that the file names."""
    if not header.base:
        if base is not None:
            raise ConfigError("base: the file stands alone and differs from no base; leave base out")
        return None
    wanted = header.base.hex()
    if base is None:
        raise ConfigError(
            f"the file holds differences from another checkpoint, with the SHA-256 {wanted[:16]}...; give it as base "
            "(on the command line: --base)"
        )
    under = base if isinstance(base, Base) else open_base(base, max_bytes)
    if under.digest != header.base:
        raise ModelError(
            f"base: expected the checkpoint that the file was made from, with the SHA-256 {wanted[:16]}..., got "
            f"another one, {under.digest.hex()[:16]}..."
        )
    return under


def wanted_names(header: Header, names: Collection[str] | None, base: Base | None = None) -> dict[str, str]:
    """The name of each wanted tensor, and the name under which it is stored: in the file or, unchanged, in the base."""
    known = {e.name: e.name for e in header.entries} | header.tied
    if base is not None:
        known = {name: name for name in base.names} | known
    if isinstance(names, str):
        raise ConfigError(f"names: expected a list of names, got the text {names!r}")
    unknown = [name for name in names or () if name not in known]
    if unknown:
        some = ", ".join(list(known)[:50]) + (", ..." if len(known) > 50 else "")
        raise ConfigError(f"names: expected tensors of the file ({some}), got {', '.join(unknown)}")
    return known if names is None else {name: known[name] for name in names}


def check_limits(
    file: BinaryIO,
    header: Header,
    wanted: dict[str, str],
    max_bytes: int | None,
    parts: Mapping[str, Entry] = MappingProxyType({}),  # of tensors of which only some rows are decoded
) -> None:
    """Raise `FormatError` if decoding these tensors takes too much."""
    size = file.seek(0, os.SEEK_END)
    own = {e.name for e in header.entries}
    check_budget(
        header,
        [name for name in wanted.values() if name in own],
        size,
        lambda entry: sections.first_bytes(file, header, entry),
        max_bytes,
        parts,
    )


def names_of_each(header: Header) -> dict[str, list[str]]:
    """By the name of each stored tensor: that name, and those tied to it."""
    found = {entry.name: [entry.name] for entry in header.entries}
    for alias, name in header.tied.items():
        found[name].append(alias)
    return found


def unchanged_names(header: Header, base: Base | None) -> list[str]:
    """The tensors of the base that the file does not name."""
    own = {*(e.name for e in header.entries), *header.tied}
    return [] if base is None else [name for name in base.names if name not in own]
