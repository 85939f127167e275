"""The sections of a file's tensors: their bytes, and the tensors that they decode to."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import BinaryIO

from torch import Tensor

from softshare.codec import rest_section as rest
from softshare.codec import shared_section as shared
from softshare.codec.header import Entry, Header, Rest, Shared
from softshare.codec.parallel import in_order, parts_in_threads
from softshare.errors import FormatError
from softshare.quantization.quantized import QuantizedTensor

FIRST_BYTES = 9


def decode(
    file: BinaryIO, header: Header, entries: Collection[Entry], threads: int | None
) -> Iterator[tuple[str, QuantizedTensor | Tensor]]:
    """The tensors of these entries by name, in order."""
    if header.compact:
        yield from _compact(header, {entry.name for entry in entries})
        return

    def tensor(item: tuple[Entry, bytes]) -> QuantizedTensor | Tensor:
        entry, data = item
        with within(entry):
            if isinstance(entry.kind, Rest):
                return rest.decode(data, entry, entry.kind, run)
            return shared.decode(data, entry, entry.kind, header.codebooks[entry.kind.codebook], header.codec, run)

    sections = ((entry, read(file, entry, entry.n_bytes)) for entry in entries)
    n_weights = sum(e.n for e in entries if isinstance(e.kind, Shared) or e.kind.static)
    with parts_in_threads(n_weights, threads) as run:
        decoded = in_order(tensor, sections, n_weights, threads)
        yield from zip((e.name for e in entries), decoded, strict=True)


def _compact(header: Header, wanted: set[str]) -> Iterator[tuple[str, QuantizedTensor]]:
    """Of a compact file, whose tensors decode one after another, up to the last that is wanted."""
    assert header.compact
    tensors = iter(header.compact.tensors(header))
    while wanted:
        entry, tensor, _ = next(tensors)
        if entry.name in wanted:
            wanted.remove(entry.name)
            yield entry.name, tensor


def first_bytes(file: BinaryIO, header: Header, entry: Entry) -> bytes:
    """The beginning of a section: enough for its number of non-zeros, or for the modes of all planes."""
    return header.compact.first_bytes(entry) if header.compact else read(file, entry, FIRST_BYTES)


def read(file: BinaryIO, entry: Entry, most: int) -> bytes:
    """The first bytes of a section, at most so many."""
    file.seek(entry.offset)
    return file.read(min(entry.n_bytes, most))


@contextlib.contextmanager
def within(entry: Entry) -> Iterator[None]:
    """Errors name the tensor of the section, and the byte where the section begins."""
    try:
        yield
    except FormatError as error:
        raise FormatError(error.problem, f"tensor {entry.name!r}", entry.offset) from error
