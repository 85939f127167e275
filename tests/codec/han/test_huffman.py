"""Huffman codes: as short as can be, canonical, limited in length, and refused if they are not complete."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softshare.codec.han import huffman
from softshare.codec.han.bits import BitReader, BitWriter
from softshare.errors import FormatError


def kraft(lengths: list[int]) -> Fraction:
    return sum((Fraction(1, 1 << length) for length in lengths if length), Fraction(0))


def encoded(symbols: list[int], alphabet: int) -> bytes:
    writer = BitWriter()
    huffman.write(writer, np.array(symbols, np.int64), alphabet)
    return writer.finish()


def decoded(data: bytes, count: int, alphabet: int) -> list[int]:
    reader = BitReader(data)
    symbols: list[int] = huffman.read(reader, count, alphabet).tolist()
    reader.finish()
    return symbols


def table(alphabet_bits: int, last: int, width: int, lengths: list[int], codes: str = "") -> bytes:
    writer = BitWriter()
    writer.write([last, width], [alphabet_bits, 3])
    writer.write(lengths, width)
    writer.write([int(bit) for bit in codes], 1)
    return writer.finish()


@settings(max_examples=40)
@given(st.lists(st.integers(1, 50), min_size=2, max_size=5))
def test_no_prefix_code_is_shorter(counts: list[int]) -> None:
    def cost(lengths: tuple[int, ...]) -> int:
        return sum(n * length for n, length in zip(counts, lengths, strict=True))

    every = itertools.product(range(1, len(counts)), repeat=len(counts))  # an optimal code is no deeper
    best = min(cost(lengths) for lengths in every if kraft(list(lengths)) <= 1)
    assert cost(tuple(huffman.code_lengths(np.array(counts)).tolist())) == best


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300).filter(any))
def test_lengths_are_a_complete_code_of_the_used_symbols(counts: list[int]) -> None:
    lengths = huffman.code_lengths(np.array(counts)).tolist()
    assert [length > 0 for length in lengths] == [n > 0 for n in counts]
    n_used = sum(n > 0 for n in counts)
    assert kraft(lengths) == (1 if n_used > 1 else Fraction(1, 2))


def test_ties_go_to_what_came_first() -> None:
    assert huffman.code_lengths(np.array([1, 1, 1])).tolist() == [2, 2, 1]
    assert huffman.code_lengths(np.array([2, 1, 1, 2])).tolist() == [2, 2, 2, 2]
    assert huffman.code_lengths(np.array([0, 7, 0])).tolist() == [0, 1, 0]
    assert huffman.code_lengths(np.zeros(3, np.int64)).tolist() == [0, 0, 0]


def test_lengths_are_limited() -> None:
    fibonacci = [1, 1]
    while len(fibonacci) < 60:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])  # Huffman's worst case: 59 bits deep
    assert max(huffman._depths(fibonacci)) == 59
    lengths = huffman.code_lengths(np.array(fibonacci)).tolist()
    assert max(lengths) <= huffman.MAX_LENGTH
    assert kraft(lengths) == 1
    assert lengths == sorted(lengths, reverse=True)


def test_canonical_codes_of_rfc_1951() -> None:
    code = huffman.canonical(np.array([3, 3, 3, 3, 3, 2, 4, 4]))  # section 3.2.2, symbols A to H
    codes = dict(zip(code.symbols.tolist(), code.codes.tolist(), strict=True))
    assert [codes[symbol] for symbol in range(8)] == [0b010, 0b011, 0b100, 0b101, 0b110, 0b00, 0b1110, 0b1111]


def test_bytes_of_a_small_message() -> None:
    # Counts 3, 0, 1, 2: lengths 1, 0, 2, 2; codes 0, -, 10, 11.
    # Alphabet of 8: last symbol 3 in 3 bits; lengths in 2 bits.
    #   011 010 | 01 00 10 10 | 0 11 0 10 11 0
    assert encoded([0, 3, 0, 2, 3, 0], 8) == bytes([0b01101001, 0b00101001, 0b10101100])


@given(st.lists(st.integers(0, 40), min_size=1, max_size=400), st.integers(41, 300))
def test_round_trip(symbols: list[int], alphabet: int) -> None:
    assert decoded(encoded(symbols, alphabet), len(symbols), alphabet) == symbols


def test_round_trip_of_long_codes_over_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [1, 1]
    while len(counts) < 20:
        counts.append(counts[-1] + counts[-2])
    symbols = np.repeat(np.arange(20), counts)
    np.random.default_rng(0).shuffle(symbols)
    data = encoded(symbols.tolist(), 20)
    for chunk in (1, 5, 1 << 14):
        monkeypatch.setattr(huffman, "_CHUNK", chunk)
        assert decoded(data, symbols.size, 20) == symbols.tolist()


def test_longest_codes() -> None:
    lengths = [*range(1, 32), 31]  # a comb of all lengths
    data = table(5, 31, 5, lengths, "1" * 31 + "0" + "1" * 30 + "0")
    assert decoded(data, 3, 32) == [31, 0, 30]


def test_one_symbol_takes_one_bit_each() -> None:
    assert encoded([5] * 9, 8) == table(3, 5, 1, [0, 0, 0, 0, 0, 1], "0" * 9)
    assert decoded(encoded([5] * 9, 8), 9, 8) == [5] * 9
    assert decoded(encoded([0] * 3, 1), 3, 1) == [0] * 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (table(3, 2, 2, [1, 2, 0]), "Kraft sum of 1, got 0.75"),
        (table(3, 2, 2, [1, 1, 1]), "Kraft sum of 1, got 1.5"),
        (table(3, 2, 2, [0, 0, 0]), "Kraft sum of 1, got 0"),
        (table(3, 2, 2, [0, 0, 2]), "Kraft sum of 1, got 0.25"),
        (table(3, 6, 1, [0] * 5 + [1, 1]), "symbols below 6 in a Huffman table, got 6"),
        (table(3, 1, 0, [0, 0]), "1 to 5 bits, got 0"),
        (table(3, 1, 6, [1, 1]), "1 to 5 bits, got 6"),
        (table(3, 1, 1, [0, 1], "0001000000000000"), "only zeros"),
        (table(3, 5, 5, [1, 1]), "ends too early"),
        (table(3, 1, 1, [1, 1], "0101"), "ends too early"),
        (table(3, 2, 2, [1, 2, 2], "1111" + "1111" + "111" + "1"), "ends too early"),
        (b"", "ends too early"),
    ],
)
def test_refuses_what_no_encoder_writes(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decoded(data, 12, 6)


@given(st.binary(max_size=60), st.integers(1, 100), st.integers(1, 70))
def test_garbage_gives_symbols_or_a_format_error(data: bytes, count: int, alphabet: int) -> None:
    try:
        symbols = decoded(data, count, alphabet)
    except FormatError:
        return
    assert len(symbols) == count
    assert all(0 <= symbol < alphabet for symbol in symbols)


def test_a_count_without_bits_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(FormatError, match="ends too early"):
        decoded(table(3, 1, 1, [1, 1], "0" * 30), 1 << 60, 6)
