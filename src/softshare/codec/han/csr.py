"""One shared tensor as bytes, by appendix A of the paper (the format of Han et al., 2016): CSR, packed, Huffman-coded.

The tensor is a matrix with one row per entry of its first dimension (a vector or a scalar is one row). CSR's three
vectors follow each other bit by bit. IR has the row starts, at the smallest width that holds the number of entries
(A.1). IC has the column of each entry, relative to the entry before it in the row, Huffman-coded (A.2). A has the
codebook index of each entry, Huffman-coded (A.3). Entries of index 0 bridge a gap that is too long for the bits of a
relative index.

On the wire (docs/format.md 9): the width of a row start, in 6 bits; the end of each row, which is IR without its
leading 0; IC; A; zeros to the end of the byte. A tensor of zeros is never coded here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from softshare.codec.han import huffman
from softshare.codec.han.bits import BitReader, BitWriter, Ints
from softshare.codec.symbols import Indices, index_dtype, matrix_shape
from softshare.errors import FormatError

INDEX_BITS_FC = 5  # A.2
INDEX_BITS_CONV = 8
_WIDTH_BITS = 6


@dataclass(frozen=True, eq=False)
class Csr:
    """Appendix A's vectors, with codebook indices in place of weights."""

    a: Ints  # (n,) codebook index of each entry
    ir: Ints  # (rows + 1,) row r is entries ir[r] to ir[r + 1]
    ic: Ints  # (n,) column of each entry; if relative, the number of zeros since the entry before it in its row


def encode_tensor(
    indices: Indices,
    shape: tuple[int, ...],
    n_values: int,  # of the codebook
    n_nonzero: int,
) -> bytes:
    rows, cols = matrix_shape(shape)
    bits = index_bits(shape)
    csr = to_relative(to_csr(indices, rows, cols), bits)
    n = csr.a.size
    writer = BitWriter()
    writer.write(n.bit_length(), _WIDTH_BITS)
    writer.write(csr.ir[1:], n.bit_length())
    huffman.write(writer, csr.ic, 1 << bits)
    huffman.write(writer, csr.a, n_values)
    return writer.finish()


def decode_tensor(data: bytes, shape: tuple[int, ...], n_values: int, n_nonzero: int) -> Indices:
    """The inverse of `encode_tensor`. It allocates in proportion to `data` and `shape` only."""
    rows, cols = matrix_shape(shape)
    reader = BitReader(data)
    csr = _read(reader, rows, cols, index_bits(shape), n_values)
    reader.finish()
    return from_csr(csr, rows, cols, n_values)


def index_bits(shape: tuple[int, ...]) -> int:
    """Bits of a relative index. A tensor of more than two dimensions belongs to a convolution."""
    return INDEX_BITS_CONV if len(shape) > 2 else INDEX_BITS_FC


def to_csr(
    indices: Indices,
    rows: int,
    cols: int,
) -> Csr:
    entries = np.flatnonzero(indices)
    row, col = np.divmod(entries, max(cols, 1))
    return Csr(indices[entries].astype(np.int64), _starts(np.bincount(row, minlength=rows)), col)


def to_relative(csr: Csr, bits: int) -> Csr:
    """The same with relative columns, and an entry of index 0 where a gap has more than `2**bits - 1` zeros (A.2)."""
    before = np.concatenate([[-1], csr.ic[:-1]])[: csr.ic.size]
    before[csr.ir[:-1][np.diff(csr.ir) > 0]] = -1  # the first entry of a row counts from its beginning
    gaps = csr.ic - before - 1
    starts = _starts((gaps >> bits) + 1)  # an entry of index 0 is a zero itself, so it bridges 2**bits columns
    a = np.zeros(starts[-1], np.int64)
    ic = np.full(starts[-1], (1 << bits) - 1)
    a[starts[1:] - 1] = csr.a
    ic[starts[1:] - 1] = gaps & ((1 << bits) - 1)
    return Csr(a, starts[csr.ir], ic)


def from_csr(relative: Csr, rows: int, cols: int, n_values: int) -> Indices:
    """The indices of a CSR with relative columns. Raises if an entry lies outside its row."""
    ends = _starts(relative.ic + 1)  # columns passed since the first row began
    row = np.repeat(np.arange(rows), np.diff(relative.ir))
    col = ends[1:] - ends[relative.ir[row]] - 1
    outside = np.flatnonzero(col >= cols)
    if outside.size:
        first = outside[0]
        raise FormatError(f"expected columns below {cols} in row {row[first]}, got {col[first]}")
    indices = np.zeros(rows * cols, index_dtype(n_values))
    indices[row * cols + col] = relative.a
    return indices


def _starts(counts: Ints) -> Ints:
    """Where each run begins if runs of these lengths follow each other, and where the last one ends."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _read(reader: BitReader, rows: int, cols: int, bits: int, n_codebook: int) -> Csr:
    width = reader.read_one(_WIDTH_BITS)
    ir = _read_row_starts(reader, width, rows, cols)
    n = int(ir[-1])
    ic = huffman.read(reader, n, 1 << bits)
    a = huffman.read(reader, n, n_codebook)
    return Csr(a, ir, ic)


def _read_row_starts(reader: BitReader, width: int, rows: int, cols: int) -> Ints:
    most = rows * cols
    if not 1 <= width <= most.bit_length():
        raise FormatError(f"expected row starts of 1 to {most.bit_length()} bits for {most} weights, got {width}")
    ir = np.concatenate([[0], reader.read(width, rows)])
    if np.any(np.diff(ir) < 0):
        raise FormatError("expected row starts that do not fall, got one below the one before it")
    if not 0 < ir[-1] <= most:
        raise FormatError(f"expected 1 to {most} entries, got {ir[-1]}")
    return ir
