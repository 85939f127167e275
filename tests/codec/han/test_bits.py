"""Writing and reading fields of bits."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softshare.codec.han import bits
from softshare.codec.han.bits import BitReader, BitWriter
from softshare.errors import FormatError

FIELDS = st.lists(
    st.integers(0, 62).flatmap(lambda width: st.tuples(st.integers(0, (1 << width) - 1), st.just(width))), max_size=40
)


def pack(*fields: tuple[int, int]) -> bytes:
    writer = BitWriter()
    for value, width in fields:
        writer.write(value, width)
    return writer.finish()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([], b""),
        ([(1, 1)], b"\x80"),  # 1.......
        ([(5, 3), (0, 1), (9, 4)], b"\xa9"),  # 101 0 1001
        ([(1, 2), (0x1FF, 9)], b"\x7f\xe0"),  # 01 111111 | 111 .....
        ([(0, 0), (0xABC, 12), (0xD, 4), (0, 0)], b"\xab\xcd"),
        ([(0x123456789ABCDE, 56)], b"\x12\x34\x56\x78\x9a\xbc\xde"),
    ],
)
def test_writes_the_most_significant_bit_first(fields: list[tuple[int, int]], expected: bytes) -> None:
    assert pack(*fields) == expected
    writer = BitWriter()
    writer.write([value for value, _ in fields], [width for _, width in fields])
    assert writer.finish() == expected


@settings(max_examples=50)
@given(FIELDS)
def test_equals_a_string_of_digits(fields: list[tuple[int, int]]) -> None:
    digits = "".join(format(value, f"0{width}b") for value, width in fields if width)
    digits += "0" * (-len(digits) % 8)
    assert pack(*fields) == bytes(int(digits[k : k + 8], 2) for k in range(0, len(digits), 8))


@settings(max_examples=50)
@given(FIELDS)
def test_reads_what_was_written(fields: list[tuple[int, int]]) -> None:
    reader = BitReader(pack(*fields))
    assert [reader.read_one(width) for _, width in fields] == [value for value, _ in fields]
    reader.finish()


def test_chunks_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    values, widths = np.arange(100), np.full(100, 7)
    whole = BitWriter()
    whole.write(values, widths)
    monkeypatch.setattr(bits, "_CHUNK", 3)
    pieces = BitWriter()
    pieces.write(values, widths)
    assert pieces.finish() == whole.finish()


def test_reads_arrays_from_any_bit() -> None:
    reader = BitReader(b"\x7f\xe0\xab")
    assert reader.read_one(2) == 0b01
    assert reader.read(3, 3).tolist() == [0b111, 0b111, 0b111]
    assert reader.read(0, 4).tolist() == [0, 0, 0, 0]
    assert reader.read(5, 1).tolist() == [0]
    assert reader.remaining == 8
    assert reader.read(4, 2).tolist() == [0xA, 0xB]
    assert reader.read(9, 0).tolist() == []


def test_windows_are_the_bits_from_each_bit_on() -> None:
    data = bytes(np.random.default_rng(0).integers(0, 256, 12, np.uint8))
    digits = "".join(format(byte, "08b") for byte in data) + "0" * 40
    for width in (1, 8, 31, 33):
        windows = BitReader(data).windows(3, 9, width)
        assert windows.tolist() == [int(digits[k : k + width], 2) for k in range(24, 96)]


@pytest.mark.parametrize(("width", "count"), [(17, 1), (1, 17), (3, 6), (1, 1 << 50)])
def test_reading_past_the_end_is_an_error(width: int, count: int) -> None:
    reader = BitReader(b"ab")
    with pytest.raises(FormatError, match=f"expected {width * count} more bits at bit 0, got 16"):
        reader.read(width, count)
    assert reader.position == 0


def test_finish_wants_everything_read() -> None:
    reader = BitReader(b"\x80\x00")
    reader.read_one(1)
    with pytest.raises(FormatError, match="15 bits more"):
        reader.finish()
    reader.read_one(8)
    reader.finish()
    ones = BitReader(b"\x81")
    ones.read_one(1)
    with pytest.raises(FormatError, match="expected zeros"):
        ones.finish()


@pytest.mark.parametrize(("value", "width"), [(4, 2), (-1, 5), (-1, 62), (1, 0), (0, 63), (0, -1)])
def test_a_value_must_fit_its_width(value: int, width: int) -> None:
    with pytest.raises(ValueError, match="width"):
        BitWriter().write(value, width)


def test_reading_takes_little_more_memory_than_its_fields() -> None:
    """Bits are unpacked part by part. At 64 bytes for each byte of a file, a large file would fill the memory."""
    n = 1 << 20
    reader = BitReader(bytes(21 * n // 8))
    tracemalloc.start()
    try:
        fields = reader.read(21, n)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fields.nbytes == 8 * n
    assert peak < 4 * fields.nbytes
