"""A large sparse tensor in bands of rows. Each is coded for itself, so all processors share it (docs/format.md 14)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from softshare.codec.adaptive.tensor import decode_fast, encode_fast
from softshare.codec.parallel import Run, one_by_one
from softshare.codec.symbols import MAX_CODEBOOK_VALUES, Indices, index_dtype, matrix_shape
from softshare.codec.wire import Reader, varint
from softshare.errors import FormatError

MOST_BITS = 4
FROM = 1 << 23  # weights; more are coded in bands
SIXTEEN_FROM = 1 << 25  # weights; fewer are coded in 8


def bits_for(shape: tuple[int, ...]) -> int:
    """2 to this power bands are worth it; 0 if none are."""
    rows, cols = matrix_shape(shape)
    if rows * cols <= FROM:
        return 0
    return min(MOST_BITS if rows * cols > SIXTEEN_FROM else MOST_BITS - 1, rows.bit_length() - 1)


def _bands(rows: int, bits: int) -> list[slice]:
    return [slice(k * rows >> bits, (k + 1) * rows >> bits) for k in range(1 << bits)]


def encode_bands(
    indices: Indices,  # (numel,)
    shape: tuple[int, ...],
    n_values: int,
    bits: int,
    run: Run = one_by_one,
) -> bytes:
    matrix = np.require(indices.reshape(matrix_shape(shape)), requirements=["C", "W"])
    bands = _bands(len(matrix), bits)
    counts, codes = [0] * len(bands), [b""] * len(bands)

    def code(k: int) -> None:
        counts[k] = int(np.count_nonzero(matrix[bands[k]]))
        codes[k] = encode_fast(matrix[bands[k]], n_values, counts[k]) if counts[k] else b""

    run(code, range(len(bands)))
    heads = [varint(n) + varint(len(c)) for n, c in zip(counts, codes, strict=True)]
    return bytes([bits]) + b"".join([*heads, *codes])


def read_bands(reader: Reader, shape: tuple[int, ...], n_nonzero: int) -> list[tuple[slice, int, int, int]]:
    """Of each band its rows, the number of its non-zeros, and the place and the length of its code."""
    rows, cols = matrix_shape(shape)
    start = reader.offset
    bits = reader.byte()
    reader.expect(1 <= bits <= MOST_BITS and 1 << bits <= rows, f"2 to 16 bands of {rows} rows", f"2^{bits}", start)
    bands = _bands(rows, bits)
    heads = [(reader.varint(), reader.varint()) for _ in bands]
    found, at = [], reader.offset
    for band, (n, length) in zip(bands, heads, strict=True):
        most = (band.stop - band.start) * cols
        reader.expect(n <= most, f"at most {most} non-zeros in a band", n, start)
        reader.expect(n > 0 or length == 0, "no code for a band of zeros", length, start)
        found.append((band, n, at, length))
        at += length
    total = sum(n for n, _ in heads)
    reader.expect(total == n_nonzero, f"bands of {n_nonzero} non-zeros together", total, start)
    reader.expect(at == reader.end, f"bands that end at byte {reader.end}", at, start)
    return found


def decode_bands(
    bands: list[tuple[slice, int, int, int]],
    take: Callable[[int, int], bytes | memoryview],  # of the place and the length of a code
    cols: int,
    n_values: int,
    run: Run = one_by_one,
) -> Indices:  # (numel of these bands,), of `index_dtype`
    if not 2 <= n_values <= MAX_CODEBOOK_VALUES:
        raise FormatError(f"expected a codebook of 2 to {MAX_CODEBOOK_VALUES} values, got {n_values}")
    first, last = bands[0][0].start, bands[-1][0].stop
    matrix: Indices = np.zeros((last - first, cols), index_dtype(n_values))

    def code(item: tuple[slice, int, int, int]) -> None:
        rows, n, at, length = item
        if n:
            decode_fast(matrix[rows.start - first : rows.stop - first], n_values, n, take(at, length))

    run(code, bands)
    return matrix.reshape(-1)
