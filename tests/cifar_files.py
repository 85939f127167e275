"""Small files in the layout of CIFAR-10, written without the package's own code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

N = 20  # records in a file
Bytes = NDArray[np.uint8]


def batches(seed: int = 0) -> list[tuple[Bytes, Bytes]]:
    """The pixels (N, 3072) and labels (N,) of six files. Each file has every class."""
    random = np.random.default_rng(seed)
    return [
        (random.integers(0, 256, (N, 3072), dtype=np.uint8), random.permutation(np.arange(N) % 10).astype(np.uint8))
        for _ in range(6)
    ]


def binary(pixels: Bytes, labels: Bytes) -> bytes:
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(pixels, labels, strict=True))


NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def write_binary(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, batch in zip(NAMES, batches(), strict=True):
        (folder / f"{name}.bin").write_bytes(binary(*batch))
    return folder
