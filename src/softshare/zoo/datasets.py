"""The paper's data, split and scaled, and batches that live on one device. MNIST is in the package as IDX files.

MNIST is by Yann LeCun, Corinna Cortes and Christopher J.C. Burges, under CC BY-SA 3.0 (see zoo/data/README.md).
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from softshare.errors import FormatError
from softshare.zoo.cifar10 import Records, load_records

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


@dataclass(frozen=True)
class Augmentation:
    """Shifts images by up to `shift` pixels in both directions, fills with zeros, and mirrors half of them if asked."""

    shift: int
    mirror: bool = False

    def draw(self, n: int, height: int, width: int) -> tuple[Tensor, Tensor]:  # (n, height), (n, width)
        """For each of n images, the rows and the columns of the padded image that the new image takes."""
        down, right = torch.randint(2 * self.shift + 1, (2, n, 1))
        rows, columns = down + torch.arange(height), right + torch.arange(width)
        return rows, torch.where(torch.rand(n, 1) < 0.5, columns.flip(1), columns) if self.mirror else columns

    def apply(
        self,
        images: Tensor,  # (n, channels, height, width)
        rows: Tensor,  # (n, height)
        columns: Tensor,  # (n, width)
    ) -> Tensor:  # the shape of the images
        padded = F.pad(images, [self.shift] * 4)
        places = (rows[:, :, None] * padded.shape[3] + columns[:, None, :]).flatten(1)  # in a flattened channel
        return padded.flatten(2).gather(2, places[:, None].expand(-1, images.shape[1], -1)).view(images.shape)


class Batches:
    """Shuffled mini-batches of a split, with new augmentation in each pass. The last batch may be short.

    Order and augmentation are drawn at the start of a pass, from torch's random state on the CPU, whatever the device
    of the split.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        augmentation: Augmentation | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,  # of the images
    ) -> None:
        self.split, self.batch_size = split, batch_size
        self.augmentation, self.memory_format = augmentation, memory_format

    def __len__(self) -> int:
        return -(-len(self.split) // self.batch_size)

    def __iter__(self) -> Iterator[Split]:
        draws = [torch.randperm(len(self.split))]
        if self.augmentation:
            draws += self.augmentation.draw(len(self.split), *self.split.images.shape[2:])
        return map(self._batch, *(draw.to(self.split.labels.device).split(self.batch_size) for draw in draws))

    def _batch(self, part: Tensor, *moves: Tensor) -> Split:
        batch = self.split[part]
        images = self.augmentation.apply(batch.images, *moves) if self.augmentation else batch.images
        return Split(images.contiguous(memory_format=self.memory_format), batch.labels)


def parse_idx(data: bytes) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes: two zero bytes, type 8, number of dimensions, big-endian sizes, values."""
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
    except ValueError as problem:  # more dimensions than numpy takes, or huge sizes beside a 0
        raise FormatError(f"IDX file of shape {shape}: {problem}") from None


def load_mnist() -> tuple[Split, Split, Split]:
    """Training (55,000), validation (5,000, held out by a fixed seed) and test (10,000); pixels scaled to [0, 1]."""
    images, labels, test_images, test_labels = (parse_idx(_packaged(name)) for name in _MNIST_MD5)
    full, test = _split(images, labels), _split(test_images, test_labels)
    training, validation = _held_out(len(full))
    return full[training], full[validation], test


def load_cifar10(data: str | os.PathLike[str] | None = None) -> tuple[str, tuple[Split, Split, Split]]:
    """The name of the data; training (45,000), validation (5,000, held out by a fixed seed) and test (10,000).

    Each channel is normalized to mean 0 and standard deviation 1 over the training images. `data` is the folder of the
    files or its parent (default: SOFTSHARE_DATA in the environment).
    """
    name, full, test = load_records(data)
    training, validation = (part.numpy() for part in _held_out(len(full.labels)))
    table = _normalization(full.images[training])
    parts = (Records(full.images[part], full.labels[part]) for part in (training, validation))
    train, held_out, last = (_normalized(records, table) for records in (*parts, test))
    return name, (train, held_out, last)


def _held_out(n: int) -> tuple[Tensor, Tensor]:
    """Indices of the training and of the validation examples."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(SPLIT_SEED))
    return order[N_VALIDATION:].sort().values, order[:N_VALIDATION].sort().values


def _normalization(images: NDArray[np.uint8]) -> NDArray[np.float32]:  # (channels, 256)
    """The normalized value of every byte in every channel, from counts: the same on every machine."""
    channels = torch.from_numpy(images).unbind(1)
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in channels]).numpy()
    levels = np.arange(256)
    n = counts.sum(1, keepdims=True)
    mean = (counts @ levels)[:, None] / n
    variance = (counts @ levels**2)[:, None] / n - mean**2
    return np.asarray((levels - mean) / np.sqrt(variance), dtype=np.float32)


def _normalized(records: Records, table: NDArray[np.float32]) -> Split:
    images = np.empty(records.images.shape, dtype=np.float32)
    for channel, values in enumerate(table):
        images[:, channel] = values[records.images[:, channel]]
    return Split(torch.from_numpy(images), torch.from_numpy(records.labels.astype(np.int64)))


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
