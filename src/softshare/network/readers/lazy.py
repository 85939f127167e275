"""The tensors of a file, each read when it is asked for, and a cursor that never reads past the end of a header."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softshare._util.files import cannot_read
from softshare.errors import FormatError

MOST_VALUES = 1 << 40  # of one tensor, as in a .sws file
MOST_DIMENSIONS = 64
MOST_TENSORS = 1 << 20
MOST_NAME = 1 << 16  # bytes


class LazyTensors(Mapping[str, Tensor]):
    """Tensors by name. Their shapes and dtypes are known at once, as tensors of the device `meta`."""

    def __init__(
        self,
        kinds: Mapping[str, Tensor],
        read: Callable[[str], Tensor],  # a copy
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.kinds, self.metadata = kinds, metadata
        self._read = read

    def __getitem__(self, name: str) -> Tensor:
        kind = self.kinds[name]
        return self._read(name) if kind.numel() else torch.empty_like(kind, device="cpu")

    def __contains__(self, name: object) -> bool:
        return name in self.kinds  # Mapping's own method would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)


def kind_of(shape: Sequence[int], dtype: torch.dtype, fail: Callable[[str], NoReturn]) -> Tensor:
    """A tensor without values. `fail` is called for a shape that no memory can hold."""
    if (
        len(shape) > MOST_DIMENSIONS
        or math.prod(max(size, 1) for size in shape) > MOST_VALUES
        or min(shape, default=0) < 0
    ):
        fail(
            f"expected at most {MOST_DIMENSIONS} sizes of at most {MOST_VALUES} values together, got {list(shape)[:8]}"
        )
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def read_span(path: str | os.PathLike[str], start: int, n_bytes: int) -> npt.NDArray[np.uint8]:
    """A part of a file, as a copy."""
    try:
        data = np.fromfile(path, np.uint8, n_bytes, offset=start)
    except OSError as error:
        raise cannot_read(path, error) from error
    if len(data) < n_bytes:
        raise FormatError(f"{os.fspath(path)}: expected {n_bytes} bytes at byte {start}, got {len(data)}")
    return data


class Cursor:
    """Reads a part of a file from front to back."""

    def __init__(self, file: BinaryIO, start: int, end: int, path: str | os.PathLike[str], kind: str) -> None:
        self.file, self.path, self.kind = file, path, kind
        self.offset, self.end = start, end
        file.seek(start)

    def fail(self, problem: str) -> NoReturn:
        raise FormatError(f"{os.fspath(self.path)} is not a sound {self.kind} file: {problem} (at byte {self.offset})")

    @property
    def remaining(self) -> int:
        return self.end - self.offset

    def require(self, n: int) -> None:
        if n > self.remaining:
            self.fail(f"expected {n} more bytes, got {self.remaining}: it is cut short or damaged")

    def take(self, n: int) -> bytes:
        self.require(n)
        data = self.file.read(n)
        if len(data) < n:
            self.fail(f"expected {n} more bytes, got {len(data)}")
        self.offset += n
        return data

    def skip(self, n: int) -> None:
        self.require(n)
        self.offset += n
        self.file.seek(self.offset)

    def number(self, n_bytes: int) -> int:
        return int.from_bytes(self.take(n_bytes), "little")

    def varint(self) -> int:
        """Of protobuf: seven bits to a byte, the lowest first, at most 64 bits."""
        value = 0
        for shift in range(0, 70, 7):
            octet = self.take(1)[0]
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                break
        if octet >= 0x80:
            self.fail("expected an integer of at most 10 bytes, got a longer one")
        return value & ((1 << 64) - 1)

    def text(self, n: int) -> str:
        if n > MOST_NAME:
            self.fail(f"expected a name of at most {MOST_NAME} bytes, got {n}")
        data = self.take(n)
        try:
            found = data.decode()
        except UnicodeDecodeError:
            self.fail(f"expected a name in UTF-8, got {data[:40]!r}")
        return found
