"""What is made of a large checkpoint lies on disk: sections that are coded already, and the file itself."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import torch

from softshare.codec.shared_section import Section
from softshare.quantization.quantized import QuantizedTensor

IN_MEMORY = 1 << 24  # bytes; what is larger goes to a temporary file
_PIECE = 1 << 20


class Sections(Mapping[str, Section]):
    """Coded sections by the names of their tensors. A later section of a name takes the place of an earlier one."""

    def __init__(self) -> None:
        self._file = _temporary(self)
        self._places: dict[str, tuple[int, int, Section]] = {}  # without its bytes
        self._lock = threading.Lock()

    def put(self, name: str, section: Section) -> None:
        with self._lock:
            start, length = self._file.seek(0, 2), len(section)
            self._places[name] = start, length, dataclasses.replace(section, data=b"")
            self._file.write(section.data)

    def __getitem__(self, name: str) -> Section:
        start, length, section = self._places[name]
        with self._lock:
            self._file.seek(start)
            return dataclasses.replace(section, data=self._file.read(length))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class FileBytes:
    """The bytes of a whole file."""

    def __init__(self) -> None:
        self.file = _temporary(self)

    def __getstate__(self) -> bytes:
        return b"".join(self.pieces())

    def __setstate__(self, data: bytes) -> None:
        self.file = _temporary(self)
        self.file.write(data)

    def __len__(self) -> int:
        return self.file.seek(0, 2)

    def pieces(self) -> Iterable[bytes]:
        self.file.seek(0)
        return iter(lambda: self.file.read(_PIECE), b"")

    def copied(self) -> FileBytes:
        copy = FileBytes()
        self.file.seek(0)
        shutil.copyfileobj(self.file, copy.file)
        return copy


def _temporary(owner: object) -> BinaryIO:
    """A file that is gone with its owner."""
    file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
    weakref.finalize(owner, file.close)
    return file  # type: ignore[return-value]


def without_indices(tensor: QuantizedTensor) -> QuantizedTensor:
    """The tensor without the memory of its indices, once its section is coded."""
    none = torch.zeros(1, dtype=tensor.indices.dtype).expand(tensor.indices.numel())
    return QuantizedTensor(
        tensor.name, tensor.shape, tensor.dtype, none, tensor.codebook, tensor.row_scales, tensor.column_scales
    )
