"""One shared tensor as bytes by an adaptive binary range coder whose model says where the non-zeros are.

Each weight is one binary decision, zero or not, and each non-zero its codebook index, bit by bit. The probability of
each decision mixes the predictions of several contexts in the logistic domain, all in integers. Contexts and mixing
weights learn as they go, from the same start in coder and decoder, so nothing but the decisions is transmitted. The
same functions run compiled where numba is installed and as plain Python where it is not, with the same bytes.

A tensor of zeros is no byte; any other is one byte for the scan (the number of its period in `_periods`) and the code.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softshare.codec.compiled import compiled
from softshare.codec.han import matrix_shape
from softshare.codec.logistic import LIMIT, SQUASH, STRETCH
from softshare.errors import FormatError
from softshare.quantize import QuantizedTensor

Ints = npt.NDArray[np.int64]

RANGE_BITS = 40  # of the coder's low and range
MIN_RANGE = 1 << 32
N_MASK = 9  # contexts of "is it zero"
N_VALUE = 4  # contexts of a bit of the index
TABLE_BITS = 16  # of the largest table of a context
PROBABILITY_BITS = 22  # of a context's estimate
SLOWEST = 255  # a context's estimate moves by at least 1 / (SLOWEST + 1.5) of the error
_RATES = np.array([(2 << 16) // (2 * n + 3) for n in range(SLOWEST + 1)], np.int64)  # 65536 / (n + 1.5)
_DENSITY = np.array([min(15, (n * n).bit_length()) for n in range(1 << 10)], np.int64)  # 0 to 15, about 2 log2


@compiled
def _density(count: int, seen: int, levels: Ints) -> int:
    """A count of non-zeros among those seen, as one of 16 levels."""
    return int(levels[min(len(levels) - 1, (count << 7) // (seen + 8))])


@compiled
def _code_bit(
    bit: int,  # to encode, or -1 to decode
    estimates: Ints,  # (contexts, table_size) probability of a 1, in 2^-PROBABILITY_BITS
    counts: Ints,  # (contexts, table_size) how often each was used, up to SLOWEST
    weights: Ints,  # (contexts,) of the mix, in 1/65536
    context: Ints,  # (contexts,)
    inputs: Ints,  # (contexts,) scratch
    coder: Ints,  # low, range, position, code, whether decoding
    data: npt.NDArray[np.uint8],
    squash: Ints,
    stretch: Ints,
    rates: Ints,
    learning_rate: int,
) -> int:
    """Predict one bit, encode or decode it, learn from it."""
    n = len(weights)
    mix = 0
    for k in range(n):
        inputs[k] = stretch[estimates[k, context[k]] >> (PROBABILITY_BITS - 16)]
        mix += weights[k] * inputs[k]
    mix = min(LIMIT, max(-LIMIT, mix >> 16))
    probability = squash[mix + LIMIT]

    bound = (coder[1] >> 16) * probability  # a 1 is the lower part of the range
    if bit < 0:
        bit = 1 if coder[3] < bound else 0
        if bit == 0:
            coder[3] -= bound
    elif bit == 0:
        coder[0] += bound
    coder[1] = bound if bit == 1 else coder[1] - bound
    while coder[1] < MIN_RANGE:
        _shift(coder, data)

    error = (bit << 16) - probability
    for k in range(n):
        weights[k] += (inputs[k] * error * learning_rate + (1 << 19)) >> 20
        slot = context[k]
        uses = counts[k, slot]
        estimates[k, slot] += (((bit << PROBABILITY_BITS) - estimates[k, slot]) * rates[uses]) >> 16
        estimates[k, slot] = min((1 << PROBABILITY_BITS) - 64, max(64, estimates[k, slot]))
        if uses < SLOWEST:
            counts[k, slot] = uses + 1
    return bit


@compiled
def _shift(coder: Ints, data: npt.NDArray[np.uint8]) -> None:
    """Move one byte out of the coder's low, or into its code."""
    position = coder[2]
    if coder[4] == 1:  # decoding: zeros follow the end of the data
        coder[3] = (coder[3] << 8) | (data[position] if position < len(data) else 0)
    else:
        if coder[0] >> RANGE_BITS:  # a carry into what is written already
            k = position - 1
            while data[k] == 255:
                data[k] = 0
                k -= 1
            data[k] += 1
            coder[0] &= (1 << RANGE_BITS) - 1
        data[position] = coder[0] >> (RANGE_BITS - 8)
        coder[0] = (coder[0] << 8) & ((1 << RANGE_BITS) - 1)
    coder[1] <<= 8
    coder[2] = position + 1


@compiled
def _code_tensor(
    indices: Ints,  # (rows, cols) read, or filled when decoding
    period: int,  # distance of a second neighbour in the row, 0 for none
    n_values: int,  # size of the codebook
    table_size: int,  # a power of 2
    coder: Ints,  # low, range, position, code, whether decoding
    data: npt.NDArray[np.uint8],
    squash: Ints,
    stretch: Ints,
    rates: Ints,
    levels: Ints,
) -> None:
    """Every weight in order, row by row: is it zero, and if not, which value."""
    rows, cols = indices.shape
    decoding = coder[4] == 1
    mask_estimates = np.full((N_MASK, table_size), 1 << (PROBABILITY_BITS - 4), np.int64)
    value_estimates = np.full((N_VALUE, table_size), 1 << (PROBABILITY_BITS - 1), np.int64)
    mask_counts, value_counts = np.zeros((N_MASK, table_size), np.int64), np.zeros((N_VALUE, table_size), np.int64)
    mask_weights, value_weights = np.full(N_MASK, 20000, np.int64), np.full(N_VALUE, 24000, np.int64)
    mask_context, value_context = np.zeros(N_MASK, np.int64), np.zeros(N_VALUE, np.int64)
    inputs = np.zeros(N_MASK, np.int64)
    column_count, column_last = np.zeros(cols, np.int64), np.zeros(cols, np.int64)
    depth = 0  # of the tree of values 1 to n_values - 1
    while (1 << depth) < n_values - 1:
        depth += 1
    fold = table_size - 1
    n_decided, n_nonzero = 0, 0
    for i in range(rows):
        row_count, row_last = 0, 0
        for j in range(cols):
            left1 = 1 if j > 0 and indices[i, j - 1] != 0 else 0
            left2 = 1 if j > 1 and indices[i, j - 2] != 0 else 0
            left3 = 1 if j > 2 and indices[i, j - 3] != 0 else 0
            up1 = 1 if i > 0 and indices[i - 1, j] != 0 else 0
            up2 = 1 if i > 1 and indices[i - 2, j] != 0 else 0
            row_level = _density(row_count, j, levels)
            column_level = _density(column_count[j], i, levels)
            mask_context[1] = row_level
            mask_context[2] = column_level
            mask_context[3] = 4 * left1 + 2 * left2 + left3
            mask_context[4] = j & fold
            mask_context[5] = 16 * column_level + row_level
            mask_context[6] = 4 * column_level + 2 * up1 + up2
            if period > 0:
                back1 = 1 if j >= period and indices[i, j - period] != 0 else 0
                back2 = 1 if j >= 2 * period and indices[i, j - 2 * period] != 0 else 0
                before = 1 if j > period and indices[i, j - period - 1] != 0 else 0
                after = 1 if j >= period > 1 and indices[i, j - period + 1] != 0 else 0
                mask_context[7] = 16 * back1 + 8 * before + 4 * after + 2 * left1 + back2
                mask_context[8] = (j % period) & fold
            rate = 8 + (1 << 13) // (n_decided + 256)
            given = -1 if decoding else (1 if indices[i, j] != 0 else 0)
            nonzero = _code_bit(
                given, mask_estimates, mask_counts, mask_weights, mask_context, inputs, coder, data, squash, stretch,
                rates, rate,
            )  # fmt: skip
            n_decided += 1
            if nonzero == 0:
                indices[i, j] = 0
                continue
            value = 0
            for level in range(depth):
                half = 1 << (depth - 1 - level)
                if ((2 * value + 1) * half) >= n_values - 1:  # the upper half holds no value
                    value = 2 * value
                    continue
                node = (1 << level) + value
                value_context[0] = node & fold
                value_context[1] = (node + (row_last << depth)) & fold
                value_context[2] = (node + (column_last[j] << depth)) & fold
                value_context[3] = (node + (row_level << depth)) & fold
                given = -1 if decoding else ((indices[i, j] - 1) // half) & 1
                rate = 8 + (1 << 13) // (n_nonzero + 256)
                value = 2 * value + _code_bit(
                    given, value_estimates, value_counts, value_weights, value_context, inputs, coder, data, squash,
                    stretch, rates, rate,
                )  # fmt: skip
            indices[i, j] = value + 1
            row_count += 1
            row_last = value + 1
            column_count[j] += 1
            column_last[j] = value + 1
            n_nonzero += 1


def encode_tensor(t: QuantizedTensor) -> bytes:
    """The shortest of the codings with each period that suits the shape; the first byte is its number."""
    rows, cols = matrix_shape(t.shape)
    indices = t.indices.numpy().reshape(rows, cols).copy()  # coder and decoder write it alike
    if not indices.any():
        return b""
    return min((bytes([k]) + _encode(indices, p, len(t.codebook)) for k, p in enumerate(_periods(t.shape))), key=len)


def decode_tensor(
    data: bytes, name: str, shape: tuple[int, ...], dtype: torch.dtype, codebook: Tensor, is_conv: bool
) -> QuantizedTensor:
    rows, cols = matrix_shape(shape)
    indices = np.zeros((rows, cols), np.int64)
    if data:
        periods = _periods(shape)
        if data[0] >= len(periods):
            raise FormatError(f"tensor {name!r}: expected a scan below {len(periods)}, got {data[0]}")
        if len(codebook) < 2 or not indices.size:
            raise FormatError(f"tensor {name!r}: expected no data for a tensor that can only be zero")
        if _decode(indices, periods[data[0]], len(codebook), data[1:]) < len(data) - 1:
            raise FormatError(f"tensor {name!r}: expected the data to end before byte {len(data)}")
    return QuantizedTensor(name, shape, dtype, torch.from_numpy(indices.reshape(-1)), codebook, is_conv)


def _periods(shape: tuple[int, ...]) -> list[int]:
    """None; a kernel's row and its taps for a convolution; the side of a square where the row may be an image."""
    _, cols = matrix_shape(shape)
    if len(shape) > 2:
        return [0, *{math.prod(shape[k:]): None for k in range(2, len(shape))}]
    side = math.isqrt(cols)
    return [0, side] if side * side == cols and side > 4 else [0]


def _run(indices: Ints, period: int, n_values: int, coder: Ints, data: npt.NDArray[np.uint8]) -> None:
    table_size = min(1 << TABLE_BITS, 1 << max(8, indices.shape[1].bit_length(), 2 * n_values.bit_length()))
    _code_tensor(indices, period, n_values, table_size, coder, data, SQUASH, STRETCH, _RATES, _DENSITY)


def _encode(indices: Ints, period: int, n_values: int) -> bytes:
    n_decisions = indices.size + np.count_nonzero(indices) * n_values.bit_length()
    data = np.zeros(2 * n_decisions + 16, np.uint8)  # a decision costs 16 bits at most
    coder = np.array([0, 1 << RANGE_BITS, 0, 0, 0], np.int64)
    _run(indices, period, n_values, coder, data)
    # Of the numbers in [low, low + range), the one with the most zeros at its end, which need not be written.
    low, high = int(coder[0]), int(coder[0] + coder[1])
    shift = next(s for s in range(RANGE_BITS, -1, -1) if -(-low >> s) << s < high)
    coder[0], coder[1] = -(-low >> shift) << shift, 1 << 8
    for _ in range(RANGE_BITS // 8):
        _shift(coder, data)
    return data[: coder[2]].tobytes().rstrip(b"\0")


def _decode(indices: Ints, period: int, n_values: int, data: bytes) -> int:
    """Fill the indices; returns how many bytes can have mattered."""
    padded = np.frombuffer(data, np.uint8).copy()
    coder = np.array([0, 1 << RANGE_BITS, 0, 0, 1], np.int64)
    for _ in range(RANGE_BITS // 8):
        _shift(coder, padded)
    coder[1] = 1 << RANGE_BITS
    _run(indices, period, n_values, coder, padded)
    return int(coder[2])
