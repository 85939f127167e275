"""Writes docs/format-vectors.md: `PYTHONPATH=tests python -m vectors`.

Tiny files in hexadecimal, with every step of their decoding. The steps of the range coder are those of the package's
own functions, run as plain Python and overheard. The steps of the static code follow docs/format.md 13 alone.
"""

from __future__ import annotations

import contextlib
import io
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

PAGE = Path(__file__).parents[1] / "docs" / "format-vectors.md"
INTRODUCTION = """# Test vectors of the file format

Each file is tiny and shown whole, in hexadecimal. The steps of its decoding follow, with every number that they need.
[The specification](format.md) explains the terms; the numbers in brackets are its sections. `tests/vectors.py` writes
this page, and a test compares it.

"""


def hexed(data: bytes) -> str:
    return " ".join(f"{octet:02x}" for octet in data)


def table(head: str, rows: list[list[object]]) -> list[str]:
    names = head.split(", ")
    out = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return [*out, *("| " + " | ".join(map(str, row)) + " |" for row in rows), ""]


def file_lines(title: str, data: bytes, parts: list[tuple[int, str]]) -> list[str]:
    """The parts of a file: their lengths and meanings, up to the checksum."""
    rows: list[list[object]] = []
    at = 0
    for length, meaning in parts:
        rows.append([at, f"`{hexed(data[at : at + length])}`", meaning])
        at += length
    assert at == len(data), (at, len(data))
    return [f"## {title}", "", f"`{hexed(data)}`", "", *table("offset, bytes, meaning", rows)]


# The range coder, overheard


def decisions(decode: Callable[[], Any]) -> list[list[object]]:
    """The probability of each decision, and range, d and bit. Runs only where numba is not."""
    from softshare.codec import planes
    from softshare.codec.adaptive import fast, full, rangecoder
    from softshare.codec.compact import fields

    original = rangecoder.code_bit
    seen: list[list[object]] = []

    def overheard(bit: int, probability: int, coder: Any, decoding: bool, data: Any) -> Any:
        _, width, position, distance = coder
        out, after = original(bit, probability, coder, decoding, data)
        bound = (int(width) >> 22) * int(probability)
        read = int(after[2]) - int(position)
        seen.append(
            [len(seen), int(probability), f"{int(width):#x}", f"{int(distance):#x}", f"{bound:#x}", int(out), read]
        )
        return out, after

    mixed = rangecoder.code_mixed

    def overheard_mix(bit: int, inputs: Any, n_given: int, slots: Any, states: Any, weights: Any, *others: Any) -> Any:
        before = [int(w) for w in weights]
        out = mixed(bit, inputs, n_given, slots, states, weights, *others)
        given = [int(x) for x in inputs[: n_given + len(slots)]]
        seen[-1] += [f"`{given[:n_given]}` `{given[n_given:]}`", f"`{before}`"]
        return out

    hooks: list[tuple[Any, str, Any]] = [(rangecoder, "code_bit", overheard), (fast, "code_bit", overheard)]
    hooks += [(fields, "code_bit", overheard)]
    hooks += [(module, "code_mixed", overheard_mix) for module in (full, planes)]
    with contextlib.ExitStack() as stack:
        for module, name, hook in hooks:
            stack.enter_context(mock.patch.object(module, name, hook))
        decode()
    return [row if len(row) > 7 else [*row, "-", "-"] for row in seen]


DECISION = "decision, p, range, d, bound, bit, bytes read after it, given inputs and contexts' inputs, weights before"


def adaptive_vector() -> list[str]:
    import torch

    from softshare import codec
    from softshare.codec.adaptive import tensor as adaptive

    t = _tensor([0, 2, 0, 1, 0, 0, 2, 0], (2, 4), [0.0, -0.25, 0.5])
    data = codec.encode(_weights(t), _plain())
    section = _section(data)
    code = section[2:]
    parts = _header_parts(data, 1)
    parts += [
        (1, "n_nonzero, 3"),
        (1, "the period of the full model, 0 (8.3)"),
        (len(code), "the range code (8.2)"),
        _CRC,
    ]
    rows = decisions(lambda: adaptive.decode_tensor(section[1:], (2, 4), 3, 3))
    back = codec.decode(data).shared[0].indices
    assert torch.equal(back, t.indices)
    return [
        *file_lines("Codec `adaptive`, version 1", data, parts),
        f"2 x 4 weights, V = 3 and N = 3, so d = 1. D = 3 2^30 // 8 = {3 * 2**30 // 8}. At the start, d of the range",
        f"coder is the first 5 bytes, zeros after the end: `{hexed(code[:5].ljust(5, bytes(1)))}`. Every weight has a",
        "decision on whether it is zero, until all 3 non-zeros are met. Each non-zero has one more, its index.",
        "",
        *table(DECISION, rows),
        f"Indices: {back.tolist()}.",
        "",
    ]


def bands_vector() -> list[str]:
    import torch

    from softshare import codec
    from softshare.codec.adaptive import bands
    from softshare.codec.header import MAGIC

    indices = [0, 1, 0, 0, 2, 0, 0, 1, 1, 0, 0, 2]
    narrow = torch.tensor(indices, dtype=torch.uint8).numpy()
    code = bands.encode_bands(narrow, (4, 3), 3, 1)
    section = bytes([5]) + code
    entry = bytes([2 * len(section), 16, 0]) + b"\0\1a" + bytes([2, 4, 3])
    body = MAGIC + bytes([2, 3, 1, 9]) + struct.pack("<2e", -0.25, 0.5) + bytes([1]) + entry + bytes([0]) + section
    data = body + struct.pack("<I", zlib.crc32(body))
    assert codec.decode(data).shared[0].indices.tolist() == indices
    lengths = code[2], code[4]
    parts = _header_parts(data, 1)
    parts += [(1, "n_nonzero, 5"), (1, "2^1 bands (14)")]
    parts += [(2, f"band {k}: {code[1 + 2 * k]} non-zeros, {n} bytes") for k, n in enumerate(lengths)]
    parts += [(n, f"the range code of band {k}") for k, n in enumerate(lengths)]
    rows = decisions(lambda: codec.decode(data))
    return [
        *file_lines("Bands, version 2", data, [*parts, _CRC]),
        "4 x 3 weights in two bands of two rows, by the fast model. Only values are mixed.",
        "",
        *table(DECISION, rows),
        f"Indices: {indices}.",
        "",
    ]


KINDS = (
    "COUNT", "VALUES", "FORM", "ZEROS", "FIRST", "STEP", "PREFIX", "LETTERS", "DIMENSIONS", "ROWS", "COLUMNS", "SIZE",
    "NONZERO", "PERIOD",
)  # fmt: skip


def compact_vector() -> list[str]:
    """The fields of the outline, each with the states of its decisions, then all decisions."""
    from softshare import codec
    from softshare.codec.adaptive.rangecoder import COUNT_BITS, LAST
    from softshare.codec.compact.fields import Fields
    from softshare.codec.compact.primer import primed_states

    t = _tensor([0, 2, 0, 1, 0, 0, 2, 0], (2, 4), [0.0, -0.25, 0.5])
    data, plain = codec.encode(_weights(t)), codec.encode(_weights(t), _plain())
    assert data[4:6] == bytes([2, 11])
    fields: list[list[object]] = []
    number, tree, bit = Fields.number, Fields.tree, Fields.bit
    within: list[list[int]] = []

    def heard_bit(self: Any, place: int, value: int = 0) -> int:
        if within:
            within[-1].append(place)
            return bit(self, place, value)
        found = bit(self, place, value)
        fields.append([f"state {place}", found, place])
        return found

    def heard(what: str, read: Callable[..., int], *args: Any) -> int:
        within.append([])
        found = read(*args)
        fields.append([what, found, " ".join(map(str, within.pop()))])
        return found

    def heard_number(self: Any, kind: int, value: int = 0) -> int:
        return heard(KINDS[kind], number, self, kind, value)

    def heard_tree(self: Any, place: int, n_bits: int, value: int = 0) -> int:
        return heard(f"tree of {n_bits} bits at {place}", tree, self, place, n_bits, value)

    states = primed_states()
    with contextlib.ExitStack() as stack:
        for name, hook in (("number", heard_number), ("tree", heard_tree), ("bit", heard_bit)):
            stack.enter_context(mock.patch.object(Fields, name, hook))
        rows = decisions(lambda: codec.decode(data))
    assert codec.decode(data).shared[0].indices.tolist() == t.indices.tolist()
    parts = [(4, "magic"), (1, "version"), (1, "flags: compact, names, `adaptive`"), (len(data) - 10, "the code"), _CRC]
    estimates, counts = states >> COUNT_BITS, states & LAST
    return [
        *file_lines("Compact file, version 2", data, parts),
        f"The network of the first vector: {len(plain)} bytes there. After the primer (15.4), state 0 has the",
        f"estimate {estimates[0]} and the count {counts[0]}, and state 814 has {estimates[814]} and {counts[814]}. The",
        f"sum of all estimates is {estimates.sum()}, that of all counts {counts.sum()}.",
        "",
        "The fields of the outline (15.3), and the states of their decisions:",
        "",
        *table("field, value, states", fields),
        f"The outline: `{hexed(codec_outline(data))}`",
        "",
        "All decisions, from those of the outline to those of the tensor, which alone are mixed:",
        "",
        *table(DECISION, rows),
        f"Indices: {t.indices.tolist()}.",
        "",
    ]


def codec_outline(data: bytes) -> bytes:
    from softshare.codec.header_reading import read_header, read_prefix
    from softshare.codec.wire import Reader

    reader = Reader(io.BytesIO(data), len(data) - 4)
    compact = read_header(reader, read_prefix(reader)).compact
    assert compact
    return compact.outline


def _plain() -> Any:
    from softshare.config import EncodeConfig

    return EncodeConfig(compact=False)


def planes_vector() -> list[str]:
    import torch

    from softshare import codec
    from softshare.codec import planes

    x = torch.tensor([7, 7, 7, 9, 7, 7], dtype=torch.int16)
    data = codec.encode(_weights(x=x))
    section = _section(data)
    rows = decisions(lambda: planes.decode_planes(section, 6, 2))
    code = len(section) - 1
    parts = [
        *_header_parts(data, 0),
        (1, "modes: plane 0 coded (2), plane 1 zeros (0) (8.7)"),
        (code, "the range code"),
        _CRC,
    ]
    assert torch.equal(codec.decode(data).rest["a"], x)
    return [
        *file_lines("Byte planes, version 1", data, parts),
        "Six int16 numbers. Each byte of plane 0 has 8 decisions, from the highest bit.",
        "",
        *table(DECISION, rows),
        f"Numbers: {x.tolist()}.",
        "",
    ]


# The static code, by definition


def static_steps(data: bytes, rows: int, cols: int, n_symbols: int) -> tuple[list[list[object]], list[int]]:
    """13.3, for one chunk. Each step: symbol number, class, lane, x, slot, symbol, new x, word."""
    n_lanes, form = 1 << data[0], data[2]
    at, n_tables, axis = 3, form % 8 + 1, form >> 3
    own = [0] * max(rows, cols)
    if axis:
        bits = (n_tables - 1).bit_length()
        n_own = rows if axis == 1 else cols
        n_bytes = -(-n_own * bits // 8)
        packed = int.from_bytes(data[at : at + n_bytes], "little")
        own = [packed >> (bits * k) & (2**bits - 1) for k in range(n_own)]
        at += n_bytes
    tables: list[list[int]] = []

    def number() -> int:
        nonlocal at
        value, shift = data[at] & 127, 7
        while data[at] > 127:
            at += 1
            value |= (data[at] & 127) << shift
            shift += 7
        at += 1
        return value

    for _ in range(n_tables):
        found: list[int] = []
        while len(found) < n_symbols:
            found.append(number())
            if not found[-1]:
                found += [0] * number()
        tables.append(found)
    (n_words,) = struct.unpack_from("<H", data, at)
    states = list(struct.unpack_from(f"<{n_lanes}I", data, at + 2))
    words = iter(struct.unpack_from(f"<{n_words}H", data, at + 2 + 4 * n_lanes))
    steps, symbols = [], []
    for i in range(rows * cols):
        row, col = divmod(i, cols)
        number_of = own[row] if axis == 1 else own[col] if axis == 2 else 0
        f = tables[number_of]
        lane = i % n_lanes
        x = states[lane]
        slot, s, cum = x % 4096, 0, 0
        while cum + f[s] <= slot:
            cum, s = cum + f[s], s + 1
        new = f[s] * (x >> 12) + slot - cum
        word = next(words) if new < 65536 else None
        states[lane] = new if word is None else 65536 * new + word
        taken = "-" if word is None else f"{word:#06x}"
        steps.append([i, number_of, lane, f"{x:#x}", slot, s, f[s], cum, f"{new:#x}", taken])
        symbols.append(s)
    assert states == [65536] * n_lanes
    assert next(words, None) is None
    return steps, symbols


STEP = "symbol number, class, lane, x, slot, symbol, f, cum, x after 3, word"


def static_vector() -> list[str]:
    import numpy as np

    from softshare import codec
    from softshare.codec.header import MAGIC
    from softshare.codec.static import classes, code
    from softshare.codec.wire import varint

    rng = np.random.default_rng(5)
    symbols = np.array([*rng.integers(0, 2, 32), *rng.integers(0, 3, 32)], np.uint8)
    own = np.array([0, 0, 1, 1], np.uint8)
    counts = np.array([[15, 17, 0], [12, 11, 9]])
    static = code.encode(symbols, 4, 16, 3, 2, 64, classes.Choice(1, own, counts))
    n_nonzero = int(np.count_nonzero(symbols))
    section = varint(n_nonzero) + static
    book = bytes([2 * 4 + 1]) + struct.pack("<2e", -0.25, 0.5)
    entry = varint(2 * len(section)) + bytes([128, 0]) + b"\0\1a" + bytes([2, 4, 16])
    body = MAGIC + bytes([2, 3, 1]) + book + bytes([1]) + entry + bytes([0]) + section
    data = body + struct.pack("<I", zlib.crc32(body))
    steps, found = static_steps(static, 4, 16, 3)
    assert found == codec.decode(data).shared[0].indices.tolist() == symbols.tolist()
    n_words = _n_words(static)
    tables = len(static) - 3 - 1 - 2 - 8 - 2 * n_words
    parts = _header_parts(data, 1)
    parts += [
        (1, f"n_nonzero, {n_nonzero}"),
        (1, "2^1 lanes"),
        (1, "chunks of 2^6 symbols"),
        (1, "2 tables, axis 1 (rows)"),
        (1, f"the classes of the rows, a bit each: {own.tolist()}"),
        (tables, "two tables of three frequencies"),
        (2, f"{n_words} words"),
        (8, "the states of the lanes"),
        *([(2 * n_words, "the words")] if n_words else []),
        _CRC,
    ]
    return [
        *file_lines("Static code, version 2", data, parts),
        "4 x 16 weights in one chunk. The kind is 0x80: float32, static.",
        "",
        *table(STEP, steps),
        f"Both states end at 0x10000, and no word is left. Indices: {found}.",
        "",
    ]


def _n_words(static: bytes) -> int:
    """Of the only chunk: the section's length tells, as tables are read from the front."""
    from softshare.codec.static import layout
    from softshare.codec.wire import Reader

    head = layout.read(Reader(io.BytesIO(static), len(static)), 4, 16, 3)
    return int(head.offsets[1]) - 2 * head.lanes


_CRC = (4, "CRC-32 (3.4)")


def _tensor(indices: list[int], shape: tuple[int, ...], book: list[float]) -> Any:
    import torch

    from softshare.quantization.quantized import QuantizedTensor

    return QuantizedTensor("a", shape, torch.float32, torch.tensor(indices, dtype=torch.uint8), torch.tensor(book))


def _weights(*shared: Any, x: Any = None) -> Any:
    from softshare.quantization.quantized import QuantizedWeights

    return QuantizedWeights(shared, {} if x is None else {"a": x}, {})


def _section(data: bytes) -> bytes:
    from softshare.codec.header_reading import read_header, read_prefix
    from softshare.codec.wire import Reader

    reader = Reader(io.BytesIO(data), len(data) - 4)
    entry = read_header(reader, read_prefix(reader)).entries[0]
    return data[entry.offset : entry.offset + entry.n_bytes]


def _header_parts(data: bytes, n_books: int) -> list[tuple[int, str]]:
    """Of a file with one tensor, `a`."""
    shared = n_books == 1
    kind = data[6 + 1 + (5 if shared else 0) + 1 + 1 :]
    plain = data[6 + 1 + (5 if shared else 0) + 1] & 1
    coder = "adaptive" if data[5] & 1 else "han"
    parts = [(4, "magic"), (1, "version"), (1, f"flags: names and shapes, `{coder}`"), (1, f"{n_books} codebooks")]
    if shared:
        parts += [(1, "2 values, float16"), (4, "-0.25 and 0.5")]
    parts += [
        (1, "1 tensor"),
        (1, "the entry: 2 times the bytes of its section" + (", plus 1: plain" if plain else "")),
    ]
    if not plain:
        parts += [(1, f"kind {kind[0]:#04x} (4.2)")] + ([(1, "codebook 0")] if shared else [])
    parts += [(3, "the name: no suffix, no common beginning, 1 byte, `a`")]
    return [
        *parts,
        (3, "2 dimensions and their sizes") if shared else (2, "1 dimension and its size"),
        (1, "no tied names"),
    ]


def lines() -> Iterator[str]:
    from vectors_of_codecs import fast_vector, han_vector
    from vectors_of_sums import differences_vector

    for vector in (
        adaptive_vector, fast_vector, han_vector, planes_vector, static_vector, bands_vector, compact_vector,
        differences_vector,
    ):  # fmt: skip
        yield from vector()


def page() -> str:
    """Written by another process, in which numba cannot be imported: compiled functions cannot be overheard."""
    call = "import sys; sys.modules['numba'] = None; import vectors; sys.stdout.write('\\n'.join(vectors.lines()))"
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", call], cwd=here, capture_output=True, text=True, check=True)
    return INTRODUCTION + done.stdout.rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
