"""CIFAR-10's files in small, written without the package's own code."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

N = 20  # records in a file
Bytes = NDArray[np.uint8]


def batches(seed: int = 0) -> list[tuple[Bytes, Bytes]]:
    """Six files' pixels (N, 3072) and labels (N,); every class is there."""
    random = np.random.default_rng(seed)
    return [
        (random.integers(0, 256, (N, 3072), dtype=np.uint8), random.permutation(np.arange(N) % 10).astype(np.uint8))
        for _ in range(6)
    ]


def binary(pixels: Bytes, labels: Bytes) -> bytes:
    return b"".join(bytes([label]) + image.tobytes() for image, label in zip(pixels, labels, strict=True))


def text(value: bytes) -> bytes:
    """A string as Python 2 pickled it."""
    return b"T" + struct.pack("<i", len(value)) + value


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def array(shape: tuple[int, ...], content: bytes, dtype: bytes = b"u1", by_columns: bytes = b"\x89") -> bytes:
    """Opcodes of an array of numpy under Python 2: reconstructed empty, then given version, shape, dtype and bytes."""
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    kind = b"cnumpy\ndtype\n" + text(dtype) + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    sizes = b"(" + b"".join(map(number, shape)) + b"t"
    return empty + b"(" + number(1) + sizes + kind + by_columns + text(content) + b"tb"


def pickled(**values: bytes) -> bytes:
    """A dict, of the opcodes of its values."""
    items = b"".join(text(name.encode()) + value for name, value in values.items())
    return b"\x80\x02}q\x00(" + items + b"u."


def python(pixels: Bytes, labels: Bytes) -> bytes:
    """As the authors' files, read off with pickletools: protocol 2, byte strings, two things more than are needed."""
    return pickled(
        batch_label=text(b"training batch 1 of 5"),
        labels=b"](" + b"".join(number(int(label)) for label in labels) + b"e",
        data=array(pixels.shape, pixels.tobytes()),
        filenames=b"](" + b"".join(text(b"leptodactylus.png") for _ in labels) + b"e",
    )


NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def write_binary(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, batch in zip(NAMES, batches(), strict=True):
        (folder / f"{name}.bin").write_bytes(binary(*batch))
    return folder


def write_python(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, batch in zip(NAMES, batches(), strict=True):
        (folder / name).write_bytes(python(*batch))
    return folder
