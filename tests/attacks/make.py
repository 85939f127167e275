"""Writes the files of this folder, and the list of them in README.md: `PYTHONPATH=tests python -m attacks.make`.

Each file breaks the format in one way. Its checksum is right unless the text says otherwise. `by_hand.py` makes all
bytes without the package, and they are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from by_hand import (
    ADAPTIVE,
    BOOL,
    F16,
    F32,
    HAN_2X3,
    I32,
    I64,
    U8,
    VECTOR,
    WEIGHT,
    bits,
    book,
    entry,
    head,
    name,
    rest,
    seal,
    shared,
    sizes,
    static,
    sws,
    varint,
)

FOLDER = Path(__file__).parent
NAN, INF = float("nan"), float("inf")
BOOK = book(-0.25, 0.5)
PREFIX, CHECKSUM, HEADER, FIRST, TIED, SECTION = (
    "prefix", "checksum", "header", "header, tensor 0", "header, tied names", "tensor 'a'",
)  # fmt: skip


HALF = (2048, 2048)  # frequencies
ONE = static(HALF, (131072 + 2048,))  # a good code of one symbol, 1


@dataclass(frozen=True)
class Attack:
    data: bytes
    tries: str
    section: str | None  # where the reader must refuse it; None: it is harmless and must load


def one(
    section: bytes = b"",
    shape: bytes = sizes(2, 3),
    kind: bytes | None = None,
    named: bytes = name("a"),
    values: bytes = BOOK,
    codec: int = 0,
    n_bytes: int | None = None,
    version: int = 1,
) -> bytes:
    """A file with one tensor, `a`."""
    length = len(section) if n_bytes is None else n_bytes
    return sws([values], [entry(length, kind, named, shape)], section, codec=codec, version=version)


def dense(code: bytes, n: int = 1, kind: bytes | None = None, n_nonzero: int = 1) -> bytes:
    """Version 2: a vector of n weights, over a codebook of two values, with this static code."""
    return one(varint(n_nonzero) + code, sizes(n), kind or shared(static=True), values=book(0.5), version=2)


GOOD = "9d9a0619a920c37b74"  # the code of a good compact file: 2 x 3 weights, 3 of them not zero


def compact(code: str, flags: int = 11, version: int = 2) -> bytes:
    """Version 2: a compact file with this code in hexadecimal. Coding is not done by hand: format.md 15 says how."""
    return seal(head(flags, version) + bytes.fromhex(code))


def banded(*octets: int) -> bytes:
    """Version 2: 4 x 5 weights in bands, three of them not zero."""
    return one(bytes([3, *octets]), sizes(4, 5), shared(bands=True), codec=ADAPTIVE, version=2)


def many(*entries: bytes, sections: bytes = b"", tied: tuple[bytes, ...] = ()) -> bytes:
    return sws([BOOK], entries, sections, tied)


def plain(text: str | bytes, shape: bytes = sizes(2, 3), n_bytes: int = 0) -> bytes:
    return entry(n_bytes, None, name(text), shape)


def han(digits: str, n_nonzero: int = 1) -> bytes:
    return one(varint(n_nonzero) + bits(digits))


WIDE, TALL = sizes(0, 1 << 37), sizes(1 << 37, 0)
EMPTY = many(
    plain("a", WIDE), plain("b", TALL), plain("c", sizes(3, 0, 1 << 35)),
    entry(0, rest(F32), name("d"), WIDE), entry(0, rest(F32), name("e"), TALL),
    entry(0, rest(I64), name("f"), sizes(0)),
)  # fmt: skip
ONE_GAP = "00000 001 1 0"  # gaps: symbol 0 alone, once
ATTACKS: dict[str, Attack] = {
    # Prefix, flags, checksum
    "magic": Attack(seal(head(magic=b"\x89sws") + b"\0\0\0"), "another magic", PREFIX),
    "version-0": Attack(seal(head(version=0) + b"\0\0\0"), "a version that was never released", PREFIX),
    "version-2": Attack(seal(head(version=2) + b"\0\0\0"), "version 2 of no tensor", HEADER),
    "version-3": Attack(seal(head(version=3) + b"\0\0\0"), "a future version", PREFIX),
    "empty": Attack(b"", "no byte at all", PREFIX),
    "flags": Attack(seal(head(4 | 2) + b"\0\0\0"), "an unknown flag", HEADER),
    "checksum": Attack(one(HAN_2X3)[:-4] + b"\0\0\0\0", "a checksum that does not fit", CHECKSUM),
    "garbage-after": Attack(one(HAN_2X3) + b"garbage", "bytes after the checksum", CHECKSUM),
    "garbage-before": Attack(seal(one(HAN_2X3)[:-4] + b"garbage"), "bytes between sections and checksum", HEADER),
    # Numbers
    "varint-not-minimal": Attack(seal(head() + b"\x80\x00\0\0"), "0 in two bytes", HEADER),
    "varint-endless": Attack(seal(head() + b"\xff" * 64), "a number without an end", HEADER),
    "varint-cut": Attack(seal(head() + b"\xff"), "a number that the end of the file cuts off", HEADER),
    # Counts without the bytes for them
    "count-codebooks": Attack(seal(head() + varint(65_536)), "65,536 codebooks in no byte", HEADER),
    "count-entries": Attack(seal(head() + b"\0" + varint((1 << 63) - 1)), "2^63 - 1 tensors in no byte", HEADER),
    "count-tied": Attack(seal(head() + b"\0\0" + varint(65_536)), "65,536 tied names in no byte", TIED),
    "count-codebook-values": Attack(
        seal(head() + b"\1" + varint(4 * 65_536)), "a codebook of 256 KiB in no byte", "codebook 0"
    ),
    "count-codebook-values-beyond": Attack(
        seal(head() + b"\1" + varint((1 << 63) - 4)), "a codebook of 2^61 values", "codebook 0"
    ),
    # Codebooks
    "codebook-nan": Attack(one(values=book(0.5, NAN)), "a NaN among the values", "codebook 0"),
    "codebook-infinite": Attack(one(values=book(0.5, -INF)), "an infinity among the values", "codebook 0"),
    "codebook-zero": Attack(one(values=book(0.0, 0.5)), "a second zero among the values", "codebook 0"),
    "codebook-negative-zero": Attack(one(values=book(-0.0, dtype=F32)), "a -0.0 among the values", "codebook 0"),
    "codebook-unordered": Attack(one(values=book(0.5, -0.25)), "values that fall in magnitude", "codebook 0"),
    "codebook-dtype": Attack(one(values=varint(4 + 3) + bytes(8)), "values of a dtype of 3", "codebook 0"),
    "codebook-missing": Attack(one(HAN_2X3, kind=shared(F32, 1)), "a codebook that does not exist", FIRST),
    "codebook-overflow": Attack(
        one(HAN_2X3, kind=shared(F16), values=book(1.0, 1e6, dtype=F32)), "a value that float16 makes infinite", SECTION
    ),
    # Kinds
    "kind-dtype": Attack(one(kind=rest(31)), "a tensor of a dtype of 31", FIRST),
    "kind-shared-int": Attack(one(kind=shared(I32)), "a shared tensor of whole numbers", FIRST),
    "kind-wider": Attack(one(bytes(24), kind=rest(F16, F32)), "float16 stored as float32", FIRST),
    "kind-int-narrowed": Attack(one(bytes(6), kind=rest(I32, U8)), "int32 stored as uint8", FIRST),
    # Shapes
    "shape-overflow": Attack(one(shape=sizes(1 << 32, 1 << 32)), "2^64 weights: 0 in 64 bits", FIRST),
    "shape-wraps": Attack(one(shape=sizes(4, (1 << 62) + 1)), "2^64 + 4 weights: 4 in 64 bits", FIRST),
    "shape-beyond": Attack(one(shape=sizes((1 << 40) + 1)), "one weight more than the limit", FIRST),
    "shape-zero-beside-huge": Attack(one(shape=sizes(0, (1 << 63) - 1)), "no weight, beside a size of 2^63 - 1", FIRST),
    "shape-empty": Attack(EMPTY, "sizes of 2^37 beside a 0: no weight, no memory, no time", None),
    "shape-empty-scaled": Attack(
        one(shape=sizes(1 << 37, 0), kind=shared(rows=True), version=2), "scales of 2^37 rows without a weight", None
    ),
    "shape-empty-nonzero": Attack(
        one(varint(1), sizes(1 << 37, 0), shared(rows=True), version=2), "a weight in 2^37 rows of nothing", SECTION
    ),
    "scales-of-a-vector": Attack(one(shape=sizes(6), kind=shared(rows=True), version=2), "scales of a vector", SECTION),
    "shape-dimensions": Attack(one(shape=sizes(*[1] * 65)), "65 dimensions", FIRST),
    "shape-vector-of-nothing": Attack(one(shape=VECTOR), "a vector like a tensor that does not exist", FIRST),
    "shape-sum": Attack(
        many(plain("a", sizes(1 << 40)), plain("b", sizes(0, 1 << 40))), "twice the limit, each within it", HEADER
    ),
    # Names
    "name-twice": Attack(many(plain("a"), plain("a")), "a name twice", HEADER),
    "name-twice-spelled": Attack(
        many(entry(0, None, name("a", WEIGHT), sizes(2)), entry(0, None, name(".weight", prefix=1), sizes(2))),
        "a name twice, once by its suffix", HEADER,
    ),
    "name-tied-equal": Attack(many(plain("a"), plain("b"), tied=(name("a") + b"\1",)), "a stored name, tied", HEADER),
    "name-tied-twice": Attack(
        many(plain("a"), tied=(name("t") + b"\0", name("t") + b"\0")), "a tied name twice", TIED
    ),
    "name-tied-to-nothing": Attack(many(plain("a"), tied=(name("t") + b"\1",)), "tied to no tensor", TIED),
    "name-path": Attack(
        many(
            plain("../../etc/passwd", n_bytes=len(HAN_2X3)),
            plain("/etc/shadow"),
            plain("C:\\Windows\\System32"),
            plain("~/.ssh/authorized_keys"),
            plain("__metadata__"),
            plain("$(touch here)"),
            sections=HAN_2X3,
            tied=(name("../..") + b"\0",),
        ),
        "names that look like paths or commands: keys and nothing else", None,
    ),
    "name-nul": Attack(many(plain("a\0.weight")), "a name with a NUL", FIRST),
    "name-escape": Attack(many(plain("\x1b[2J\x1b[31mall is well")), "a name that clears the terminal", FIRST),
    "name-c1": Attack(many(plain("\x9b31m")), "a name with an 8-bit escape", FIRST),
    "name-newline": Attack(many(plain("a\nb")), "a name of two lines", FIRST),
    "name-not-utf8": Attack(many(plain(b"a\xff")), "a name that is not UTF-8", FIRST),
    "name-overlong-nul": Attack(many(plain(b"a\xc0\x80")), "a NUL in two bytes", FIRST),
    "name-surrogate": Attack(many(plain(b"\xed\xa0\x80")), "half a character", FIRST),
    "name-empty": Attack(many(plain("")), "no name", FIRST),
    "name-long": Attack(many(plain("a" * 4097)), "a name of 4,097 bytes", FIRST),
    "name-long-by-suffix": Attack(
        many(entry(0, None, name("a" * 4090, WEIGHT), sizes(2))), "a name of 4,097 bytes, 7 of them its suffix", FIRST
    ),
    "name-long-in-no-byte": Attack(
        seal(head() + b"\0\1" + varint(0) + rest(F32) + b"\0" + varint(1 << 62)), "2^62 bytes of name in no byte", FIRST
    ),
    "name-prefix": Attack(many(plain("ab"), entry(0, None, name("c", prefix=3), sizes(2))), "a prefix beyond the stem",
                          "header, tensor 1"),
    "name-prefix-huge": Attack(
        many(plain("ab"), entry(0, None, name("c", prefix=(1 << 63) - 1), sizes(2))), "a prefix of 2^63 - 1 bytes",
        "header, tensor 1",
    ),
    "name-amplified": Attack(
        many(
            plain("a" * 4000),
            *(entry(0, None, name(f"{k:04}", prefix=4000), sizes()) for k in range(4300)),
        ),
        "17 MB of names in 60 kB: each repeats most of the one before", "header, tensor 4190",
    ),
    # Sections
    "section-short": Attack(one(HAN_2X3, n_bytes=len(HAN_2X3) + 1), "a section that reaches into the checksum", HEADER),
    "section-long": Attack(one(HAN_2X3, n_bytes=len(HAN_2X3) - 1), "a section that ends too early", HEADER),
    "section-overlap": Attack(
        many(plain("a", n_bytes=len(HAN_2X3)), plain("b", n_bytes=len(HAN_2X3)), sections=HAN_2X3),
        "two sections over the same bytes", HEADER,
    ),
    "section-wraps": Attack(
        many(*(plain(n, n_bytes=(1 << 62) - 1) for n in "bcde"), plain("a", n_bytes=4 + len(HAN_2X3)),
             sections=HAN_2X3),
        "lengths whose sum is right in 64 bits", HEADER,
    ),
    # Shared tensors
    "nonzero-0": Attack(one(b"\0" + HAN_2X3[1:]), "a code for no weight", SECTION),
    "nonzero-more": Attack(one(b"\x07" + HAN_2X3[1:]), "7 of 6 weights that are not zero", SECTION),
    "nonzero-huge": Attack(one(varint((1 << 63) - 1) + HAN_2X3[1:]), "2^63 - 1 of 6 weights", SECTION),
    "nonzero-lies": Attack(one(b"\x02" + HAN_2X3[1:]), "2 weights announced, 3 coded", SECTION),
    "nonzero-empty-codebook": Attack(one(HAN_2X3, values=book()), "weights other than zero without a value", SECTION),
    "nonzero-of-nothing": Attack(one(HAN_2X3, sizes(0, 3)), "3 weights in an empty tensor", SECTION),
    "han-width": Attack(han("111111 0"), "row ends of 63 bits", SECTION),
    "han-rows-fall": Attack(han("000011 010 001"), "a row that ends before it begins", SECTION),
    "han-entries": Attack(han("000011 000 111"), "7 entries for 6 weights", SECTION),
    "han-outside": Attack(han("000001 1 1  00011 001 0001 0  01 001 01 0"), "a weight outside its row", SECTION),
    "han-index": Attack(han(f"000001 1 1  {ONE_GAP}  11 001 0001 0"), "index 3 of a codebook of 3", SECTION),
    "han-kraft-over": Attack(han("000001 1 1  00010 001 111 0"), "Huffman codes that overlap", SECTION),
    "han-kraft-under": Attack(han("000001 1 1  00001 010 10 10 0"), "Huffman codes that leave holes", SECTION),
    "han-kraft-none": Attack(han("000001 1 1  00001 001 0 0 0"), "a Huffman code of no symbol", SECTION),
    "han-trailing-bit": Attack(one(HAN_2X3[:-1] + bytes([HAN_2X3[-1] | 1])), "a bit after the code", SECTION),
    "han-trailing-byte": Attack(one(HAN_2X3 + b"\0"), "a byte after the code", SECTION),
    "han-cut": Attack(one(HAN_2X3[:-1]), "a code that ends too early", SECTION),
    "adaptive-none": Attack(one(b"\x01", codec=ADAPTIVE), "no code", SECTION),
    "adaptive-period": Attack(one(b"\x01\x7f\x55\x55", codec=ADAPTIVE), "a period of 127 in a row of 3", SECTION),
    "adaptive-fast": Attack(one(b"\x01\x80\x55\x55", codec=ADAPTIVE), "the fast model for 6 weights", SECTION),
    "adaptive-long": Attack(one(b"\x01\x00" + bytes(200), codec=ADAPTIVE), "200 bytes for 6 weights", SECTION),
    "adaptive-unknown": Attack(one(b"\x01\xff\x55\x55", codec=ADAPTIVE), "an unknown model", SECTION),
    # The rest
    "rest-short": Attack(one(bytes(23), kind=rest(F32)), "6 numbers in 23 bytes", SECTION),
    "rest-long": Attack(one(bytes(25), kind=rest(F32)), "6 numbers in 25 bytes", SECTION),
    "rest-bool": Attack(one(b"\0\1\2\0\1\0", kind=rest(BOOL)), "a bool of 2", SECTION),
    "planes-as-long": Attack(one(bytes(24), kind=rest(F32, planes=True)), "by byte plane, as long as raw", SECTION),
    "planes-of-nothing": Attack(one(b"", sizes(0), kind=rest(F32, planes=True)), "by byte plane, no number", SECTION),
    "planes-no-modes": Attack(one(b"", kind=rest(F32, planes=True)), "by byte plane, without a byte", SECTION),
    "planes-raw-short": Attack(one(b"\x03abc", kind=rest(F32, planes=True)), "a raw plane of 3 bytes for 6", SECTION),
    "planes-bool": Attack(one(b"\x01\x02", kind=rest(BOOL, planes=True)), "bools all of 2, by byte plane", SECTION),
    # Much from little
    "bomb-zeros": Attack(one(shape=sizes(1 << 39)), "2 TiB of zeros in no byte", HEADER),
    "bomb-many-zeros": Attack(
        many(*(plain(f"{k}", sizes(1 << 18)) for k in range(40))), "40 MiB of zeros in no byte", HEADER
    ),
    "bomb-huffman": Attack(
        one(varint(1 << 30) + bits("100000 1" + "0" * 31) + bytes(60), sizes(1 << 38)),
        "1 TiB by a Huffman code of a bit", HEADER,
    ),
    "bomb-huffman-entries": Attack(
        one(varint(1 << 17) + bits("010011 1" + "0" * 18 + f"{ONE_GAP} 0000000"), sizes(1 << 18)),
        "262,144 entries in 12 bytes, within the limit", SECTION,
    ),
    "bomb-huffman-rows": Attack(
        one(varint(1) + bits("100111" + "0" * 40), sizes(1 << 39, 1)), "the row ends of 2^39 rows in 6 bytes", HEADER
    ),
    "bomb-adaptive": Attack(
        one(varint(1 << 37) + b"\x80\x55\x55", sizes(1 << 38), codec=ADAPTIVE), "1 TiB by the adaptive codec", HEADER
    ),
    "bomb-adaptive-within": Attack(
        one(varint(1 << 17) + b"\x00\x55\x55\x55", sizes(1 << 18), codec=ADAPTIVE),
        "262,144 weights in 4 bytes, within the limit", SECTION,
    ),
    "bomb-planes": Attack(
        one(b"\0\0", sizes(1 << 39), kind=rest(I64, planes=True)), "4 TiB of zeros by byte plane in 2 bytes", HEADER
    ),
    "bomb-planes-within": Attack(
        one(b"\x02\x55\x55", sizes(1 << 18), kind=rest(F32, planes=True)),
        "262,144 numbers in 3 bytes, within the limit", SECTION,
    ),
    "static-flag-in-version-1": Attack(one(kind=shared(static=True)), "a static code in a file of version 1", FIRST),
    "static-version-2-for-nothing": Attack(one(HAN_2X3, version=2), "version 2 without its features", HEADER),
    "static-and-bands": Attack(
        one(kind=shared(static=True, bands=True), codec=ADAPTIVE, version=2), "a static code in bands", FIRST
    ),
    "static-not-planes": Attack(
        one(bytes(4), sizes(1), rest(F32, static=True), version=2), "a static code of no byte planes", FIRST
    ),
    "static-lanes": Attack(dense(b"\6" + ONE[1:]), "64 lanes", SECTION),
    "static-chunk-small": Attack(dense(b"\0\5" + ONE[2:]), "chunks of 2^5 symbols", SECTION),
    "static-chunk-large": Attack(dense(b"\0\x11" + ONE[2:]), "chunks of 2^17 symbols", SECTION),
    "static-axis": Attack(dense(ONE[:2] + b"\x18" + ONE[3:]), "axis 3", SECTION),
    "static-axis-of-one-table": Attack(dense(ONE[:2] + b"\x08" + ONE[3:]), "an axis for one table", SECTION),
    "static-sum-under": Attack(dense(static((2048, 2047), (1 << 17,))), "frequencies of sum 4095", SECTION),
    "static-sum-over": Attack(dense(static((2048, 2049), (1 << 17,))), "frequencies of sum 4097", SECTION),
    "static-frequency-huge": Attack(dense(static((1 << 62, 1), (1 << 17,))), "a frequency of 2^62", SECTION),
    "static-zeros-huge": Attack(dense(static((0, 1 << 62), (1 << 17,))), "2^62 zeros in a table of two", SECTION),
    "static-state-low": Attack(dense(static(HALF, (65535,))), "a state below 2^16", SECTION),
    "static-word-missing": Attack(dense(static(HALF, (65536,))), "a word that is not there", SECTION),
    "static-word-left": Attack(dense(static(HALF, (131072 + 2048,), (7,))), "a word that is not used", SECTION),
    "static-words-beyond": Attack(
        dense(static(HALF, (131072 + 2048,), n_words=65535)), "65,535 words in no byte", SECTION
    ),
    "static-state-last": Attack(dense(static(HALF, (131072 + 2049,))), "a last state that is not 2^16", SECTION),
    "static-trailing": Attack(dense(ONE + b"\0"), "a byte after the last chunk", SECTION),
    "static-nonzero": Attack(dense(static(HALF, (131072,)), n_nonzero=1), "no non-zero where one is stated", SECTION),
    "static-many-values": Attack(
        one(varint(1) + ONE, sizes(1), shared(static=True), values=book(*range(1, 257)), version=2),
        "a codebook of 257 values", SECTION,
    ),
    "bands-none": Attack(banded(0, 3, 1, 9), "one band", SECTION),
    "bands-of-few-rows": Attack(banded(3, *[0] * 16), "8 bands of 4 rows", SECTION),
    "bands-more": Attack(banded(1, 11, 1, 0, 0, 9), "11 non-zeros in a band of 10", SECTION),
    "bands-sum": Attack(banded(1, 1, 1, 1, 0, 9), "bands of 2 non-zeros, where 3 are stated", SECTION),
    "bands-code-of-nothing": Attack(banded(1, 3, 1, 0, 1, 9, 9), "a code for a band of zeros", SECTION),
    "bands-beyond": Attack(banded(1, 3, 127, 0, 0, 9), "a code that ends after its section", SECTION),
    "bands-han": Attack(one(b"", kind=shared(bands=True), version=2), "bands with codec han", HEADER),
    "bomb-static": Attack(
        dense(static((4096, 0, 0), (1 << 16,), chunk_bits=16), n=1 << 39), "2 TiB by a static code", HEADER
    ),
    "bomb-static-index": Attack(
        dense(static((4096, 0, 0), (1 << 16,)), n=1 << 18), "an index of 4,096 chunks in no byte", SECTION
    ),
    "compact-in-version-1": Attack(compact(GOOD, version=1), "a compact file in version 1", HEADER),
    "compact-without-names": Attack(compact(GOOD, 9), "a compact file without names", HEADER),
    "compact-han": Attack(compact(GOOD, 10), "a compact file with codec han", HEADER),
    "compact-base": Attack(compact("00" * 32 + GOOD, 15), "a compact file with a base", HEADER),
    "compact-empty": Attack(compact(""), "a compact file without a code", HEADER),
    "compact-zeros": Attack(compact("00" * 50), "a number that never ends", HEADER),
    "compact-ones": Attack(compact("ff" * 50), "an outline of noise", HEADER),
    "compact-name": Attack(compact("9d9a0619a5fcf73a6c45"), "a line break in a name", HEADER),
    "compact-twice": Attack(compact("9d9a0618d35ea7bc511c40"), "a name twice", HEADER),
    "compact-no-codebook": Attack(compact("d210fd0298"), "a codebook that is not there", HEADER),
    "compact-infinite": Attack(compact("a2496dcaf93b4c33"), "an infinite value of a codebook", HEADER),
    "compact-dimensions": Attack(compact("9d9a0619a9163871e277cab38840"), "2^41 values in 41 dimensions", HEADER),
    "compact-values": Attack(compact("9d9a0618d3568506f86dd630c975cd"), "2^20 + 1 values", HEADER),
    "compact-nonzero": Attack(compact("9d9a0619a920c36bdc40"), "7 of 6 weights that are not zero", SECTION),
    "compact-no-value": Attack(compact("a3f7acb3a740"), "a weight other than zero without a value", SECTION),
    "compact-period": Attack(compact("9d9a0619a920c374fbc8"), "a period of 1", SECTION),
    "compact-cut": Attack(compact(GOOD[:-4]), "a code that ends too early", SECTION),
    "compact-long": Attack(compact(GOOD + "01"), "a byte after the code", SECTION),
    "compact-zero-byte": Attack(compact(GOOD + "00"), "a code that ends in a zero byte", SECTION),
    "bomb-compact": Attack(compact("9d9a0619a9191526f5a3af"), "4 MiB of zeros in 11 bytes", HEADER),
    "bomb-dtype": Attack(one(shape=sizes(1 << 18), kind=shared(3)), "2 MiB as float64, 1 as float32", HEADER),
}  # fmt: skip


def readme() -> str:
    rows = [f"| `{stem}.sws` | {a.tries} | {a.section or 'loads, harmless'} |" for stem, a in ATTACKS.items()]
    return (
        "# Attacks\n\n"
        "These files are made by hand to break a reader of [the file format](../../docs/format.md). `make.py` writes "
        "them and\nthis page: `PYTHONPATH=tests python -m attacks.make`. `tests/codec/test_attacks.py` reads each of "
        "them with a\n`max_bytes` of 1 MiB. The last column names the section of the file in which the reader refuses "
        "it.\n\n"
        "| file | tries | refused in |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def main() -> None:
    for stem, attack in ATTACKS.items():
        (FOLDER / f"{stem}.sws").write_bytes(attack.data)
    (FOLDER / "README.md").write_text(readme(), encoding="utf-8")


if __name__ == "__main__":
    main()
