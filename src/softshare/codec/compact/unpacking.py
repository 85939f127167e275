"""A compact file: its header, then its tensors in their order (docs/format.md 15)."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from softshare.codec import shared_section as shared
from softshare.codec.adaptive.full import run_full
from softshare.codec.adaptive.rangecoder import RANGE_BYTES, Bytes, Coder, check_end, start_decoding
from softshare.codec.adaptive.tensor import LONGEST_PERIOD
from softshare.codec.compact.fields import Fields
from softshare.codec.compact.outline import BEGIN, code_outline
from softshare.codec.compact.primer import primed_states
from softshare.codec.header import DTYPES, MAGIC, Entry, Header, Shared, n_values
from softshare.codec.header_reading import read_header
from softshare.codec.symbols import Indices, index_dtype, matrix_shape
from softshare.codec.wire import Reader
from softshare.errors import FormatError
from softshare.quantization.quantized import QuantizedTensor

MOST_VALUES = 1 << 20  # of all tensors together
MOST_BYTES = 1 << 26  # of the code: that of so many values cannot be longer


@dataclass(frozen=True, eq=False)
class Compact:
    """What follows the header of a compact file. Its tensors decode one after another."""

    outline: bytes  # an ordinary file without the codes of its sections
    data: Bytes
    coder: Coder  # after the header

    def first_bytes(self, entry: Entry) -> bytes:
        """Of the section that an ordinary file would have: its number of non-zeros and its period."""
        return self.outline[entry.offset : entry.offset + entry.n_bytes]

    def tensors(self, header: Header) -> Iterator[tuple[Entry, QuantizedTensor, int]]:
        """Each with the bytes that its code has moved on."""
        coder = self.coder
        for entry in header.entries:
            before = int(coder[2])
            try:
                tensor, coder = self._tensor(header, entry, coder)
                if entry is header.entries[-1]:
                    check_end(coder, self.data)
            except FormatError as error:
                raise FormatError(error.problem, f"tensor {entry.name!r}", len(BEGIN)) from error
            yield entry, tensor, int(coder[2]) - before

    def _tensor(self, header: Header, entry: Entry, coder: Coder) -> tuple[QuantizedTensor, Coder]:
        assert isinstance(entry.kind, Shared)
        book, data = header.codebooks[entry.kind.codebook], self.first_bytes(entry)
        reader = Reader(io.BytesIO(data), len(data))
        head = shared.read_head(reader, entry, entry.kind, book)
        n_rows, n_columns = matrix_shape(entry.shape)
        indices: Indices = np.zeros((n_rows, n_columns), index_dtype(len(book.values)))
        if head.n_nonzero:
            period, longest = reader.byte(), min(LONGEST_PERIOD, n_columns - 1)
            if period and not 2 <= period <= longest:
                raise FormatError(f"expected a period of 0 or 2 to {longest}, got {period}")
            _, coder = run_full(indices, period, len(book.values), head.n_nonzero, coder, True, self.data)
            if coder[2] > len(self.data) + RANGE_BYTES:
                got = f"got only {len(self.data)} bytes"
                raise FormatError(f"expected a code that goes on to the end of the tensor, {got}")
        values = torch.from_numpy(book.values)
        flat = torch.from_numpy(indices.reshape(-1))
        return QuantizedTensor(entry.name, entry.shape, DTYPES[entry.kind.dtype], flat, values), coder


def opened(reader: Reader) -> Header:
    """A compact file, from the byte after its flags. An error of its header has the offset of that byte."""
    start = reader.offset
    if reader.remaining > MOST_BYTES:
        problem = f"expected at most {MOST_BYTES} bytes in a compact file, got {reader.remaining}"
        raise FormatError(problem, "header", start)
    data = np.frombuffer(reader.take(reader.remaining), np.uint8).copy()
    fields = Fields(primed_states(), start_decoding(data), data)
    try:
        outline = code_outline(fields)
        inner = Reader(io.BytesIO(outline), len(outline))
        inner.take(len(MAGIC) + 1)
        header = read_header(inner, 1)
        total = sum(n_values(e.shape) for e in header.entries)
        if total > MOST_VALUES:
            raise FormatError(f"expected at most {MOST_VALUES} values in a compact file, got {total}")
        if not header.entries:
            check_end(fields.coder, data)
    except FormatError as error:
        raise FormatError(error.problem, "header", start) from error
    return dataclasses.replace(header, compact=Compact(outline, data, fields.coder))
