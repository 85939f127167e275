"""CIFAR-10 from the files of its authors, in the binary or the python layout. It is not shipped with the package.

CIFAR-10 is by Alex Krizhevsky, Vinod Nair and Geoffrey Hinton (https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softshare.errors import FormatError, NotAvailableError
from softshare.files import read_bytes

VARIABLE = "SOFTSHARE_DATA"
N_RECORDS = 10_000  # in each of the six files
SHAPE = (3, 32, 32)
N_CLASSES = 10
_N_PIXELS = math.prod(SHAPE)

OFFICIAL, JPEG_COPY, UNKNOWN_COPY = "CIFAR-10", "CIFAR-10 (JPEG copy)", "CIFAR-10 (unknown copy)"
# MD5 of the 60,000 labels, those of the test last: the copy has an order of its own, and JPEG decoders differ in pixels
_JPEG_COPY_LABELS = "a46ee9fcecfc44f0be96a2fc2acf2f11"


@dataclass(frozen=True, eq=False)
class Records:
    images: NDArray[np.uint8]  # (n, 3, 32, 32)
    labels: NDArray[np.uint8]  # (n,)


@dataclass(frozen=True)
class Layout:
    folder: str
    parse: Callable[[bytes], Records]
    algorithm: str
    digests: dict[str, str]  # of the authors' files, the test's last


def load_records(data: str | os.PathLike[str] | None = None) -> tuple[str, Records, Records]:
    """What the data may be called, the 50,000 training and the 10,000 test images.

    `data`, or the environment's SOFTSHARE_DATA, is the folder of the files or one that holds it.
    """
    folder, layout = _find(data)
    parts, official = [], True
    for name, digest in layout.digests.items():
        content = read_bytes(folder / name)
        official = official and hashlib.new(layout.algorithm, content, usedforsecurity=False).hexdigest() == digest
        try:
            parts.append(layout.parse(content))
        except FormatError as problem:
            raise FormatError(problem.problem, path=str(folder / name)) from problem
    *train, test = parts
    full = Records(np.concatenate([p.images for p in train]), np.concatenate([p.labels for p in train]))
    return OFFICIAL if official else _copy_name(full, test), full, test


def _copy_name(train: Records, test: Records) -> str:
    labels = hashlib.md5(train.labels.tobytes() + test.labels.tobytes(), usedforsecurity=False).hexdigest()
    return JPEG_COPY if labels == _JPEG_COPY_LABELS else UNKNOWN_COPY


def _find(data: str | os.PathLike[str] | None) -> tuple[Path, Layout]:
    """The first complete layout, in the folder or below it."""
    given = data if data is not None else os.environ.get(VARIABLE)
    if not given:
        raise NotAvailableError(f"CIFAR-10 is not in the package. {_how_to_give()}")
    root = Path(given)
    places = [(folder, layout) for layout in LAYOUTS for folder in (root / layout.folder, root)]
    missing = [[name for name in layout.digests if not (folder / name).is_file()] for folder, layout in places]
    for place, absent in zip(places, missing, strict=True):
        if not absent:
            return place
    for (folder, layout), absent in zip(places, missing, strict=True):
        if len(absent) < len(layout.digests):
            raise NotAvailableError(f"CIFAR-10 in {folder} is not complete: there is no {', '.join(absent)}")
    raise NotAvailableError(f"CIFAR-10 is not in {root}. {_how_to_give()}")


def _how_to_give() -> str:
    first_last = ((layout.folder, *list(layout.digests)[:: len(layout.digests) - 1]) for layout in LAYOUTS)
    wanted = " or ".join(f"{folder} with {first}, ..., {last}" for folder, first, last in first_last)
    return f"Looked for {wanted}; give that folder, or one that holds it, by --data, by data=... or in {VARIABLE}"


# The binary layout


def parse_binary(data: bytes) -> Records:
    """10,000 records of one byte of label and 3,072 of pixels: the red, the green, the blue plane, row by row."""
    size = 1 + _N_PIXELS
    if len(data) != N_RECORDS * size:
        raise FormatError(
            f"expected {N_RECORDS * size} bytes, {N_RECORDS} records of {size}, got {len(data)}; unpack CIFAR-10 again"
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(N_RECORDS, size)
    return _records(records[:, 1:], records[:, 0])


def _records(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Records:
    if (largest := labels.max()) >= N_CLASSES:
        raise FormatError(f"expected labels from 0 to {N_CLASSES - 1}, got {largest}")
    return Records(np.ascontiguousarray(pixels).reshape(-1, *SHAPE), np.ascontiguousarray(labels))


# The python layout


def parse_python(data: bytes) -> Records:
    """A pickled dict with b"data", an array of bytes (10000, 3072), and b"labels", a list of numbers.

    A pickle may call whatever it names. Here it may name the few functions that those files do, and gets stand-ins for
    these: nothing of what the file says is imported or run.
    """
    try:
        content = _Unpickler(BytesIO(data), encoding="bytes").load()
    except FormatError:
        raise
    except Exception as problem:  # malformed pickles end in errors of all kinds
        raise FormatError(f"not a pickle as CIFAR-10 has them ({problem!r}); unpack CIFAR-10 again") from problem
    array, labels = (content.get(key) if isinstance(content, dict) else None for key in (b"data", b"labels"))
    if not isinstance(array, _Array) or not isinstance(labels, list):
        raise FormatError("expected a pickled dict with an array b'data' and a list b'labels'; unpack CIFAR-10 again")
    if array.shape != (N_RECORDS, _N_PIXELS) or len(labels) != N_RECORDS:
        raise FormatError(
            f"expected data of shape {(N_RECORDS, _N_PIXELS)} and {N_RECORDS} labels, got {array.shape} and "
            f"{len(labels)}; unpack CIFAR-10 again"
        )
    if not all(type(label) is int and 0 <= label < N_CLASSES for label in labels):
        raise FormatError(f"expected labels from 0 to {N_CLASSES - 1}, got others")
    pixels = np.frombuffer(array.content, dtype=np.uint8).reshape(array.shape)
    return _records(pixels, np.array(labels, dtype=np.uint8))


class _Unpickler(pickle._Unpickler):
    """In Python, not in C: there a number in the file decides how much memory is taken."""

    def find_class(self, module: str, name: str) -> Any:
        stand_in = _STAND_INS.get((module, name))
        if stand_in is None:
            raise FormatError(f"the pickle asks for {module}.{name}, which no file of CIFAR-10 does; it was not run")
        return _Function(stand_in)


class _Function:
    """What a pickle may call, and nothing else: without a state that it could change."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        raise FormatError("the pickle changes a function, which no file of CIFAR-10 does; it was not run")


class _Dtype:
    __slots__ = ("kind",)

    def __init__(self, kind: Any, *_: Any) -> None:
        self.kind = kind

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, which bytes do not have."""


class _Array:
    """Numpy's array of bytes, as far as a pickle tells it."""

    __slots__ = ("content", "shape")

    def __init__(self, *_: Any) -> None:
        self.shape: tuple[int, ...] = ()
        self.content = b""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, content = state
        if not isinstance(dtype, _Dtype) or dtype.kind not in (b"u1", "u1") or by_columns:
            raise FormatError("expected an array of unsigned bytes, row by row, got another one")
        if not all(type(size) is int and size >= 0 for size in shape) or not isinstance(content, bytes):
            raise FormatError(f"expected an array's shape and bytes, got {shape!r} and a {type(content).__name__}")
        if len(content) != math.prod(shape):
            raise FormatError(f"array of shape {shape}: expected {math.prod(shape)} bytes, got {len(content)}")
        self.shape, self.content = tuple(shape), content


def _encode(text: Any, encoding: Any) -> bytes:
    """How Python 3 writes bytes where it must write as Python 2 did."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise FormatError(f"expected latin1 text, got a {type(text).__name__} in {encoding!r}")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,  # written anew, with numpy 2
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,  # written anew, with Python 3
}

LAYOUTS = (
    Layout(
        "cifar-10-batches-bin",
        parse_binary,
        "sha1",
        {
            "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
            "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
            "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
            "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
            "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
            "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
        },
    ),
    Layout(
        "cifar-10-batches-py",
        parse_python,
        "md5",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
)
