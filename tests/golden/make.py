"""Writes the golden files of this folder: `PYTHONPATH=tests python -m golden.make --overwrite`.

They are files of version 1 forever: they decode to what expected.json says, and writing them again gives the same
bytes. So this script runs only for a new version of the format. A few lines of integer arithmetic make the contents of
the files. What they must decode to follows from that here, by torch alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from softshare.codec import encode
from softshare.config import EncodeConfig
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights, index_dtype

FOLDER = Path(__file__).parent
EXPECTED = FOLDER / "expected.json"
FILES = {
    "han": EncodeConfig(codec="han"),
    "adaptive": EncodeConfig(codec="adaptive"),
    "adaptive-none": EncodeConfig(codec="adaptive", codebook_dtype="bfloat16", rest_dtype="float16", names="none"),
}
SMALL = 1e-6  # in a codebook: below float16's normal range, so that 'auto' stores it in float32


class Net(nn.Module):
    """A convolution with its batch norm, a large layer, a head tied to an embedding, and buffers of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(49, 30)
        self.wide = nn.Parameter(torch.zeros(1025, 32, 32))  # more than 2^20 weights: the fast model
        self.embed = nn.Embedding(12, 10, dtype=torch.bfloat16)
        self.head = nn.Linear(10, 12, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(5, 4, dtype=torch.float16)
        self.scale = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.register_buffer("mask", torch.zeros(3, 7, dtype=torch.bool))
        self.register_buffer("levels", torch.zeros(16, dtype=torch.int8))
        self.register_buffer("counts", torch.zeros(4, dtype=torch.int16))
        self.register_buffer("steps", torch.zeros(4, dtype=torch.int32))
        self.register_buffer("pixels", torch.zeros(40, dtype=torch.uint8))
        self.register_buffer("halves", torch.zeros(20, dtype=torch.float16))
        self.register_buffer("brains", torch.zeros(20, dtype=torch.bfloat16))
        self.register_buffer("empty", torch.zeros(0, 3))


def numbers(seed: int) -> Iterator[int]:
    """16 bits at a time, from a linear congruential generator of 32 bits."""
    state = seed
    while True:
        state = (1664525 * state + 1013904223) % (1 << 32)
        yield state >> 16


def indices(shape: tuple[int, ...], n_values: int, per_mille: int, seed: int) -> Tensor:
    """About `per_mille` of a thousand weights are not zero. Each stride leads to one, so a large tensor is cheap."""
    out = torch.zeros(math.prod(shape), dtype=index_dtype(n_values))
    random, at = numbers(seed), 0
    stride = max(1, 2000 // per_mille - 1)
    while True:
        at += next(random) % stride
        if at >= out.numel():
            return out
        out[at] = 1 + next(random) % (n_values - 1)
        at += 1


def codebook(numerators: list[int]) -> Tensor:
    """0, then multiples of 2^-16, every third one negative. float32 holds all, float16 and bfloat16 only some."""
    return torch.tensor([0.0, *(n / 65536 * (-1 if k % 3 == 1 else 1) for k, n in enumerate(numerators))])


def floats(n: int, seed: int) -> Tensor:
    """Numbers from -2 to 2, in steps of 2^-14. float32 holds all, float16 only some."""
    random = numbers(seed)
    return torch.tensor([(next(random) - 32768) / 16384 for _ in range(n)])


def recipe() -> QuantizedWeights:
    """The contents of all files, before rounding."""
    usual = codebook([37 * (k + 2) ** 2 for k in range(16)])
    many = codebook([101 * (k + 1) for k in range(299)])
    fine = torch.tensor([0.0, SMALL, -0.75])
    state = Net().state_dict()
    plan: dict[str, tuple[Tensor, int]] = {
        "conv.weight": (usual, 400),
        "conv.bias": (usual, 900),
        "fc.weight": (usual, 60),
        "fc.bias": (fine, 300),
        "wide": (usual, 1),
        "embed.weight": (many, 700),
        "head.bias": (many, 1000),
    }
    shared = [
        QuantizedTensor(name, tuple(state[name].shape), state[name].dtype,
                        indices(tuple(state[name].shape), len(book), per_mille, 1 + k), book)
        for k, (name, (book, per_mille)) in enumerate(plan.items())
    ]  # fmt: skip
    zeros = torch.zeros(20, dtype=torch.uint8)
    shared.append(QuantizedTensor("unused.weight", (4, 5), torch.float16, zeros, usual))
    random = numbers(99)
    rest = {
        "scale": torch.tensor(1 / 3).double(),  # float32 holds it
        "norm.weight": floats(8, 20),
        "norm.bias": torch.zeros(8),
        "norm.running_mean": floats(8, 21),
        "norm.running_var": floats(8, 22).abs(),
        "norm.num_batches_tracked": torch.tensor(123_456_789_012),
        "unused.bias": floats(4, 23).half(),
        "mask": torch.tensor([next(random) % 3 == 0 for _ in range(21)]).reshape(3, 7),
        "levels": torch.arange(-8, 8, dtype=torch.int8),
        "counts": torch.tensor([next(random) - 32768 for _ in range(4)], dtype=torch.int16),
        "steps": torch.tensor([next(random) << 8 for _ in range(4)], dtype=torch.int32),
        "pixels": torch.tensor([next(random) % 4 for _ in range(40)], dtype=torch.uint8),
        "halves": torch.tensor([math.nan, math.inf, -math.inf, -0.0, *floats(16, 24).tolist()], dtype=torch.float16),
        "brains": floats(20, 25).bfloat16(),
        "empty": torch.zeros(0, 3),
    }
    order = tuple(name for name in state if name != "head.weight")
    by_name = {t.name: t for t in shared}
    return QuantizedWeights(
        tuple(by_name[name] for name in order if name in by_name),
        {name: rest[name] for name in order if name in rest},
        {"head.weight": "embed.weight"},
        order,
    )


def decoded(weights: QuantizedWeights, config: EncodeConfig) -> dict[str, Tensor]:
    """What a file with this config must decode to, by definition, without decoding."""
    out = {}
    for name, tensor in weights.tensors.items():
        if isinstance(tensor, QuantizedTensor):
            stored: str = config.codebook_dtype
            if stored == "auto":
                stored = "float32" if SMALL in tensor.codebook else "float16"
            values = tensor.codebook.to(getattr(torch, stored)).float().to(tensor.dtype)
            out[name] = values[tensor.indices.long()].reshape(tensor.shape)
        else:
            narrow = getattr(torch, config.rest_dtype)
            narrows = tensor.is_floating_point() and narrow.itemsize < tensor.dtype.itemsize
            out[name] = tensor.to(narrow).to(tensor.dtype) if narrows else tensor
    return out | {alias: out[name] for alias, name in weights.tied.items()}


def digest(tensor: Tensor) -> str:
    """The dtype, the shape and a digest of the values' bytes."""
    values = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{str(tensor.dtype)[6:]} {list(tensor.shape)} {hashlib.sha256(values).hexdigest()}"


def main(overwrite: bool) -> None:
    present = [path.name for path in FOLDER.glob("*.sws")]
    if present and not overwrite:
        raise SystemExit(f"{', '.join(sorted(present))}: these must decode forever; give --overwrite to replace them")
    weights = recipe()
    for stem, config in FILES.items():
        (FOLDER / f"{stem}.sws").write_bytes(encode(weights, config))
    digests = {
        stem: {name: digest(t) for name, t in decoded(weights, config).items()} for stem, config in FILES.items()
    }
    EXPECTED.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main("--overwrite" in sys.argv)
