"""What a header of a `.sws` file holds (docs/format.md 3 and 4): see `header_writing` and `header_reading`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from softshare.config.settings import Codec
from softshare.errors import ModelError

if TYPE_CHECKING:
    from softshare.codec.compact.unpacking import Compact

MAGIC = b"\x89SWS"  # 3.1
VERSIONS = (1, 2)  # 3.1: a file has version 2 only if it has something that version 1 has not
CODECS: tuple[Codec, ...] = ("han", "adaptive")  # 3.1: bit 0 of the flags
HAS_NAMES = 2  # bit 1
HAS_BASE = 4  # bit 2
COMPACT = 8  # bit 3
BASE_BYTES = 32  # of the digest of a base
MAX_ENTRIES = 1 << 16  # section 7 has all the limits
MAX_CODEBOOKS = 1 << 16
MAX_DIMENSIONS = 64  # torch's own
MAX_VALUES = 1 << 40  # of all tensors together
MAX_NAME_BYTES = 1 << 12
MAX_NAMES_BYTES = 1 << 24  # of all names together, because a name may repeat most of the one before it
SUFFIXES = (  # 4.3
    b"", b".weight", b".bias", b".running_mean", b".running_var", b".num_batches_tracked", b".in_proj_weight",
    b".in_proj_bias",
)  # fmt: skip
LONG_PREFIX = 31
VECTOR = 128  # 4.4
DTYPES: dict[str, torch.dtype] = {  # 4.2: a dtype's number is its place here
    name: getattr(torch, name)
    for name in (
        "float32", "float16", "bfloat16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool",
    )
}  # fmt: skip
FLOATS = tuple(name for name, dtype in DTYPES.items() if dtype.is_floating_point)
CODEBOOK_DTYPES = FLOATS[:3]  # 3.2
DTYPE_NAMES = tuple(DTYPES)


@dataclass(frozen=True, eq=False)
class Codebook:
    """Values as float32, ordered by magnitude from 0.0, and the dtype that stores them."""

    values: npt.NDArray[np.float32]
    dtype: str


@dataclass(frozen=True)
class Shared:
    """How a shared tensor is stored (4.2)."""

    dtype: str  # that it decodes to
    codebook: int
    row_scales: bool = False
    column_scales: bool = False
    static: bool = False  # whether it has the static code, not that of the file's codec
    bands: bool = False  # whether the file's codec codes bands of rows, each for itself

    @property
    def version(self) -> int:
        """The earliest version of the format that has such tensors."""
        return 2 if self.row_scales or self.column_scales or self.static or self.bands else 1


@dataclass(frozen=True)
class Rest:
    """How a tensor that is not shared is stored (4.2)."""

    dtype: str  # that it decodes to
    stored: str  # dtype of the values in its section
    planes: bool  # whether it is coded by byte plane; else it is raw
    static: bool = False  # whether its planes have the static code

    @property
    def version(self) -> int:
        """The earliest version of the format that has such tensors."""
        return 2 if self.static else 1


@dataclass(frozen=True)
class Entry:
    """One stored tensor. If the file has no names, the network gives name and shape."""

    name: str
    shape: tuple[int, ...]
    kind: Shared | Rest
    n_bytes: int  # of its section
    offset: int = 0  # of its section, in the file

    @property
    def n(self) -> int:
        return math.prod(self.shape)

    @property
    def decoded_bytes(self) -> int:
        return self.n * DTYPES[self.kind.dtype].itemsize


FIRST_KIND = Shared("float32", 0)  # the first entry may repeat this
NO_SHAPE: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Header:
    codec: str
    has_names: bool
    codebooks: tuple[Codebook, ...]
    entries: tuple[Entry, ...]
    tied: dict[str, str]
    base: bytes = b""  # digest of the checkpoint that the file differs from, if it does
    alone: tuple[str, ...] = ()  # shared tensors that are no differences all the same
    compact: Compact | None = None  # where the code of all tensors begins, if there is one for the whole file

    @property
    def version(self) -> int:
        return max((2 if self.base or self.compact else 1, *(e.kind.version for e in self.entries)))


def n_values(shape: tuple[int, ...]) -> int:
    """The number of values, with a size of 0 counted as 1, so that the sizes beside it are bounded too."""
    return math.prod(max(size, 1) for size in shape)


def dtype_name(name: str, dtype: torch.dtype) -> str:
    known = str(dtype).removeprefix("torch.")
    if known not in DTYPES:
        raise ModelError(f"tensor {name!r}: cannot store {dtype}; expected one of {', '.join(DTYPES)}")
    return known
