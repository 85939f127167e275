"""Canonical Huffman codes (docs/format.md 9): only the code lengths are transmitted, and the codes follow from them.

On the wire: the last symbol in use, in as many bits as the alphabet needs; the width of a length, in 3 bits; the length
of each symbol up to the last, 0 if it does not occur; then the codes of the symbols. The number of symbols is not
stored, because the caller knows it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from softshare.codec.han.bits import BitReader, BitWriter, Ints
from softshare.errors import FormatError

MAX_LENGTH = 31
_WIDTH_BITS = 3  # lengths up to 31 need widths up to 5
_CHUNK = 1 << 14  # bytes looked up at a time


@dataclass(frozen=True, eq=False)
class Code:
    """The symbols in use, in the order of their codes: shorter codes first, then by symbol."""

    symbols: Ints
    lengths: Ints  # of `symbols`, ascending
    starts: Ints  # their codes, followed by zeros up to the longest length; ascending

    @property
    def max_length(self) -> int:
        return int(self.lengths[-1])

    @property
    def codes(self) -> Ints:
        codes: Ints = self.starts >> (self.max_length - self.lengths)
        return codes


def code_lengths(
    counts: Ints,  # (alphabet,)
) -> Ints:
    """Code lengths of a Huffman code; 0 for a symbol that does not occur.

    A lone symbol gets length 1. So a length above 0 always means that its symbol is used. And no run of symbols is
    longer than the bits that hold it, which bounds what a decoder allocates. Ties go to the symbol, then the subtree,
    that came first.
    """
    lengths = np.zeros(len(counts), np.int64)
    used = np.flatnonzero(counts)
    if used.size:
        lengths[used] = _limited_depths(np.asarray(counts)[used])
    return lengths


def _limited_depths(weights: Ints) -> list[int]:
    """Halve the weights, which flattens the tree, until it is within `MAX_LENGTH`. Each try is a valid prefix code."""
    depths = _depths(weights.tolist())
    while max(depths) > MAX_LENGTH:
        weights = (weights + 1) // 2
        depths = _depths(weights.tolist())
    return depths


def _depths(weights: list[int]) -> list[int]:
    n = len(weights)
    if n == 1:
        return [1]
    heap = [(weight, node) for node, weight in enumerate(weights)]
    heapq.heapify(heap)
    parent = [0] * (2 * n - 1)
    for node in range(n, 2 * n - 1):
        (weight_a, a), (weight_b, b) = heapq.heappop(heap), heapq.heappop(heap)
        parent[a] = parent[b] = node
        heapq.heappush(heap, (weight_a + weight_b, node))
    depths = [0] * (2 * n - 1)
    for node in range(2 * n - 3, -1, -1):  # a parent follows its children, and the root is last
        depths[node] = depths[parent[node]] + 1
    return depths[:n]


def canonical(
    lengths: Ints,  # (alphabet,), not all 0
) -> Code:
    used = np.flatnonzero(lengths)
    symbols = used[np.argsort(lengths[used], kind="stable")]
    sizes = lengths[symbols]
    spans = np.int64(1) << (sizes[-1] - sizes)  # how many of the longest codes each one stands for
    return Code(symbols, sizes, np.cumsum(spans) - spans)


def _check(lengths: Ints) -> None:
    used = lengths[lengths > 0]
    if used.size == 1 and used[0] == 1:
        return
    kraft = int(np.sum(np.int64(1) << (MAX_LENGTH - used)))
    if kraft != 1 << MAX_LENGTH:
        raise FormatError(f"expected Huffman code lengths with a Kraft sum of 1, got {kraft / (1 << MAX_LENGTH):.6g}")


def write(writer: BitWriter, symbols: Ints, alphabet: int) -> None:
    """Append the table and the codes of the symbols: one or more, each in `[0, alphabet)`."""
    lengths = code_lengths(np.bincount(symbols))  # bincount ends at the last symbol in use
    width = int(lengths.max()).bit_length()
    writer.write(lengths.size - 1, (alphabet - 1).bit_length())
    writer.write(width, _WIDTH_BITS)
    writer.write(lengths, width)
    code = canonical(lengths)
    codes = np.zeros_like(lengths)
    codes[code.symbols] = code.codes
    writer.write(codes[symbols], lengths[symbols])


def read(reader: BitReader, count: int, alphabet: int) -> Ints:
    """The `count >= 1` symbols that `write` wrote for this alphabet."""
    last = reader.read_one((alphabet - 1).bit_length())
    if last >= alphabet:
        raise FormatError(f"expected symbols below {alphabet} in a Huffman table, got {last}")
    width = reader.read_one(_WIDTH_BITS)
    if not 1 <= width <= MAX_LENGTH.bit_length():
        raise FormatError(f"expected Huffman lengths of 1 to {MAX_LENGTH.bit_length()} bits, got {width} bits")
    lengths = reader.read(width, last + 1)
    _check(lengths)
    return _decode(reader, canonical(lengths), count)


def _decode(reader: BitReader, code: Code, count: int) -> Ints:
    """Look up the code at *every* bit of a chunk at once, then step from each code to the next.

    Work and memory depend on the data, not on `count`, because a code has at least one bit.
    """
    parts: list[Ints] = []
    missing = count
    while missing:
        first, at = divmod(reader.position, 8)
        reader.require(1)
        n_bytes = min(_CHUNK, reader.n_bits // 8 - first, (at + missing * code.max_length + 7) // 8)
        windows = reader.windows(first, n_bytes, code.max_length)
        ranks = np.searchsorted(code.starts, windows, side="right") - 1
        stops, end = _walk(code.lengths[ranks].tolist(), at, missing)
        reader.skip_to(8 * first + end)
        if code.symbols.size == 1 and windows[stops].any():  # the only code is one bit, 0
            raise FormatError("expected only zeros for a Huffman code of one symbol, got ones")
        parts.append(code.symbols[ranks[stops]])
        missing -= len(stops)
    return np.concatenate(parts)


def _walk(steps: list[int], at: int, most: int) -> tuple[list[int], int]:
    """Where at most `most` codes begin, from bit `at` to the end of `steps`, and the bit after the last code."""
    stops: list[int] = []
    n_steps = len(steps)
    while at < n_steps and len(stops) < most:
        stops.append(at)
        at += steps[at]
    return stops, at
