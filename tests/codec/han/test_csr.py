from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from softshare.codec.han.bits import BitWriter
from softshare.codec.han.csr import decode_tensor, encode_tensor, from_csr, to_csr, to_relative
from softshare.codec.symbols import index_dtype
from softshare.errors import FormatError

PAPER = [[0, 0, 0, 1], [0, 2, 0, 0], [0, 0, 0, 0], [2, 5, 0, 0], [0, 0, 0, 1]]  # appendix A
SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple) | st.sampled_from([(2, 700), (3, 260), (600,), (1, 4, 200)])


def check_round_trip(indices: np.ndarray | list[int], shape: tuple[int, ...], n_values: int) -> None:
    narrow = np.asarray(indices).astype(index_dtype(n_values))
    n_nonzero = int(np.count_nonzero(narrow))
    assert n_nonzero, "a tensor of zeros is never coded here"
    back = decode_tensor(encode_tensor(narrow, shape, n_values, n_nonzero), shape, n_values, n_nonzero)
    assert back.dtype == index_dtype(n_values)
    assert back.tolist() == narrow.tolist()


def bits(*fields: tuple[int, int]) -> bytes:
    writer = BitWriter()
    writer.write([value for value, _ in fields], [width for _, width in fields])
    return writer.finish()


def test_csr_of_the_paper() -> None:
    csr = to_csr(np.array(PAPER).reshape(-1), 5, 4)
    assert csr.a.tolist() == [1, 2, 2, 5, 1]
    assert csr.ir.tolist() == [0, 1, 2, 2, 4, 5]
    assert csr.ic.tolist() == [3, 1, 0, 1, 3]


def test_bytes_of_the_paper_s_matrix() -> None:
    indices = [{0: 0, 1: 1, 2: 2, 5: 3}[value] for row in PAPER for value in row]
    # Row starts:     5 entries need 3 bits, 6 + 5 * 3                                                  21 bits
    # IC 3,1,0,0,3:   last symbol in 5, width in 3, lengths 2,2,0,1 in 2 each                            16 bits
    #                 3 -> 0, 0 -> 10, 1 -> 11: 1 + 2 + 2 + 2 + 1                                         8 bits
    # A 1,2,2,3,1:    last symbol in 2 (4 codebook values), width in 3, lengths 0,2,1,2 in 2 each        13 bits
    #                 2 -> 0, 1 -> 10, 3 -> 11: 2 + 1 + 1 + 2 + 2                                         8 bits
    # 66 bits, so 9 bytes.
    expected = "000011 001 010 010 100 101  00011 010 10100001 0 11 10 10 0  11 010 00100110 10 0 0 11 10"
    digits = expected.replace(" ", "")
    assert len(digits) == 66
    data = encode_tensor(np.array(indices, np.uint8), (5, 4), 4, 5)
    assert len(data) == 9
    assert data == int(digits.ljust(72, "0"), 2).to_bytes(9, "big")


@pytest.mark.parametrize(
    ("shape", "n_zeros", "expected"),
    [
        # 6 + 1 bits for one entry. IC: last symbol n in 5 or 8, width 3, n + 1 lengths of 1 bit, one code of 1 bit.
        # A: last symbol 1 in 1, width 3, two lengths, one code: 7 bits.
        ((-1,), 0, 6 + 1 + (5 + 3 + 1 + 1) + 7),
        ((1, -1), 31, 6 + 1 + (5 + 3 + 32 + 1) + 7),
        # One entry of index 0 before it, so 2 entries: 2 bits. IC 31,0: both lengths 1. A 0,1: both lengths 1.
        ((-1,), 32, 6 + 2 + (5 + 3 + 32 + 2) + (1 + 3 + 2 + 2)),
        ((1, -1), 32, 6 + 2 + (5 + 3 + 32 + 2) + (1 + 3 + 2 + 2)),
        # More than two dimensions are a convolution's, whose gaps have 8 bits.
        ((1, -1, 1), 32, 6 + 1 + (8 + 3 + 33 + 1) + 7),
        ((1, 1, 1, -1), 255, 6 + 1 + (8 + 3 + 256 + 1) + 7),
        ((1, 1, -1), 256, 6 + 2 + (8 + 3 + 256 + 2) + (1 + 3 + 2 + 2)),
    ],
)
def test_size_of_one_weight_after_zeros(shape: tuple[int, ...], n_zeros: int, expected: int) -> None:
    shape = tuple(n_zeros + 1 if size == -1 else size for size in shape)
    indices = np.array([0] * n_zeros + [1], np.uint8)
    assert len(encode_tensor(indices, shape, 2, 1)) == math.ceil(expected / 8)
    check_round_trip(indices, shape, 2)


def test_gaps_are_bridged_within_the_row() -> None:
    # Two rows of 12 columns, 2 bits: gaps up to 3, so an entry of index 0 in columns 3 and 7, then 11.
    indices = np.zeros(24, np.int64)
    indices[[11, 12, 17]] = [7, 8, 9]
    csr = to_relative(to_csr(indices, 2, 12), 2)
    assert csr.a.tolist() == [0, 0, 7, 8, 0, 9]
    assert csr.ic.tolist() == [3, 3, 3, 0, 3, 0]
    assert csr.ir.tolist() == [0, 3, 6]
    back = from_csr(csr, 2, 12, 10)
    assert back.tolist() == indices.tolist()
    assert back.dtype == np.uint8


@given(SHAPES, st.integers(2, 40) | st.sampled_from([256, 257, 40_000]), st.floats(0, 1), st.integers(0, 2**32 - 1))
@example((), 2, 1.0, 0)
@example((1, 1, 1), 2, 0.0, 0)
def test_round_trip(shape: tuple[int, ...], n_values: int, density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = math.prod(shape)
    indices = rng.integers(1, n_values, n) * (rng.random(n) < density)
    if n and not indices.any():
        indices[rng.integers(n)] = 1
    if n:
        check_round_trip(indices, shape, n_values)


@pytest.mark.parametrize(("middle", "span"), [((), 32), ((1,), 256)])
def test_gaps_around_the_powers(middle: tuple[int, ...], span: int) -> None:
    for gap in (span * times + offset for times in (1, 2, 5) for offset in (-1, 0, 1)):
        row = [0] * gap + [3] + [0] * gap + [1]
        check_round_trip(row * 2, (2, *middle, len(row)), 4)
        check_round_trip([2] + [0] * gap + [3] + [0] * gap, (1, *middle, 2 * gap + 2), 4)


def test_a_million_zeros_between_two_weights() -> None:
    indices = np.zeros(1 << 20, np.uint8)
    indices[[0, -1]] = [1, 2]
    check_round_trip(indices, (1 << 20,), 3)
    check_round_trip(indices, (1 << 10, 1 << 5, 1 << 5), 3)


@pytest.mark.slow
def test_every_weight_with_a_value_of_its_own() -> None:
    check_round_trip(np.random.default_rng(0).permutation(1 << 16), (256, 256), 1 << 16)


@pytest.mark.parametrize("shape", [(), (50,), (5, 10), (5, 2, 5)])
def test_dense_and_constant(shape: tuple[int, ...]) -> None:
    n = math.prod(shape)
    check_round_trip([1] * n, shape, 2)
    check_round_trip([1 + k % 7 for k in range(n)], shape, 8)
    check_round_trip([5] * n, shape, 200)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "ends too early"),
        (bits((0, 6), (0, 10)), "row starts of 1 to 3 bits for 6 weights, got 0"),
        (bits((4, 6), (15, 4), (15, 4)), "row starts of 1 to 3 bits for 6 weights, got 4"),
        (bits((3, 6), (2, 3), (1, 3)), "do not fall"),
        (bits((3, 6), (0, 3), (7, 3)), "1 to 6 entries, got 7"),
        (bits((3, 6), (0, 3), (0, 3)), "1 to 6 entries, got 0"),
        (bits((3, 6)), "expected 6 more bits at bit 6, got 2"),
        # One entry in row 0, gap 3 in a row of 3 columns: IC table of the symbol 3 alone, A table of symbol 1 alone.
        (bits((1, 6), (1, 1), (1, 1), (3, 5), (1, 3), (1, 4), (0, 1), (1, 2), (1, 3), (1, 2), (0, 1)), "row 0, got 3"),
        # Four entries in row 1: gap 0 each, so the last is in column 3. A of the padding index 0 alone.
        (bits((3, 6), (0, 3), (4, 3), (0, 5), (1, 3), (1, 1), (0, 4), (0, 2), (1, 3), (1, 1), (0, 4)), "row 1, got 3"),
        # Codebook of 3: index 3 is none.
        (bits((1, 6), (1, 1), (1, 1), (0, 5), (1, 3), (1, 1), (0, 1), (3, 2), (1, 3), (1, 4), (0, 1)), "below 3"),
    ],
)
def test_refuses_what_no_encoder_writes(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode_tensor(data, (2, 3), 3, 1)


def check_garbage(data: bytes, shape: tuple[int, ...], n_values: int) -> None:
    try:
        back = decode_tensor(data, shape, n_values, 1)
    except FormatError:
        return
    assert back.shape == (math.prod(shape),)
    assert back.dtype == index_dtype(n_values)
    assert back.max(initial=0) < n_values


@given(st.binary(max_size=40), SHAPES, st.integers(2, 20))
def test_garbage_gives_indices_or_a_format_error(data: bytes, shape: tuple[int, ...], n_values: int) -> None:
    check_garbage(data, shape, n_values)


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 1), st.sampled_from([(6, 10), (6, 5, 2)]))
def test_damage_gives_indices_or_a_format_error(seed: int, density: float, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    indices = (rng.integers(1, 6, 60) * (rng.random(60) < density)).astype(np.uint8)
    indices[7] = 1
    data = bytearray(encode_tensor(indices, shape, 6, int(np.count_nonzero(indices))))
    data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    check_garbage(bytes(data), shape, 6)
    check_garbage(bytes(data[: rng.integers(len(data))]), shape, 6)


def test_huge_shapes_cost_nothing_unless_the_data_pays() -> None:
    rows = 1 << 40  # row starts alone would take terabytes
    with pytest.raises(FormatError, match="ends too early"):
        decode_tensor(bits((20, 6), (0, 20)), (rows, 1), 2, 1)
    with pytest.raises(FormatError, match="ends too early"):
        decode_tensor(bits((40, 6), (1 << 39, 40)), (rows,), 2, 1)
