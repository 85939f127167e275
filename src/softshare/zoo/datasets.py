"""MNIST, shipped with the package in its original IDX files, and batches that live on one device.

MNIST is by Yann LeCun, Corinna Cortes and Christopher J.C. Burges, under CC BY-SA 3.0 (see zoo/data/README.md).
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softshare.errors import FormatError

N_VALIDATION = 5_000
SPLIT_SEED = 2017

# MD5 of the unpacked files.
_MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@dataclass(frozen=True, eq=False)
class Split:
    images: Tensor  # (n, channels, height, width) float32
    labels: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Split:
        return Split(self.images.to(device), self.labels.to(device))

    def __getitem__(self, index: Tensor) -> Split:
        return Split(self.images[index], self.labels[index])


class Batches:
    """Shuffled mini-batches of a split, re-iterable; the order follows torch's random state; the last may be short."""

    def __init__(self, split: Split, batch_size: int) -> None:
        self.split, self.batch_size = split, batch_size

    def __len__(self) -> int:
        return -(-len(self.split) // self.batch_size)

    def __iter__(self) -> Iterator[Split]:
        order = torch.randperm(len(self.split)).to(self.split.labels.device)
        return (self.split[part] for part in torch.split(order, self.batch_size))


def parse_idx(data: bytes) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes: two zero bytes, type 8, number of dimensions, big-endian sizes, values."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise FormatError(
            f"not an IDX file of unsigned bytes: expected it to start with 00 00 08, got {data[:3].hex(' ')}"
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise FormatError(f"IDX file cut short: {data[3]} dimensions take a header of {start} bytes, got {len(data)}")
    shape = [int(size) for size in np.frombuffer(data[4:start], dtype=">u4")]
    expected = start + math.prod(shape)
    if len(data) != expected:
        raise FormatError(f"IDX file of shape {shape}: expected {expected} bytes, got {len(data)}")
    try:
        return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
    except ValueError as problem:  # more dimensions, or larger sizes beside a 0, than numpy takes
        raise FormatError(f"IDX file of shape {shape}: {problem}") from None


def load_mnist() -> tuple[Split, Split, Split]:
    """Training (55,000), validation (5,000, held out by a fixed seed) and test (10,000); pixels scaled to [0, 1]."""
    images, labels, test_images, test_labels = (parse_idx(_packaged(name)) for name in _MNIST_MD5)
    full, test = _split(images, labels), _split(test_images, test_labels)
    order = torch.randperm(len(full), generator=torch.Generator().manual_seed(SPLIT_SEED))
    return full[order[N_VALIDATION:].sort().values], full[order[:N_VALIDATION].sort().values], test


def _packaged(name: str) -> bytes:
    try:
        data = gzip.decompress((files("softshare.zoo") / "data" / f"{name}.gz").read_bytes())
    except (OSError, EOFError, zlib.error) as problem:
        raise FormatError(f"the packaged {name}.gz cannot be read: {problem}; install softshare again") from problem
    if (found := hashlib.md5(data, usedforsecurity=False).hexdigest()) != _MNIST_MD5[name]:
        raise FormatError(
            f"the packaged {name} is damaged: expected MD5 {_MNIST_MD5[name]}, got {found}; install again"
        )
    return data


def _split(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Split:
    return Split(torch.from_numpy(images.astype(np.float32) / 255)[:, None], torch.from_numpy(labels.astype(np.int64)))
