"""CIFAR-10 from the files of its authors, in the binary layout. It is not shipped with the package.

CIFAR-10 is by Alex Krizhevsky, Vinod Nair and Geoffrey Hinton (https://www.cs.toronto.edu/~kriz/cifar.html).
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softshare._util.files import read_bytes
from softshare.errors import FormatError, NotAvailableError

VARIABLE = "SOFTSHARE_DATA"
N_RECORDS = 10_000  # in each of the six files
SHAPE = (3, 32, 32)
N_CLASSES = 10
_N_PIXELS = math.prod(SHAPE)

OFFICIAL, JPEG_COPY, UNKNOWN_COPY = "CIFAR-10", "CIFAR-10 (JPEG copy)", "CIFAR-10 (unknown copy)"
# MD5 of the 60,000 labels, the test labels last. The copy has its own order, and its pixels depend on the decoder.
_JPEG_COPY_LABELS = "a46ee9fcecfc44f0be96a2fc2acf2f11"

FOLDER = "cifar-10-batches-bin"
DIGESTS = {  # SHA-1 of the authors' files, the test file last
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}


@dataclass(frozen=True, eq=False)
class Records:
    images: NDArray[np.uint8]  # (n, 3, 32, 32)
    labels: NDArray[np.uint8]  # (n,)


def load_records(data: str | os.PathLike[str] | None = None) -> tuple[str, Records, Records]:
    """The name of the data, the 50,000 training images and the 10,000 test images.

    `data` is the folder of the files or its parent (default: SOFTSHARE_DATA in the environment).
    """
    folder, parts, official = _find(data), [], True
    for name, digest in DIGESTS.items():
        content = read_bytes(folder / name)
        official = official and hashlib.sha1(content, usedforsecurity=False).hexdigest() == digest
        try:
            parts.append(parse_binary(content))
        except FormatError as problem:
            raise FormatError(problem.problem, path=str(folder / name)) from problem
    *train, test = parts
    full = Records(np.concatenate([p.images for p in train]), np.concatenate([p.labels for p in train]))
    return OFFICIAL if official else _copy_name(full, test), full, test


def _copy_name(train: Records, test: Records) -> str:
    labels = hashlib.md5(train.labels.tobytes() + test.labels.tobytes(), usedforsecurity=False).hexdigest()
    return JPEG_COPY if labels == _JPEG_COPY_LABELS else UNKNOWN_COPY


def _find(data: str | os.PathLike[str] | None) -> Path:
    """The folder of the six files: the given one, or the one inside it with the authors' name."""
    given = data if data is not None else os.environ.get(VARIABLE)
    if not given:
        raise NotAvailableError(f"CIFAR-10 is not part of the package. {_HOW_TO_GIVE}")
    root = Path(given)
    for folder in (root / FOLDER, root):
        absent = [name for name in DIGESTS if not (folder / name).is_file()]
        if not absent:
            return folder
        if len(absent) < len(DIGESTS):
            raise NotAvailableError(f"CIFAR-10 in {folder} is not complete: {', '.join(absent)} missing; unpack again")
    raise NotAvailableError(f"CIFAR-10 is not in {root}. {_HOW_TO_GIVE}")


_HOW_TO_GIVE = (
    f"Expected {FOLDER} with {', ..., '.join((min(DIGESTS), max(DIGESTS)))}; give that folder or its parent "
    f"by --data, by data=... or in {VARIABLE}"
)


def parse_binary(data: bytes) -> Records:
    """Read 10,000 records: a label byte, then 3,072 pixel bytes of the red, green and blue planes, row by row."""
    size = 1 + _N_PIXELS
    if len(data) != N_RECORDS * size:
        raise FormatError(
            f"expected {N_RECORDS * size} bytes, {N_RECORDS} records of {size}, got {len(data)}; unpack CIFAR-10 again"
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(N_RECORDS, size)
    labels, pixels = records[:, 0], records[:, 1:]
    if (largest := labels.max()) >= N_CLASSES:
        raise FormatError(f"expected labels from 0 to {N_CLASSES - 1}, got {largest}")
    return Records(np.ascontiguousarray(pixels).reshape(-1, *SHAPE), np.ascontiguousarray(labels))
