"""A matrix of symbols as bytes, and back, in whole or in part (docs/format.md 13)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from softshare.codec.adaptive.rangecoder import Bytes
from softshare.codec.parallel import Run, one_by_one
from softshare.codec.static import classes, layout
from softshare.codec.static.layout import UNIT, Layout
from softshare.codec.static.rans import INVERSE, MARGIN, decode_chunks, encode_chunk
from softshare.codec.wire import Reader
from softshare.errors import FormatError

CHUNK = 1 << 15  # symbols: a file's index then takes 0.02% of it, and a lane 0.02 to 0.03%
LANES = 4
GPU_LANES = 32  # a warp; 0.6% more bytes
JOB = 1 << 19  # symbols that a thread decodes at a time


def encode(
    symbols: Bytes,  # (rows * cols,), at least one
    rows: int,
    cols: int,
    n_symbols: int,  # 2 to 256
    lanes: int = LANES,
    chunk: int | None = None,
    choice: classes.Choice | None = None,
    run: Run = one_by_one,
) -> bytes:
    """By default with the tables that make it shortest."""
    chunk = chunk or CHUNK
    choice = choice or classes.choose(symbols, rows, cols, n_symbols)
    frequencies = classes.frequencies(choice)
    flat = np.concatenate(frequencies)
    inverse = INVERSE / np.maximum(flat, 1)
    below = np.concatenate([np.cumsum(f) - f for f in frequencies])
    n = rows * cols
    coded: list[bytes] = [b""] * -(-n // chunk)

    def code(job: range) -> None:
        units = np.empty(min(n, chunk) + 2 * lanes, np.uint16)
        for k in job:
            size = min(chunk, n - k * chunk)
            at = encode_chunk(
                symbols, k * chunk, size, lanes, flat, inverse, below, n_symbols, choice.axis, choice.classes, cols,
                units,
            )  # fmt: skip
            coded[k] = units[at:].astype("<u2").tobytes()

    run(code, _jobs(range(len(coded)), chunk))
    words = np.array([len(c) // UNIT - 2 * lanes for c in coded], np.int64)
    return layout.pack(lanes, chunk, choice.axis, choice.classes, frequencies, words) + b"".join(coded)


def _jobs(chunks: range, chunk: int) -> list[range]:
    at_once = max(1, JOB // chunk)
    return [chunks[k : k + at_once] for k in range(0, len(chunks), at_once)]


def decode(data: bytes | memoryview, rows: int, cols: int, n_symbols: int, run: Run = one_by_one) -> Bytes:
    """All symbols. The data is the static code and nothing more."""
    head = layout.read(Reader(io.BytesIO(data), len(data)), rows, cols, n_symbols)
    if head.end != len(data):
        raise FormatError(f"expected a static code that ends at byte {len(data)} of its data, got {head.end}")
    return decode_chunk_range(head, range(head.n_chunks), data[head.start :], run)


def decode_chunk_range(head: Layout, chunks: range, data: bytes | memoryview, run: Run = one_by_one) -> Bytes:
    """The symbols of some chunks in a row, from their bytes."""
    begin, end = chunks.start * head.chunk, min(head.n, chunks.stop * head.chunk)
    origin = int(head.offsets[chunks.start])
    units = np.zeros(int(head.offsets[chunks.stop]) - origin + MARGIN, np.uint16)
    units[:-MARGIN] = np.frombuffer(data, "<u2", len(units) - MARGIN)
    out = np.empty(end - begin, np.uint8)

    def code(job: range) -> None:
        first, last = job.start * head.chunk, min(head.n, job.stop * head.chunk)
        bad = decode_chunks(
            units, head.offsets[job.start : job.stop + 1] - origin, head.lanes, head.chunk, head.lookup, head.axis,
            head.classes, head.cols, first, out[first - begin : last - begin],
        )  # fmt: skip
        if bad >= 0:
            raise FormatError(
                f"expected states that end at {1 << 16} after the last word of a chunk, got others in chunk "
                f"{job.start + bad}"
            )

    run(code, _jobs(chunks, head.chunk))
    return out


def chunk_bytes(head: Layout, chunks: range) -> tuple[int, int]:
    """Where the bytes of some chunks begin and how many there are."""
    begin, end = int(head.offsets[chunks.start]), int(head.offsets[chunks.stop])
    return head.start + UNIT * begin, UNIT * (end - begin)


def as_symbols(indices: npt.NDArray[Any]) -> Bytes:
    return np.require(indices.reshape(-1), np.uint8, ["C", "W"])
