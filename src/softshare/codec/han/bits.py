"""Bits for the codec `han`, most significant first (docs/format.md 9).

A field's top bit comes first, and a byte fills from its top bit down.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from softshare.errors import FormatError

Ints = npt.NDArray[np.int64]

MAX_WIDTH = 62  # of one field: values are int64, never negative
_CHUNK = 1 << 16  # fields expanded to single bits at a time: memory does not grow with the tensor


class BitWriter:
    """Appends fields bit by bit. `finish` fills the last byte with zeros."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        # Fewer than 8 bits, one per element, that are not yet in `_bytes`.
        self._tail: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)

    def write(self, values: npt.ArrayLike, widths: npt.ArrayLike) -> None:
        """Append each value in its width. One width may serve for all."""
        fields, sizes = np.broadcast_arrays(np.atleast_1d(np.asarray(values, np.int64)), np.asarray(widths, np.int64))
        if fields.size == 0:
            return
        if sizes.min() < 0 or sizes.max() > MAX_WIDTH:
            raise ValueError(f"expected widths from 0 to {MAX_WIDTH}, got {sizes.min()} to {sizes.max()}")
        if np.any(fields >> sizes):  # also true for a negative value, whatever its width
            raise ValueError("expected values that fit their widths, got a larger or a negative one")
        for start in range(0, fields.size, _CHUNK):
            self._append(fields[start : start + _CHUNK], sizes[start : start + _CHUNK])

    def _append(self, fields: Ints, sizes: Ints) -> None:
        ends = np.cumsum(sizes)
        shifts = np.repeat(ends, sizes) - 1 - np.arange(ends[-1])
        single = (np.repeat(fields, sizes) >> shifts) & 1
        bits = np.concatenate([self._tail, single.astype(np.uint8)])
        whole = bits.size // 8 * 8
        self._bytes += np.packbits(bits[:whole]).tobytes()
        self._tail = bits[whole:]

    def finish(self) -> bytes:
        return bytes(self._bytes) + np.packbits(self._tail).tobytes()


class BitReader:
    """Reads what `BitWriter` wrote. Reading past the end raises `FormatError` before anything is allocated."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0  # in bits

    @property
    def n_bits(self) -> int:
        return 8 * len(self._data)

    @property
    def remaining(self) -> int:
        return self.n_bits - self.position

    def require(self, n_bits: int) -> None:
        if n_bits > self.remaining:
            raise FormatError(
                f"expected {n_bits} more bits at bit {self.position}, got {self.remaining}: the data ends too early"
            )

    def skip_to(self, position: int) -> None:
        self.require(position - self.position)
        self.position = position

    def read(self, width: int, count: int) -> Ints:
        """The next `count` fields of `width` bits. A width of 0 takes no bits, so the caller must bound `count`."""
        self.require(width * count)
        place_values = np.int64(1) << np.arange(width - 1, -1, -1, dtype=np.int64)
        fields = np.empty(count, np.int64)
        for start in range(0, count, _CHUNK):
            part = fields[start : start + _CHUNK]
            first, skip = divmod(self.position, 8)
            self.position += width * len(part)
            octets = np.frombuffer(self._data[first : (self.position + 7) // 8], np.uint8)
            bits = np.unpackbits(octets)[skip : skip + width * len(part)]
            part[:] = bits.reshape(len(part), width) @ place_values
        return fields

    def read_one(self, width: int) -> int:
        return int(self.read(width, 1)[0])

    def windows(self, first_byte: int, n_bytes: int, width: int) -> Ints:
        """The `width` bits from each bit of the given bytes on, `(8 * n_bytes,)`. Zeros follow the end of the data.

        `width` is at most 33: five bytes hold that, wherever in the first byte it starts.
        """
        data = self._data[first_byte : first_byte + n_bytes + 4].ljust(n_bytes + 4, b"\0")
        octets = np.frombuffer(data, np.uint8).astype(np.int64)
        words = np.zeros(n_bytes, np.int64)
        for k in range(5):
            words |= octets[k : k + n_bytes] << (32 - 8 * k)
        shifts = 40 - width - np.arange(8, dtype=np.int64)
        windows: Ints = ((words[:, None] >> shifts) & ((1 << width) - 1)).reshape(-1)
        return windows

    def finish(self) -> None:
        """Raise unless only the zero bits that fill the last byte are left."""
        if self.remaining >= 8:
            raise FormatError(f"expected the data to end at bit {self.position}, got {self.remaining} bits more")
        if self.read_one(self.remaining) != 0:
            raise FormatError("expected zeros in the unused bits of the last byte, got ones")
