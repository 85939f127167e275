"""Frequency tables of the static code (docs/format.md 13.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from softshare.codec.wire import Reader, varint

TABLE_BITS = 12
SLOTS = 1 << TABLE_BITS
MOST_SYMBOLS = 256  # one byte each

Frequencies = npt.NDArray[np.int64]  # (V,) of sum SLOTS
Lookup = npt.NDArray[np.uint32]  # (SLOTS,) symbol | (frequency - 1) << 8 | (slot - cum) << 20


def normalized(
    counts: npt.NDArray[Any],  # (V,) of which one is not 0
) -> Frequencies:
    """The frequencies nearest to the counts: rounded down, then mended one by one where it costs the fewest bits."""
    present = counts > 0
    n = counts.astype(np.float64)
    frequencies = np.where(present, np.maximum(1, (counts.astype(np.int64) * SLOTS) // int(counts.sum())), 0)
    while (missing := SLOTS - int(frequencies.sum())) != 0:
        safe = np.maximum(frequencies, 1)
        if missing > 0:
            best = int(np.argmax(np.where(present, n * np.log2((safe + 1) / safe), -1.0)))
        else:
            loss = n * np.log2(safe / np.maximum(safe - 1, 0.5))
            best = int(np.argmin(np.where(frequencies > 1, loss, np.inf)))
        frequencies[best] += 1 if missing > 0 else -1
    return frequencies


def pack(frequencies: Frequencies) -> bytes:
    """Varints. A 0 is followed by the number of further zeros."""
    out, k, values = bytearray(), 0, frequencies.tolist()
    while k < len(values):
        out += varint(values[k])
        k += 1
        if values[k - 1] == 0:
            more = next((j for j in range(k, len(values)) if values[j]), len(values)) - k
            out += varint(more)
            k += more
    return bytes(out)


def read(reader: Reader, n_symbols: int) -> Frequencies:
    frequencies = np.zeros(n_symbols, np.int64)
    k, total = 0, 0
    while k < n_symbols:
        start = reader.offset
        value = reader.varint()
        total += value
        reader.expect(total <= SLOTS, f"frequencies of sum {SLOTS}", total, start)
        frequencies[k] = value
        k += 1
        if value == 0:
            k += reader.varint()
            reader.expect(k <= n_symbols, f"{n_symbols} frequencies", k, start)
    reader.expect(total == SLOTS, f"frequencies of sum {SLOTS}", total)
    return frequencies


def lookup(frequencies: Frequencies) -> Lookup:
    symbols = np.repeat(np.arange(len(frequencies)), frequencies)
    below = np.cumsum(frequencies) - frequencies
    packed = symbols | (frequencies[symbols] - 1) << 8 | (np.arange(SLOTS) - below[symbols]) << 20
    return packed.astype(np.uint32)
