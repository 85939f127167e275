"""The static code against a decoder written from docs/format.md 13 alone, and what a reader refuses."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest

from softshare.codec.static import classes, code, layout, tables
from softshare.codec.static.rans import BY_COLUMN, BY_ROW
from softshare.codec.wire import varint
from softshare.errors import FormatError

Bits = np.ndarray[tuple[int], np.dtype[np.uint8]]


def by_definition(data: bytes, rows: int, cols: int, n_symbols: int) -> list[int]:
    """A decoder in the words of the specification, one symbol after another."""
    at = 3
    n_lanes, size, form = 1 << data[0], 1 << data[1], data[2]
    n_tables, axis = form % 8 + 1, form >> 3
    own = [0] * (rows if axis == 1 else cols)
    if axis:
        bits = {2: 1, 3: 2, 4: 2, 5: 3, 6: 3, 7: 3, 8: 3}[n_tables]
        n_bytes = (len(own) * bits + 7) // 8
        packed = int.from_bytes(data[at : at + n_bytes], "little")
        own = [packed >> (bits * k) & (2**bits - 1) for k in range(len(own))]
        at += n_bytes

    def number() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            value |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return value

    found: list[list[int]] = []
    for _ in range(n_tables):
        frequencies: list[int] = []
        while len(frequencies) < n_symbols:
            frequencies.append(number())
            if frequencies[-1] == 0:
                frequencies += [0] * number()
        assert len(frequencies) == n_symbols
        assert sum(frequencies) == 4096
        found.append(frequencies)
    n = rows * cols
    n_chunks = (n + size - 1) // size
    counts = struct.unpack_from(f"<{n_chunks}H", data, at)
    at += 2 * n_chunks
    out = []
    for k, n_words in enumerate(counts):
        states = list(struct.unpack_from(f"<{n_lanes}I", data, at))
        words = iter(struct.unpack_from(f"<{n_words}H", data, at + 4 * n_lanes))
        at += 4 * n_lanes + 2 * n_words
        for i in range(min(size, n - k * size)):
            row, col = divmod(k * size + i, cols)
            frequencies = found[own[row] if axis == 1 else own[col] if axis == 2 else 0]
            x = states[i % n_lanes]
            slot, below, symbol = x % 4096, 0, 0
            while below + frequencies[symbol] <= slot:
                below += frequencies[symbol]
                symbol += 1
            x = frequencies[symbol] * (x >> 12) + slot - below
            if x < 65536:
                x = x * 65536 + next(words)
            states[i % n_lanes] = x
            out.append(symbol)
        assert states == [65536] * n_lanes
        assert next(words, None) is None
    assert at == len(data)
    return out


def matrix(rows: int, cols: int, n_symbols: int, axis: int = 0, seed: int = 0) -> Bits:
    """Symbols whose frequencies depend on the row, or on the column."""
    rng = np.random.default_rng(seed)
    widths = np.exp(1.0 * rng.standard_normal(cols if axis == BY_COLUMN else rows))
    spread = widths[None, :] if axis == BY_COLUMN else widths[:, None] if axis else 1.0
    drawn = np.abs(rng.standard_normal((rows, cols)) * spread * n_symbols / 6)
    symbols: Bits = np.minimum(drawn, n_symbols - 1).astype(np.uint8).reshape(-1)
    return symbols


def cases() -> Iterator[tuple[int, int, int, int, int, int]]:
    """rows, cols, symbols, axis, lanes, chunk"""
    yield 1, 1, 2, 0, 4, 64
    yield 1, 65, 3, 0, 32, 64
    yield 64, 3, 5, 0, 1, 64  # rows shorter than the lanes
    yield 7, 130, 17, BY_ROW, 4, 64
    yield 200, 37, 9, BY_ROW, 8, 512
    yield 33, 96, 256, BY_COLUMN, 16, 1024
    yield 96, 300, 4, BY_COLUMN, 2, 128
    yield 64, 512, 17, BY_ROW, 32, 1 << 15


@pytest.mark.parametrize("case", list(cases()))
def test_symbols_come_back_and_a_decoder_by_definition_agrees(case: tuple[int, ...]) -> None:
    rows, cols, n_symbols, axis, lanes, chunk = case
    symbols = matrix(rows, cols, n_symbols, axis)
    data = code.encode(symbols, rows, cols, n_symbols, lanes, chunk)
    assert np.array_equal(code.decode(data, rows, cols, n_symbols), symbols)
    assert by_definition(data, rows, cols, n_symbols) == symbols.tolist()


@pytest.mark.parametrize("axis", [BY_ROW, BY_COLUMN])
@pytest.mark.parametrize("n_tables", [2, 3, 5, 7, 8])
def test_every_number_of_tables(axis: int, n_tables: int) -> None:
    rows, cols = 24, 21
    symbols = matrix(rows, cols, 6, axis)
    own = (np.arange(rows if axis == BY_ROW else cols) * 11 % n_tables).astype(np.uint8)
    place = np.arange(rows * cols) // cols if axis == BY_ROW else np.arange(rows * cols) % cols
    counts = np.stack([np.bincount(symbols[own[place] == k], minlength=6) for k in range(n_tables)])
    data = code.encode(symbols, rows, cols, 6, 4, 64, classes.Choice(axis, own, counts))
    assert data[2] == n_tables - 1 | axis << 3
    assert by_definition(data, rows, cols, 6) == code.decode(data, rows, cols, 6).tolist() == symbols.tolist()


def test_a_single_symbol_takes_states_alone() -> None:
    data = code.encode(np.full(1000, 2, np.uint8), 1, 1000, 4, 4, 512)
    head = bytes([2, 9, 0]) + bytes([0, 1]) + varint(4096) + bytes([0, 0])
    assert data == head + bytes(4) + 2 * 4 * struct.pack("<I", 65536)


def test_size_is_near_the_entropy() -> None:
    symbols = matrix(256, 1024, 12)
    entropy = classes.entropy(np.bincount(symbols)) / 8
    data = code.encode(symbols, 256, 1024, 12)
    assert len(data) < 1.003 * entropy
    assert len(code.encode(symbols, 256, 1024, 12, lanes=32)) < 1.015 * entropy


@pytest.mark.parametrize("axis", [BY_ROW, BY_COLUMN])
def test_tables_of_rows_and_columns_are_found(axis: int) -> None:
    symbols = matrix(300, 300, 17, axis)
    together = classes.entropy(np.bincount(symbols)) / 8
    choice = classes.choose(symbols, 300, 300, 17)
    assert choice.axis == axis
    assert len(choice.counts) == 8
    assert len(code.encode(symbols, 300, 300, 17)) < 0.92 * together


def test_nothing_is_gained_where_rows_do_not_differ() -> None:
    assert classes.choose(matrix(300, 300, 5), 300, 300, 5).axis == 0


def test_frequencies_are_near_the_counts() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        counts = rng.integers(0, 10 ** rng.integers(1, 7), rng.integers(2, 256))
        counts[0] += 1
        frequencies = tables.normalized(counts)
        assert frequencies.sum() == 4096
        assert ((frequencies > 0) == (counts > 0)).all()
        cost = -(counts[counts > 0] * np.log2(frequencies[counts > 0] / 4096)).sum()
        rare = np.count_nonzero(counts * 4096 < counts.sum()) / 4096  # rounded up to a 4096th
        assert cost <= classes.entropy(counts) + counts.sum() * (2 * rare + 0.02)


# What a reader refuses


def good() -> bytes:
    """300 symbols of 3 columns in two tables by row, 2 lanes, chunks of 64."""
    symbols = matrix(100, 3, 3, seed=1)
    own = (np.arange(100) % 2).astype(np.uint8)
    place = np.arange(300) // 3
    counts = np.stack([np.bincount(symbols[own[place] == k], minlength=3) for k in range(2)])
    return code.encode(symbols, 100, 3, 3, 2, 64, classes.Choice(BY_ROW, own, counts))


def changed(at: int, value: int) -> bytes:
    data = bytearray(good())
    data[at] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (changed(0, 6), "lanes"),
        (changed(1, 5), "chunks of"),
        (changed(1, 17), "chunks of"),
        (changed(2, 0b0001_1001), "axis"),
        (changed(2, 0b0000_0001), "axis"),
        (changed(2, 0b0000_1000), "axis"),
        (changed(2, 0b0010_1001), "axis"),
        (changed(2 + 13, 0xF0), "zeros after the last class"),
        (good()[:10], "more bytes"),
        (good()[:-2], "ends at byte"),
        (good() + b"\0\0", "ends at byte"),
        (changed(len(good()) - 1, good()[-1] ^ 1), "chunk 4"),
    ],
)  # fmt: skip
def test_what_a_reader_refuses(data: bytes, problem: str) -> None:
    assert len(code.decode(good(), 100, 3, 3)) == 300
    with pytest.raises(FormatError, match=problem):
        code.decode(data, 100, 3, 3)


def static(frequencies: bytes, words: int, chunk: bytes) -> bytes:
    """One lane, chunks of 64, one table."""
    return bytes([0, 6, 0]) + frequencies + struct.pack("<H", words) + chunk


def state(x: int) -> bytes:
    return struct.pack("<I", x)


HALVES = varint(2048) + varint(
    2048
)  # symbol 0 keeps the bits of x that it does not take; 1 has the upper half of slots


def test_a_chunk_by_hand() -> None:
    """Symbol 1, from a state of 2^17 + 2048: slot 2048, then 2048 * 32 + 2048 - 2048."""
    assert code.decode(static(HALVES, 0, state(131072 + 2048)), 1, 1, 2).tolist() == [1]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (static(HALVES, 0, state(65535)), "chunk 0"),  # a state below 2^16
        (static(HALVES, 0, state(65536)), "chunk 0"),  # a word is missing
        (static(HALVES, 1, state(131072) + b"\0\0"), "chunk 0"),  # a word too many
        (static(HALVES, 0, state(262144)), "chunk 0"),  # another last state
        (static(varint(2048) + varint(2047), 0, state(131072)), "sum 4096"),
        (static(varint(2049) + varint(2048), 0, state(131072)), "sum 4096"),
        (static(varint(4097) + bytes([0]), 0, state(131072)), "sum 4096"),
        (static(varint(4096) + bytes([0, 1]), 0, state(131072)), "2 frequencies"),
        (static(HALVES, 1, state(131072)), "ends at byte"),
    ],
)  # fmt: skip
def test_chunks_and_tables_that_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        code.decode(data, 1, 1, 2)


def test_a_class_beyond_the_tables() -> None:
    """Three tables, two bits a class."""
    own = np.array([0, 1, 2, 0], np.uint8)
    symbols = np.array([0, 1, 1, 0], np.uint8)
    data = bytearray(code.encode(symbols, 4, 1, 2, 1, 64, classes.Choice(BY_ROW, own, np.array([[2, 1]] * 3))))
    assert data[3] == 0b00_10_01_00
    data[3] = 0b00_11_01_00
    with pytest.raises(FormatError, match="classes below 3"):
        code.decode(bytes(data), 4, 1, 2)


def test_number_of_symbols() -> None:
    for n_symbols in (1, 257):
        with pytest.raises(FormatError, match="2 to 256"):
            code.decode(static(HALVES, 0, state(131072)), 1, 1, n_symbols)


def test_any_damage_to_a_chunk_is_seen_or_harmless() -> None:
    """Never an exception of another kind, and never a symbol outside the alphabet."""
    rng, data = np.random.default_rng(0), good()
    start = len(data) - 100
    for _ in range(300):
        damaged = bytearray(data)
        damaged[int(rng.integers(start, len(data)))] ^= 1 << int(rng.integers(8))
        try:
            assert code.decode(bytes(damaged), 100, 3, 3).max() < 3
        except FormatError:
            continue


def test_words_are_counted_in_units_from_the_first_chunk() -> None:
    data = code.encode(matrix(10, 50, 5), 10, 50, 5, 4, 64)
    import io

    from softshare.codec.wire import Reader

    head = layout.read(Reader(io.BytesIO(data), len(data)), 10, 50, 5)
    assert head.n_chunks == 8
    whole = code.decode(data, 10, 50, 5)
    for k in range(8):
        start, n = code.chunk_bytes(head, range(k, k + 1))
        part = code.decode_chunk_range(head, range(k, k + 1), data[start : start + n])
        assert np.array_equal(part, whole[64 * k : 64 * (k + 1)])
