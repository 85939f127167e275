"""The head of a static code: everything before its chunks (docs/format.md 13.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from softshare.codec.static import tables
from softshare.codec.static.rans import BY_COLUMN, BY_ROW, NO_AXIS
from softshare.codec.wire import Reader

MOST_LANES_BITS = 5
CHUNK_BITS = range(6, 17)
MOST_TABLES = 8
UNIT = 2  # bytes of a word; a state has two


@dataclass(frozen=True, eq=False)
class Layout:
    """What a decoder of chunks needs."""

    rows: int
    cols: int
    n_symbols: int
    lanes: int
    chunk: int  # symbols of each chunk but the last
    axis: int
    classes: npt.NDArray[np.uint8]  # of each row or column; one 0 without an axis
    lookup: tables.Lookup  # (tables * SLOTS,)
    offsets: npt.NDArray[np.int64]  # (chunks + 1,) where each chunk begins, in units from the first one
    start: int  # byte of the file, or of what was read, where the first chunk begins

    @property
    def n(self) -> int:
        return self.rows * self.cols

    @property
    def n_chunks(self) -> int:
        return len(self.offsets) - 1

    @property
    def end(self) -> int:
        """The byte after the last chunk."""
        return self.start + UNIT * int(self.offsets[-1])


def class_bits(n_tables: int) -> int:
    return (n_tables - 1).bit_length()


def pack(
    lanes: int,
    chunk: int,
    axis: int,
    classes: npt.NDArray[np.uint8],
    frequencies: list[tables.Frequencies],
    words: npt.NDArray[np.int64],  # of each chunk
) -> bytes:
    bits = class_bits(len(frequencies))
    spread = (classes[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    head = bytes([lanes.bit_length() - 1, chunk.bit_length() - 1, len(frequencies) - 1 | axis << 3])
    packed = np.packbits(spread.reshape(-1), bitorder="little").tobytes() if axis else b""
    return head + packed + b"".join(map(tables.pack, frequencies)) + words.astype("<u2").tobytes()


def read(reader: Reader, rows: int, cols: int, n_symbols: int) -> Layout:
    """Checks everything that can be checked without a chunk, but not where the last one ends."""
    start = reader.offset
    reader.expect(rows * cols > 0, "a static code of one number at least", 0, start)
    reader.expect(2 <= n_symbols <= tables.MOST_SYMBOLS, "2 to 256 different symbols", n_symbols, start)
    lane_bits, chunk_bits, form = reader.take(3)
    reader.expect(lane_bits <= MOST_LANES_BITS, f"lanes of up to 2^{MOST_LANES_BITS}", lane_bits, start)
    reader.expect(chunk_bits in CHUNK_BITS, "chunks of 2^6 to 2^16 numbers", chunk_bits, start)
    n_tables, axis = (form & 7) + 1, form >> 3
    reader.expect(axis <= BY_COLUMN and (axis > 0) == (n_tables > 1), "an axis of several tables", form, start)
    classes = _read_classes(reader, rows if axis == BY_ROW else cols, n_tables) if axis else np.zeros(1, np.uint8)
    lookups = [tables.lookup(tables.read(reader, n_symbols)) for _ in range(n_tables)]
    n_chunks = -(-rows * cols >> chunk_bits)
    words = np.frombuffer(reader.take(UNIT * n_chunks), "<u2").astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(words + (2 << lane_bits))])
    lookup = np.concatenate(lookups)
    return Layout(rows, cols, n_symbols, 1 << lane_bits, 1 << chunk_bits, axis, classes, lookup, offsets, reader.offset)


def _read_classes(reader: Reader, n: int, n_tables: int) -> npt.NDArray[np.uint8]:
    start, bits = reader.offset, class_bits(n_tables)
    n_bits = n * bits
    spread = np.unpackbits(np.frombuffer(reader.take(-(-n_bits // 8)), np.uint8), bitorder="little")
    reader.expect(not spread[n_bits:].any(), "zeros after the last class", 1, start)
    classes: npt.NDArray[np.uint8]
    classes = (spread[:n_bits].reshape(n, bits) << np.arange(bits, dtype=np.uint8)).sum(1, dtype=np.uint8)
    reader.expect(int(classes.max()) < n_tables, f"classes below {n_tables}", int(classes.max()), start)
    return classes


def no_axis() -> tuple[int, npt.NDArray[np.uint8]]:
    return NO_AXIS, np.zeros(1, np.uint8)
