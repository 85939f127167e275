"""Variable-length integers and the reader of bytes."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

import by_hand
from softshare.codec.wire import Reader, varint
from softshare.errors import FormatError

LARGEST = (1 << 63) - 1


def reader(data: bytes, start: int = 0) -> Reader:
    file = io.BytesIO(data)
    file.seek(start)
    return Reader(file, len(data), "part")


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, b"\x00"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (16_383, b"\xff\x7f"),
        (16_384, b"\x80\x80\x01"),
        (1 << 62, b"\x80\x80\x80\x80\x80\x80\x80\x80\x40"),
        (LARGEST, b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
    ],
)
def test_bytes_of_a_varint(value: int, data: bytes) -> None:
    assert varint(value) == data
    r = reader(data)
    assert r.varint() == value
    assert (r.offset, r.remaining) == (len(data), 0)


@given(st.lists(st.integers(0, LARGEST) | st.integers(0, 300), max_size=9))
def test_varints_follow_each_other(values: list[int]) -> None:
    data = b"".join(varint(value) for value in values)
    assert data == b"".join(by_hand.varint(value) for value in values)
    r = reader(data)
    assert [r.varint() for _ in values] == values
    assert r.remaining == 0


@pytest.mark.parametrize(
    ("data", "offset", "problem"),
    [
        (b"\x80\x00", 0, "expected an integer in as few bytes as it needs, got 0"),
        (b"\xff\x80\x00", 0, "expected an integer in as few bytes as it needs, got 0"),
        (b"\x80" * 8 + b"\x00", 0, "expected an integer in as few bytes as it needs, got 0"),
        (b"\xff" * 9 + b"\x00", 0, "expected an integer below 2^63, got 'a longer one'"),
        (b"\xff" * 1000, 0, "expected an integer below 2^63, got 'a longer one'"),
        (b"", 0, "expected 1 more bytes, got 0: the file is cut short or altered"),
        (b"\xff\xff", 2, "expected 1 more bytes, got 0: the file is cut short or altered"),
    ],
)
def test_refuses_a_varint(data: bytes, offset: int, problem: str) -> None:
    with pytest.raises(FormatError) as caught:
        reader(b"???" + data, 3).varint()
    assert (caught.value.problem, caught.value.section, caught.value.offset) == (problem, "part", 3 + offset)
    assert str(caught.value) == f"part, byte {3 + offset}: {problem}"


@given(st.binary(max_size=12))
def test_a_varint_has_one_form(data: bytes) -> None:
    """The reader accepts only what the writer writes: no two byte strings give one value."""
    r = reader(data)
    try:
        value = r.varint()
    except FormatError:
        return
    assert by_hand.varint(value) == data[: r.offset]
    assert 0 <= value <= LARGEST


def test_reads_from_front_to_back() -> None:
    r = reader(b"abcdef", 1)
    assert (r.take(2), r.byte(), r.take(0), r.offset, r.remaining) == (b"bc", ord("d"), b"", 4, 2)
    r.end = 5
    with pytest.raises(FormatError, match="part, byte 4: expected 2 more bytes, got 1: the file is cut short"):
        r.take(2)
    assert r.take(1) == b"e"


def test_nothing_is_read_for_a_length_beyond_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    r = reader(b"abc")
    monkeypatch.setattr(r, "_file", None)  # reading at all would be an AttributeError
    with pytest.raises(FormatError, match=f"expected {LARGEST} more bytes, got 3"):
        r.take(LARGEST)


def test_a_file_that_shrinks_while_it_is_read() -> None:
    r = Reader(io.BytesIO(b"abc"), 10, "part")
    with pytest.raises(FormatError, match="part, byte 0: expected 5 more bytes, got 3: the file changed"):
        r.take(5)


def test_expect_says_both_sides_and_where() -> None:
    r = reader(b"abc", 2)
    r.expect(True, "anything", None)
    with pytest.raises(FormatError) as caught:
        r.expect(False, "less", 10**60, at=1)
    assert (caught.value.offset, caught.value.path) == (1, None)
    assert len(caught.value.problem) < 80  # a long value is cut
    with pytest.raises(FormatError, match=r"^part, byte 2: expected less, got 'more'$"):
        r.expect(False, "less", "more")


def test_an_error_without_a_place() -> None:
    error = FormatError("expected this")
    assert (str(error), error.section, error.offset, error.path) == ("expected this", None, None, None)
    error = FormatError("expected this", "header", 7, "m.sws")
    assert str(error) == "m.sws: header, byte 7: expected this"
