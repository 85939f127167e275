"""The bytes of a header: variable-length integers, and a reader that checks what it reads (docs/format.md 2).

Every error of a `Reader` carries the section and the byte offset.
"""

from __future__ import annotations

import reprlib
import struct
from typing import BinaryIO, NoReturn

from softshare.errors import FormatError

VARINT_BITS = 63  # a varint is below 2^63 (docs/format.md 2)
CRC = struct.Struct("<I")  # the checksum, the last bytes of a file
PIECE = 1 << 20  # bytes that the checksum takes at once


def varint(value: int) -> bytes:
    """Seven bits to a byte, the lowest first; the top bit says that another byte follows."""
    out = bytearray()
    while value > 0x7F:
        out.append(0x80 | (value & 0x7F))
        value >>= 7
    out.append(value)
    return bytes(out)


class Reader:
    """Reads a file from front to back and never past `end`. `section` names the part being read, for errors."""

    def __init__(self, file: BinaryIO, end: int, section: str = "prefix") -> None:
        self._file = file
        self.offset = file.tell()
        self.end = end
        self.section = section

    @property
    def remaining(self) -> int:
        return self.end - self.offset

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        raise FormatError(problem, self.section, self.offset if at is None else at)

    def expect(self, condition: bool, expected: str, got: object, at: int | None = None) -> None:
        if not condition:
            self.fail(f"expected {expected}, got {reprlib.repr(got)}", at)

    def take(self, n: int) -> bytes:
        if n > self.remaining:
            self.fail(f"expected {n} more bytes, got {self.remaining}: the file is cut short or altered")
        data = self._file.read(n)
        if len(data) < n:
            self.fail(f"expected {n} more bytes, got {len(data)}: the file changed while it was read")
        self.offset += n
        return data

    def skip_to(self, offset: int) -> None:
        """Read on from a later byte, without reading what is between."""
        if not self.offset <= offset <= self.end:
            self.fail(f"expected a part that ends by byte {self.end}, got {offset}")
        self._file.seek(offset)
        self.offset = offset

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        start, value = self.offset, 0
        for shift in range(0, VARINT_BITS, 7):
            octet = self.byte()
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                break
        self.expect(octet < 0x80, f"an integer below 2^{VARINT_BITS}", "a longer one", start)
        self.expect(octet > 0 or shift == 0, "an integer in as few bytes as it needs", octet, start)
        return value
