"""GGUF files, written byte by byte, and such files that lie."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from samples import octets

NUMBERS = {
    torch.float32: 0, torch.float16: 1, torch.int8: 24, torch.int16: 25, torch.int32: 26, torch.int64: 27,
    torch.float64: 28, torch.bfloat16: 30,
}  # fmt: skip
SIZES = {2: 32, 3: 32, 6: 32, 7: 32, 8: 32}  # weights of a block; 256 of the others

Quantized = tuple[int, int, npt.NDArray[np.uint8]]  # number of the type, rows, blocks


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def text(value: str) -> bytes:
    return u64(len(value.encode())) + value.encode()


def write(
    path: Path,
    state: Mapping[str, Tensor],
    quantized: Mapping[str, Quantized] | None = None,
    *,
    version: int = 3,
    alignment: int = 32,
    **lies: Any,  # of counts, and of the last tensor
) -> Path:
    """Values of the metadata of several types come first. Each of the lies stands in place of what is true."""
    items: list[tuple[str, int, tuple[int, ...], bytes]] = []
    for name, t in state.items():
        items.append((name, NUMBERS[t.dtype], tuple(t.shape), octets(t)))
    for name, (number, rows, blocks) in (quantized or {}).items():
        items.append((name, number, (rows, len(blocks) * SIZES.get(number, 256) // rows), blocks.tobytes()))
    values = [
        text("general.architecture") + u32(8) + (text("llama") if "text" not in lies else u64(lies["text"])),
        text("general.alignment") + u32(4) + u32(alignment),
        text("eps") + u32(6) + u32(0),
        text("words") + u32(9) + u32(8) + u64(3) + text("a") + text("") + text("héllo"),
        text("scores") + u32(9) + u32(6) + u64(5) + bytes(20),
        text("flag") + u32(7) + b"\1",
    ]
    head = b"GGUF" + u32(version) + u64(lies.get("n_tensors", len(items))) + u64(lies.get("n_values", len(values)))
    head += b"".join(values)
    data, step = b"", max(1, alignment)
    for k, (name, number, shape, values_of) in enumerate(items):
        last = k == len(items) - 1
        own = lies if last else {}
        if last and "twice" in lies:
            name = items[0][0]
        sizes = own.get("shape", shape)
        head += text(name) + u32(len(sizes)) + b"".join(u64(size) for size in reversed(sizes))
        head += u32(own.get("kind", number)) + u64(own.get("offset", len(data)))
        data += values_of + bytes(-len(values_of) % step)
    path.write_bytes(head + bytes(-len(head) % step) + data)
    return path
