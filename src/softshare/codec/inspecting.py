"""What a file holds, by its headers. Of a compact file, only decoding tells the bytes of each tensor."""

from __future__ import annotations

import contextlib
import io
from typing import BinaryIO

from softshare.codec import sections
from softshare.codec import shared_section as shared
from softshare.codec.header import Entry, Header, Rest
from softshare.codec.header_reading import read_header, read_prefix
from softshare.codec.info import FileInfo, TensorInfo
from softshare.codec.opening import reader_of
from softshare.codec.reading import Source, opened
from softshare.codec.wire import CRC
from softshare.errors import FormatError


def inspect(source: Source | bytes) -> FileInfo:
    """What a file, or its bytes, holds, by its headers alone:

        print(softshare.inspect("model.sws").file_bytes)

    The checksum is not checked. No tensor is decoded, unless the file is a compact one, which is small.

    Args:
        source: the path of a file, a binary file that is open, or bytes.

    Returns:
        The version, the codec and the size of the file, and what is known of each tensor.
    """
    if isinstance(source, bytes):
        return _inspect(io.BytesIO(source))
    with opened(source) as file:
        return _inspect(file)


def _inspect(file: BinaryIO) -> FileInfo:
    reader = reader_of(file)
    header = read_header(reader, read_prefix(reader))
    sizes = _compact_sizes(header) if header.compact else {entry.name: entry.n_bytes for entry in header.entries}
    tensors = tuple(_tensor_info(file, header, entry, sizes[entry.name]) for entry in header.entries)
    base = header.base.hex() or None
    return FileInfo(header.version, header.codec, reader.end + CRC.size, tensors, base, dict(header.tied))


def _compact_sizes(header: Header) -> dict[str, int]:
    """The bytes of each tensor in a compact file, which only decoding tells; 0 from the first one that is broken."""
    assert header.compact
    sizes = dict.fromkeys((entry.name for entry in header.entries), 0)
    with contextlib.suppress(FormatError):
        for entry, _, n_bytes in header.compact.tensors(header):
            sizes[entry.name] = n_bytes
    return sizes


def _tensor_info(file: BinaryIO, header: Header, entry: Entry, n_bytes: int) -> TensorInfo:
    name, shape, n = (entry.name, entry.shape, entry.n) if header.has_names else (None, None, None)
    if isinstance(entry.kind, Rest):
        return TensorInfo(name, "rest", shape, n, None, 0, n_bytes)
    with sections.within(entry):
        n_nonzero, _ = shared.read_n_nonzero(sections.first_bytes(file, header, entry))
    n_components = len(header.codebooks[entry.kind.codebook].values)
    return TensorInfo(name, "shared", shape, n, n_nonzero, n_components, n_bytes)
