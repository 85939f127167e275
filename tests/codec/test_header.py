"""The header, byte by byte, and every error in it."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import by_hand
from by_hand import (
    BF16,
    BIAS,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I64,
    NUM_BATCHES,
    RUNNING_MEAN,
    RUNNING_VAR,
    VECTOR,
    WEIGHT,
    book,
    entry,
    head,
    listed,
    name,
    rest,
    seal,
    shared,
    sizes,
    varint,
)
from softshare import codec
from softshare.codec import header_checks, header_reading
from softshare.codec.header import SUFFIXES, Codebook, Entry, Header, Rest, Shared
from softshare.codec.header_checks import check_writable
from softshare.codec.header_reading import read_header, read_prefix, unpack_values
from softshare.codec.header_writing import pack_header, pack_values
from softshare.codec.wire import Reader
from softshare.errors import FormatError, ModelError


def values(*numbers: float) -> np.ndarray:
    return np.array([0.0, *numbers], np.float32)


def read(data: bytes, layout: list[tuple[str, tuple[int, ...]]] | None = None) -> Header:
    """The header of a file that has no checksum."""
    reader = Reader(io.BytesIO(data), len(data))
    return read_header(reader, read_prefix(reader), layout)


def header(*entries: Entry, tied: dict[str, str] | None = None, books: int = 1) -> Header:
    return Header("han", True, tuple(Codebook(values(0.5), "float16") for _ in range(books)), entries, tied or {})


PLAIN = Shared("float32", 0)
BLOCK = "transformer.encoder.layers.11.self_attention"  # 44 bytes

# Everything a header can hold, and its bytes piece by piece.
EVERYTHING = Header(
    "adaptive",
    True,
    (
        Codebook(values(0.5, -1.0), "float16"),
        Codebook(values(0.1), "float32"),
        Codebook(values(-2.0, 3.0), "bfloat16"),
        Codebook(values(), "float16"),
    ),
    (
        Entry("features.0.weight", (20, 1, 5, 5), PLAIN, 300),
        Entry("features.0.bias", (20,), PLAIN, 7),
        Entry("features.1.weight", (20,), Rest("float32", "float32", False), 80),
        Entry("features.1.running_mean", (20,), Rest("float64", "float16", True), 33),
        Entry("features.1.running_var", (2, 20), Rest("float32", "bfloat16", False), 80),
        Entry("features.1.num_batches_tracked", (), Rest("int64", "int64", False), 8),
        Entry("features.10.weight", (0, 300), PLAIN, 0),
        Entry(f"{BLOCK}.in_proj_weight", (9, 3), Shared("bfloat16", 2), 1),
        Entry(f"{BLOCK}.in_proj_bias", (9,), Shared("bfloat16", 2), 2),
        Entry("mask", (9,), Rest("bool", "bool", True), 3),
        Entry(f"{BLOCK}.out_proj.bias", (3,), Shared("bfloat16", 2), 0),
        Entry(f"{BLOCK}.out_proj.weight", (3, 3), Shared("float64", 3), 0),
        Entry("weight", (), Shared("float16", 1), 5),
        Entry(".weight", (128,), PLAIN, 1),
    ),
    {"head.weight": "features.0.weight", "häd": "mask", "häß.bias": "weight"},
)
PIECES = [
    b"\x89SWS\x01\x03",
    b"\x04",
    b"\x09\x00\x38\x00\xbc",  # 4 * 2 + 1; 0.5 and -1.0 as float16
    b"\x04\xcd\xcc\xcc\x3d",  # 4 * 1 + 0; 0.1 as float32
    b"\x0a\x00\xc0\x40\x40",  # 4 * 2 + 2; -2.0 and 3.0 as bfloat16
    b"\x01",  # no value but zero
    b"\x0e",
    b"\xd9\x04" + b"\x20\x0afeatures.0" + b"\x04\x14\x01\x05\x05",  # 2 * 300 + 1; suffix 1, prefix 0
    b"\x0f" + b"\x4a\x00" + VECTOR,  # suffix 2, prefix 10: all of the stem
    b"\xa0\x01\x01" + b"\x29\x011" + VECTOR,  # 2 * 80; float32, raw
    b"\x42\x1f\x01" + b"\x6a\x00" + VECTOR,  # 3 << 3 | narrowed 4 | planes 2 | 1; stored float16
    b"\xa0\x01\x05\x02" + b"\x8a\x00" + b"\x02\x02\x14",
    b"\x10\x39" + b"\xaa\x00" + b"\x00",  # 7 << 3 | 1
    b"\x01" + b"\x2a\x010" + b"\x02\x00\xac\x02",  # plain: like features.0.bias, whatever the rest between
    b"\x02\x04\x02" + b"\xc0\x2c" + BLOCK.encode() + b"\x02\x09\x03",  # 2 << 1, codebook 2
    b"\x05" + b"\xff\x0d\x00" + VECTOR,  # suffix 7; prefix 31 + 13
    b"\x06\x4b" + b"\x00\x04mask" + VECTOR,  # 9 << 3 | planes 2 | 1
    b"\x01" + b"\x40\x35" + BLOCK.encode() + b".out_proj" + b"\x01\x03",  # nothing shared with "mask"
    b"\x00\x06\x03" + b"\x3f\x16\x00" + b"\x02\x03\x03",  # prefix 31 + 22
    b"\x0a\x02\x01" + b"\x00\x06weight" + b"\x00",
    b"\x02\x00\x00" + b"\x20\x00" + b"\x01\x80\x01",  # the stem is empty; a size of 128 is no VECTOR
    b"\x03",
    b"\x20\x04head" + b"\x00",  # prefix of the empty stem before
    b"\x01\x03\xc3\xa4d" + b"\x09",
    b"\x43\x02\xc3\x9f" + b"\x0c",  # suffix 2; prefix 3: the h and both bytes of the letter after it
]


def test_bytes_of_a_header() -> None:
    packed = pack_header(EVERYTHING)
    for piece in PIECES:
        assert packed.startswith(piece), (packed[:60], piece)
        packed = packed[len(piece) :]
    assert packed == b""


def test_a_header_comes_back() -> None:
    data = b"".join(PIECES) + bytes(sum(e.n_bytes for e in EVERYTHING.entries))
    back = read(data)
    assert (back.codec, back.has_names, back.tied) == ("adaptive", True, EVERYTHING.tied)
    assert list(back.tied) == list(EVERYTHING.tied)
    for got, expected in zip(back.codebooks, EVERYTHING.codebooks, strict=True):
        assert got.dtype == expected.dtype
        assert got.values.dtype == np.float32
        assert got.values.tobytes() == expected.values.tobytes()
    offset = len(b"".join(PIECES))
    for entry_back, expected_entry in zip(back.entries, EVERYTHING.entries, strict=True):
        assert entry_back.offset == offset
        fields = (entry_back.name, entry_back.shape, entry_back.kind, entry_back.n_bytes)
        assert fields == (expected_entry.name, expected_entry.shape, expected_entry.kind, expected_entry.n_bytes)
        offset += entry_back.n_bytes
    assert offset == len(data)


def test_an_empty_header() -> None:
    assert pack_header(Header("han", True, (), (), {})) == head() + b"\0\0\0"
    assert pack_header(Header("adaptive", False, (), (), {})) == head(1) + b"\0\0"
    assert read(head() + b"\0\0\0").entries == ()
    assert not read(head(1) + b"\0\0").has_names


def test_bytes_without_names() -> None:
    packed = head(0) + listed([book(0.5)]) + listed([entry(4), entry(8, rest(I64)), entry(0)])
    entries = [Entry(n, (2, 2), kind, size) for n, kind, size in
               (("a", PLAIN, 4), ("b", Rest("int64", "int64", False), 8), ("c", PLAIN, 0))]  # fmt: skip
    given = Header("han", False, header().codebooks, tuple(entries), {"d": "a"})
    assert pack_header(given) == packed
    data = packed + bytes(12)
    unnamed = read(data)
    assert [(e.name, e.shape, e.kind, e.n_bytes) for e in unnamed.entries] == [
        (f"#{k}", (), e.kind, e.n_bytes) for k, e in enumerate(entries)
    ]
    assert (unnamed.tied, unnamed.has_names) == ({}, False)
    layout: list[tuple[str, tuple[int, ...]]] = [("x", (2, 2)), ("y", ()), ("z", (5,))]
    named = read(data, layout)
    assert [(e.name, e.shape) for e in named.entries] == layout
    assert [e.offset for e in named.entries] == [len(packed), len(packed) + 4, len(packed) + 12]


def test_what_a_writer_may_choose() -> None:
    """A writer may leave out prefix and suffix, and a prefix may split a character."""
    names = ["ä.weight", "ö.weight", "ö.bias"]
    spelled = [
        [name("ä.weight"), name("ö.weight"), name("ö.bias")],
        [name("ä", WEIGHT), name(b"\xb6", WEIGHT, prefix=1), name("", BIAS, prefix=2)],
    ]
    for stems in spelled:
        data = head() + b"\0" + listed([entry(0, rest(F32), n, sizes(0)) for n in stems]) + b"\0"
        assert [e.name for e in read(data).entries] == names


@pytest.mark.slow
@given(st.lists(st.text("ab.äß0", min_size=1, max_size=70).map(lambda s: s + "x"), min_size=1, max_size=6, unique=True))
def test_any_names_come_back(names: list[str]) -> None:
    names += [n + s.decode() for n in names for s in SUFFIXES[1:]]
    entries = tuple(Entry(n, (1,), PLAIN, 0) for n in names[::2])
    tied = dict.fromkeys(names[1::2], names[0])
    back = read(pack_header(header(*entries, tied=tied)))
    assert [e.name for e in back.entries] == names[::2]
    assert back.tied == tied


def test_names_share_as_much_as_they_can() -> None:
    """If a name begins like the one before it, its stem costs two bytes and its new characters."""
    names = [f"{BLOCK}.{k}.weight" for k in range(10)]
    sizes_ = [len(pack_header(header(*(Entry(n, (7,), PLAIN, 0) for n in names[:k])))) for k in (1, 9, 10)]
    assert sizes_[2] - sizes_[1] == 1 + 2 + 1 + 1 + 1  # length; prefix of 31 + 14; how many; which; VECTOR
    assert (sizes_[1] - sizes_[0]) == 8 * 6


@pytest.mark.parametrize(
    ("dtype", "numbers", "data"),
    [
        ("float32", [1.0, -1.5, 2.0**-149], "0000803f 0000c0bf 01000000"),
        ("float16", [1.0, -1.5, 65504.0, 2.0**-24], "003c 00be ff7b 0100"),
        ("bfloat16", [1.0, -1.5, 2.0**127, 2.0**-133], "803f c0bf 007f 0100"),
    ],
)
def test_bytes_of_values(dtype: str, numbers: list[float], data: str) -> None:
    array = np.array(numbers, np.float32)
    assert pack_values(array, dtype) == bytes.fromhex(data)
    back = unpack_values(bytes.fromhex(data), dtype)
    assert back.dtype == np.float32
    assert back.tolist() == numbers


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_value_of_16_bits_comes_back(dtype: str) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(getattr(torch, dtype))
    finite = every[every.isfinite()].float()
    data = pack_values(finite.numpy(), dtype)
    assert data == finite.to(getattr(torch, dtype)).view(torch.int16).numpy().astype("<i2").tobytes()
    assert unpack_values(data, dtype).tobytes() == finite.numpy().tobytes()


# Errors: each file is right up to the end of `before`

ONE = head() + listed([book(0.5)])  # up to the number of entries
FIRST = ONE + b"\1"  # up to the first entry
NAMED = FIRST + varint(1)  # a plain entry without bytes, up to its name
SHAPED = NAMED + name("a")  # up to its shape
TIED = SHAPED + sizes(2)  # up to the number of tied names
BOOKS = head() + b"\2" + book(0.5)  # up to the second codebook


def cut(n: int) -> str:
    return f"expected {n} more bytes, got 0: the file is cut short or altered"


HEADER_ERRORS = {
    "flag 2": (head()[:5], b"\x04\0\0", "header", "expected flags below 4, got 4"),
    "flag 7": (head()[:5], b"\x83\0\0", "header", "expected flags below 4, got 131"),
    "no flags": (head()[:5], b"", "header", cut(1)),
    "codebooks not minimal": (head(), b"\x80\x00\0\0", "header", "in as few bytes as it needs, got 0"),
    "codebooks endless": (head(), b"\xff" * 40, "header", "an integer below 2^63, got 'a longer one'"),
    "codebooks without bytes": (head(), varint(9) + bytes(8), "header", "expected at most 8 codebooks, got 9"),
    "too many codebooks": (head(), varint(65_537) + bytes(70_000), "header", "at most 65536 codebooks, got 65537"),
    "codebook dtype": (BOOKS, varint(4 + 3) + bytes(9), "codebook 1", "expected a dtype below 3, got 3"),
    "codebook too large": (BOOKS, varint(4 * 65_537), "codebook 1", "fewer than 65537 values other than 0, got 65537"),
    "codebook cut": (BOOKS + varint(4 * 9), b"abcd", "codebook 1", "expected 36 more bytes, got 4"),
    "entries without bytes": (ONE, varint(9) + bytes(8), "header", "expected at most 8 tensors, got 9"),
    "too many entries": (ONE, varint(65_537) + bytes(70_000), "header", "expected at most 65536 tensors, got 65537"),
    "no entries": (ONE, b"", "header", cut(1)),
    "no length": (ONE + b"\2" + entry(0, None, name("a"), sizes(1)), b"", "header, tensor 1", cut(1)),
    "length not minimal": (FIRST, b"\x81\x00\0\0", "header, tensor 0", "in as few bytes as it needs, got 0"),
    "no kind": (FIRST + varint(2), b"", "header, tensor 0", cut(1)),
    "shared int8": (FIRST + varint(2), shared(I8), "header, tensor 0", "expected a dtype below 4, got 4"),
    "shared of no dtype": (FIRST + varint(2), b"\xfe\0", "header, tensor 0", "expected a dtype below 4, got 127"),
    "rest of no dtype": (FIRST + varint(2), rest(10), "header, tensor 0", "expected a dtype below 10, got 10"),
    "rest of no dtype at all": (FIRST + varint(2), rest(31), "header, tensor 0", "expected a dtype below 10, got 31"),
    "stored as no dtype": (
        FIRST + varint(2) + rest(F32, 99)[:1], b"\x63", "header, tensor 0", "expected a dtype below 10, got 99",
    ),
    "codebook that is not there": (
        FIRST, entry(0, shared(F32, 1), name("a"), sizes(1)), "header, tensor 0", "expected a codebook below 1, got 1",
    ),
    "plain without a codebook": (
        head() + b"\0\1", entry(0, None, name("a"), sizes(1)), "header, tensor 0", "a codebook below 0, got 0",
    ),
    "codebook number not minimal": (
        FIRST + varint(2) + b"\0", b"\x80\x00", "header, tensor 0", "in as few bytes as it needs, got 0",
    ),
    "prefix of nothing": (NAMED, name("a", prefix=1), "header, tensor 0", "at most 0 bytes of the name before, got 1"),
    "prefix beyond the stem": (
        ONE + b"\2" + entry(0, None, name("ab", WEIGHT), sizes(1)) + varint(1), name("a", prefix=3),
        "header, tensor 1", "at most 2 bytes of the name before, got 3",
    ),
    "long prefix": (
        NAMED, name("a", prefix=31 + (1 << 40)), "header, tensor 0", "bytes of the name before, got 1099511627807",
    ),
    "name too long": (NAMED, name("a" * 4097), "header, tensor 0", "a name of at most 4096 bytes, got 4097"),
    "name too long with its suffix": (
        NAMED, name("a" * 4090, WEIGHT), "header, tensor 0", "a name of 1 to 4096 bytes, got 4097",
    ),
    "name longer than the file": (
        NAMED, b"\0" + varint(1 << 50), "header, tensor 0", f"a name of at most 4096 bytes, got {1 << 50}",
    ),
    "name cut": (NAMED + b"\0\x09", b"abcd", "header, tensor 0", "expected 9 more bytes, got 4"),
    "no name": (NAMED, name(""), "header, tensor 0", "a name of 1 to 4096 bytes, got 0"),
    "not UTF-8": (NAMED, name(b"a\xff"), "header, tensor 0", "expected a name in UTF-8, got b'a\\xff'"),
    "half a character": (NAMED, name(b"a\xc3", WEIGHT), "header, tensor 0", "expected a name in UTF-8"),
    "a surrogate": (NAMED, name(b"\xed\xa0\x80"), "header, tensor 0", "expected a name in UTF-8"),
    "an over-long NUL": (NAMED, name(b"\xc0\x80"), "header, tensor 0", "expected a name in UTF-8"),
    **{
        f"control character {ord(c):#x}": (
            NAMED, name(f"a{c}b"), "header, tensor 0", f"a name without control characters, got {f'a{c}b'!r}",
        )
        for c in "\0\n\x1b\x1f\x7f\x80\x85\x9f"
    },
    "65 dimensions": (SHAPED, sizes(*[1] * 65), "header, tensor 0", "at most 64 dimensions, got 65"),
    "129 dimensions": (SHAPED, b"\x81", "header, tensor 0", "at most 64 dimensions, got 129"),
    "vector like nothing": (SHAPED, VECTOR, "header, tensor 0", "got 128"),
    "vector like a scalar": (
        ONE + b"\2" + entry(0, None, name("a"), sizes()) + varint(1) + name("b"), VECTOR, "header, tensor 1", "got 128",
    ),
    "no shape": (SHAPED, b"", "header, tensor 0", cut(1)),
    "size not minimal": (SHAPED + b"\1", b"\x85\x00", "header, tensor 0", "in as few bytes as it needs, got 0"),
    "2^40 + 1 values": (SHAPED, sizes((1 << 40) + 1), "header, tensor 0", f"at most {1 << 40} values together, got"),
    "2^64 values": (SHAPED, sizes(1 << 32, 1 << 32), "header, tensor 0", "together, got (4294967296, 4294967296)"),
    "2^4032 values": (SHAPED, sizes(*[(1 << 63) - 1] * 64), "header, tensor 0", "values together, got"),
    "2^62 times 4": (SHAPED, sizes(4, 1 << 62), "header, tensor 0", "values together, got"),
    "nothing beside 2^41": (SHAPED, sizes(0, 1 << 41), "header, tensor 0", "values together, got (0, 2199023255552)"),
    "two of 2^39 and one": (
        ONE + listed([entry(0, None, name(n), sizes(k)) for n, k in (("a", 1), ("b", 1 << 39), ("c", 1 << 39))])
        + b"\0",
        b"", "header", f"at most {1 << 40} values over all tensors, got {(1 << 40) + 1}",
    ),
    "zeros count too": (
        ONE + listed([entry(0, None, name(n), sizes(0, 1 << 40)) for n in "ab"]) + b"\0",
        b"", "header", f"at most {1 << 40} values over all tensors, got {1 << 41}",
    ),
    "a name twice": (
        ONE + listed([entry(0, None, name(n), sizes(1)) for n in "aba"]) + b"\0",
        b"", "header", "each name once, got ['a'] more than once",
    ),
    "a name spelled twice": (
        ONE + listed([entry(0, None, n, sizes(1)) for n in (name("a", WEIGHT), name(".weight", prefix=1))]) + b"\0",
        b"", "header", "each name once, got ['a.weight'] more than once",
    ),
    "tied without bytes": (TIED, varint(9) + bytes(8), "header, tied names", "expected at most 8 tied names, got 9"),
    "too many tied": (TIED, varint(65_537) + bytes(70_000), "header, tied names", "at most 65536 tied names, got"),
    "tied to nothing": (TIED + b"\1", name("b") + b"\1", "header, tied names", "expected a tensor below 1, got 1"),
    "tied to itself": (TIED + b"\1" + name("a") + b"\0", b"", "header", "each name once, got ['a'] more than once"),
    "tied twice": (TIED + b"\2" + name("b") + b"\0", name("b") + b"\0", "header, tied names", "once, got 'b'"),
    "tied control character": (TIED + b"\1", name("\n") + b"\0", "header, tied names", "without control characters"),
    "sections too short": (
        ONE + listed([entry(5, None, name("a"), sizes(1))]) + b"\0", b"abcd",
        "header", "expected sections that end at byte 22, got 23",
    ),
    "sections too long": (
        ONE + listed([entry(3, None, name("a"), sizes(1))]) + b"\0", b"abcd",
        "header", "expected sections that end at byte 22, got 21",
    ),
    "section beyond 2^61": (
        ONE + listed([entry(1 << 61, None, name("a"), sizes(1))]) + b"\0", b"abcd",
        "header", "sections that end at byte",
    ),
    "garbage before the checksum": (head() + b"\0\0\0", b"x", "header", "expected sections that end at byte 10, got 9"),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADER_ERRORS)
def test_refuses(case: str) -> None:
    before, after, section, problem = HEADER_ERRORS[case]
    data = seal(before + after)
    with pytest.raises(FormatError) as caught:
        codec.decode(data)
    assert problem in caught.value.problem
    assert "expected" in caught.value.problem
    assert "got" in caught.value.problem
    assert (caught.value.section, caught.value.offset) == (section, len(before))
    with pytest.raises(FormatError) as again:
        codec.inspect(data)
    assert str(again.value) == str(caught.value) == f"{section}, byte {len(before)}: {caught.value.problem}"


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(F32, F32), (F32, F64), (F16, BF16), (BF16, F16), (F32, I8), (F64, BOOL), (I64, F32), (I64, I8), (BOOL, BOOL)],
)
def test_refuses_a_stored_dtype_that_is_not_narrower(dtype: int, stored: int) -> None:
    data = seal(FIRST + entry(0, rest(dtype, stored), name("a"), sizes(0)) + b"\0")
    with pytest.raises(FormatError, match=r"expected a narrower dtype that decodes to \w+, got '\w+'") as caught:
        codec.decode(data)
    assert (caught.value.section, caught.value.offset) == ("header, tensor 0", len(FIRST))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        (F32, (NAN,)),
        (F16, (1.0, NAN)),
        (BF16, (INF,)),
        (F32, (1.0, -INF)),
        (F16, (0.0,)),
        (BF16, (-0.0, 1.0)),
        (F32, (1.0, 0.0)),
        (F16, (1.0, -0.5)),
    ],
)
def test_refuses_a_codebook(dtype: int, wrong: tuple[float, ...]) -> None:
    data = seal(BOOKS + book(*wrong, dtype=dtype) + b"\0\0")
    with pytest.raises(FormatError, match="expected finite values other than 0, ordered by magnitude, got") as caught:
        codec.decode(data)
    assert (caught.value.section, caught.value.offset) == ("codebook 1", len(BOOKS))
    assert all(repr(abs(v)) in caught.value.problem for v in wrong)


@pytest.mark.parametrize("nan", [struct.pack("<I", 0x7F800001), struct.pack("<I", 0xFFC12345)])
def test_refuses_every_kind_of_nan(nan: bytes) -> None:
    with pytest.raises(FormatError, match="finite"):
        codec.decode(seal(head() + b"\1" + varint(4) + nan + b"\0\0"))


def test_values_of_a_codebook_may_be_equal_or_opposite() -> None:
    data = head() + listed([book(0.5, 0.5, -0.5, 0.5), book(1e-45, -1e-45, dtype=F32)]) + b"\0\0"
    assert [b.values.tolist()[1:] for b in read(data).codebooks] == [[0.5, 0.5, -0.5, 0.5], [2.0**-149, -(2.0**-149)]]


def test_what_is_just_within_the_limits() -> None:
    long = "a" * 4096
    entries = [
        entry(0, None, name(long), sizes(*[1] * 64)),
        entry(0, None, name(long[:4089], WEIGHT), sizes(0, (1 << 40) - 3)),
        entry(0, None, name(" \u00a0"), sizes(2)),
    ]
    back = read(ONE + listed(entries) + b"\0")
    assert [e.name for e in back.entries] == [long, long[:4089] + ".weight", " \u00a0"]
    assert back.entries[1].shape == (0, (1 << 40) - 3)


def test_every_truncation_of_a_header_is_noticed() -> None:
    """The checksum is right, so the reader of the header has to notice."""
    data = b"".join(PIECES) + bytes(sum(e.n_bytes for e in EVERYTHING.entries))
    assert len(read(data).entries) == 14
    for length in range(6, len(data)):
        with pytest.raises(FormatError) as caught:
            codec.inspect(seal(data[:length]))
        assert caught.value.offset is not None
        assert caught.value.offset <= length


# Limits


def names_file(names: list[bytes], tied: list[bytes] | None = None) -> bytes:
    return seal(ONE + listed([entry(0, None, n, sizes(1)) for n in names]) + listed(tied or []))


def test_names_that_repeat_a_long_one_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name takes a few bytes in the file and 4,000 in memory."""
    names = [name("a" * 4000), *(name(f"{k:02}", prefix=4000) for k in range(20))]
    data = names_file(names)
    assert len(codec.inspect(data).tensors) == 21
    for module in (header_checks, header_reading):
        monkeypatch.setattr(module, "MAX_NAMES_BYTES", 20_000)
    with pytest.raises(FormatError, match="names of at most 20000 bytes, got 20008") as caught:
        codec.inspect(data)
    assert caught.value.section == "header, tensor 4"
    entries = tuple(Entry("a" * 4000 + str(k), (1,), PLAIN, 0) for k in range(5))
    with pytest.raises(ModelError, match="at most 65536 names of 20000 bytes together, got 5 of 20005"):
        check_writable(header(*entries))
    check_writable(header(*entries[:4]))


def test_tied_names_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    data = names_file([name("a" * 50)], [name(str(k), prefix=50) + b"\0" for k in range(3)])
    for module in (header_checks, header_reading):
        monkeypatch.setattr(module, "MAX_NAMES_BYTES", 50 + 3 * 51)
    assert len(read(data[:-4]).tied) == 3
    for module in (header_checks, header_reading):
        monkeypatch.setattr(module, "MAX_NAMES_BYTES", 50 + 3 * 51 - 1)
    with pytest.raises(FormatError, match="names of at most 202 bytes, got 203") as caught:
        codec.inspect(data)
    assert caught.value.section == "header, tied names"


def test_the_number_of_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (header_checks, header_reading):
        monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    names = [name(c) for c in "abcd"]
    assert len(codec.inspect(names_file(names[:3], [name(c) + b"\0" for c in "xyz"])).tensors) == 3
    with pytest.raises(FormatError, match="at most 3 tensors, got 4"):
        codec.inspect(names_file(names))
    with pytest.raises(FormatError, match="at most 3 tied names, got 4"):
        codec.inspect(names_file(names[:1], [name(c) + b"\0" for c in "wxyz"]))
    with pytest.raises(ModelError, match="at most 3 names"):
        check_writable(header(*(Entry(c, (1,), PLAIN, 0) for c in "abcd")))


def test_the_number_of_codebooks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_reading, "MAX_CODEBOOKS", 2)
    assert len(read(head() + listed([book()] * 2) + b"\0\0").codebooks) == 2
    with pytest.raises(FormatError, match="at most 2 codebooks, got 3"):
        read(head() + listed([book()] * 3) + b"\0\0")


def test_the_largest_codebook() -> None:
    """It has 65,537 values with the zero (docs/format.md 7)."""
    data = head() + listed([varint(4 * 65_536 + F16) + struct.pack("<e", 0.5) * 65_536]) + b"\0\0"
    assert read(data).codebooks[0].values.tolist() == [0.0, *[0.5] * 65_536]


def test_the_size_of_a_codebook_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_reading, "MAX_CODEBOOK_VALUES", 3)
    assert len(read(head() + listed([book(1, 2)]) + b"\0\0").codebooks[0].values) == 3
    with pytest.raises(FormatError, match="fewer than 3 values other than 0, got 3"):
        read(head() + listed([book(1, 2, 3)]) + b"\0\0")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (header(Entry("a\n", (1,), PLAIN, 0)), r"without control characters, got 'a\\n'"),
        (header(Entry("", (1,), PLAIN, 0)), "a name of 1 to 4096 bytes, got 0"),
        (header(Entry("\ud800", (1,), PLAIN, 0)), "a name in UTF-8"),
        (header(Entry("a", (1,) * 65, PLAIN, 0)), "at most 64 sizes"),
        (header(Entry("a", (0, 1 << 41), PLAIN, 0)), "at most 64 sizes of at most 1099511627776 values"),
        (header(Entry("a", (1,), PLAIN, 0), tied={"a": "a"}), r"each name once, got \['a'\] more than once"),
        (header(Entry("a", (1 << 40,), PLAIN, 0), Entry("b", (1,), PLAIN, 0)), "values over all tensors"),
        (Header("han", True, (Codebook(values(1.0, NAN), "float32"),), (), {}), "finite values"),
    ],
)
def test_refuses_to_write_what_no_reader_takes(bad: Header, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_writable(bad)
    with pytest.raises((FormatError, UnicodeEncodeError)):
        read(pack_header(bad))


def test_the_suffixes_are_those_of_the_format() -> None:
    by_number = {WEIGHT: "weight", BIAS: "bias", RUNNING_MEAN: "running_mean", RUNNING_VAR: "running_var",
                 NUM_BATCHES: "num_batches_tracked", by_hand.IN_PROJ_WEIGHT: "in_proj_weight",
                 by_hand.IN_PROJ_BIAS: "in_proj_bias"}  # fmt: skip
    data = head() + b"\0" + listed([entry(0, rest(F16), name("m", k), sizes(0)) for k in by_number]) + b"\0"
    assert [e.name for e in read(data).entries] == [f"m.{text}" for text in by_number.values()]
