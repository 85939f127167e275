"""One shared tensor as bytes, by an adaptive binary range coder whose model says where the non-zeros are.

Each weight is one binary decision, zero or not. Each non-zero adds its codebook index, bit by bit. The models learn as
they code, from the same start in encoder and decoder, so only the decisions are transmitted. All arithmetic is in
integers: the same functions run compiled, or as plain Python without numba, and give the same bytes.

The first byte names the model: below 128 it is the period of the full model, 128 is the fast model. The code follows
(docs/format.md 8.3).
"""

from __future__ import annotations

import math

import numpy as np

from softshare.codec.adaptive.fast import run_fast
from softshare.codec.adaptive.full import run_full
from softshare.codec.adaptive.rangecoder import check_end, finish, start_decoding, start_encoding
from softshare.codec.symbols import FAST_ABOVE as FAST_ABOVE  # tests change it here
from softshare.codec.symbols import MAX_CODEBOOK_VALUES, Indices, index_dtype, matrix_shape
from softshare.errors import FormatError

FAST = 128  # the first byte of the fast model
LONGEST_PERIOD = 127  # the first bytes of the full model are 0 and 2 to 127
MOST_TRIALS = 4  # periods that the encoder tries; the choice is not part of the format
TRIED = 1 << 17  # weights, in the first rows, that it tries them on
SAMPLE = 1 << 14  # non-zeros that it reads to find likely periods
FIRST_BUFFER = 1 << 12  # bytes, doubled as needed


def encode_tensor(
    indices: Indices,  # (numel,) contiguous, of `index_dtype` or wider
    shape: tuple[int, ...],
    n_values: int,  # size of the codebook, zero included
    n_nonzero: int,  # at least 1
    fast: bool | None = None,  # whether by the fast model; by default, as the format has it for this size
) -> bytes:
    """The fast model for large tensors; else the full model with the best of the likely periods."""
    matrix = np.require(indices.reshape(matrix_shape(shape)), requirements=["C", "W"])  # as in decoding
    if matrix.size > FAST_ABOVE if fast is None else fast:
        return bytes([FAST]) + encode_fast(matrix, n_values, n_nonzero)
    periods, rows = _periods(matrix, shape), matrix[: max(1, TRIED // matrix.shape[1])]
    n_tried = int(np.count_nonzero(rows))
    if len(rows) < len(matrix) and n_tried:
        periods = [min(periods, key=lambda period: len(_encode_full(rows, period, n_values, n_tried)))]
    return min((_encode_full(matrix, period, n_values, n_nonzero) for period in periods), key=len)


def encode_fast(
    matrix: Indices,  # (rows, cols)
    n_values: int,
    n_nonzero: int,  # at least 1
) -> bytes:
    """The code by the fast model, without a first byte."""
    data, coder = run_fast(matrix, n_values, n_nonzero, start_encoding(), False, np.zeros(FIRST_BUFFER, np.uint8))
    return finish(coder, data)


def decode_fast(
    matrix: Indices,  # (rows, cols) zeros, which this fills
    n_values: int,
    n_nonzero: int,
    data: bytes | memoryview,
) -> None:
    code = np.frombuffer(data, np.uint8).copy()
    _, coder = run_fast(matrix, n_values, n_nonzero, start_decoding(code), True, code)
    check_end(coder, code)


def decode_tensor(
    data: bytes | memoryview,
    shape: tuple[int, ...],
    n_values: int,
    n_nonzero: int,
) -> Indices:  # (numel,) of `index_dtype`
    rows, cols = matrix_shape(shape)
    if not 1 <= n_nonzero <= rows * cols:
        raise FormatError(f"expected 1 to {rows * cols} non-zeros in shape {shape}, got {n_nonzero}")
    if not 2 <= n_values <= MAX_CODEBOOK_VALUES:
        raise FormatError(f"expected a codebook of 2 to {MAX_CODEBOOK_VALUES} values, got {n_values}")
    if not len(data):
        raise FormatError("expected a first byte that names the model, got no data")
    code = np.frombuffer(data, np.uint8)[1:].copy()
    coder = start_decoding(code)
    indices: Indices
    if rows * cols > FAST_ABOVE:
        if data[0] != FAST:
            raise FormatError(f"expected a first byte of {FAST} for {rows * cols} weights, got {data[0]}")
        indices = np.zeros((rows, cols), index_dtype(n_values))
        _, coder = run_fast(indices, n_values, n_nonzero, coder, True, code)
    else:
        if data[0] and not 2 <= data[0] <= min(LONGEST_PERIOD, cols - 1):
            raise FormatError(f"expected a period of 0 or 2 to {min(LONGEST_PERIOD, cols - 1)}, got {data[0]}")
        indices = np.zeros((rows, cols), index_dtype(n_values))
        _, coder = run_full(indices, data[0], n_values, n_nonzero, coder, True, code)
    check_end(coder, code)
    return indices.reshape(-1)


def _encode_full(matrix: Indices, period: int, n_values: int, n_nonzero: int) -> bytes:
    buffer = np.zeros(FIRST_BUFFER, np.uint8)
    data, coder = run_full(matrix, period, n_values, n_nonzero, start_encoding(), False, buffer)
    return bytes([period]) + finish(coder, data)


def _periods(
    matrix: Indices,  # (rows, cols)
    shape: tuple[int, ...],
) -> list[int]:
    """Likely periods: 0, a kernel's line and its taps, the side of a square row, the lag where most non-zeros coincide.

    The square of that lag is another: a layer on 4 x 4 maps has lines of 4 and maps of 16.
    """
    longest = min(LONGEST_PERIOD, matrix.shape[1] - 1)
    likely = [0, *(math.prod(shape[k:]) for k in range(len(shape) - 1, 1, -1))]
    if len(shape) == 2 and longest >= 4:
        side = math.isqrt(matrix.shape[1])
        likely += [side] if side * side == matrix.shape[1] else []
        flat = matrix.reshape(-1)
        at = np.flatnonzero(flat)
        at = at[longest <= at][:: max(1, len(at) // SAMPLE)]
        lag = max(range(4, longest + 1), key=lambda lag: np.count_nonzero(flat[at - lag]))
        likely += [lag, lag * lag]
    return [p for p in dict.fromkeys(likely) if p == 0 or 2 <= p <= longest][:MOST_TRIALS]
