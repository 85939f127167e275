"""Writes the golden files of differences: `PYTHONPATH=tests python -m golden.deltas.make --overwrite`.

Their base is written down by a formula, so that nothing else is needed to decode them.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch
from torch import Tensor

from golden.make import indices
from golden.v2.make import large_codes
from softshare.codec import encode
from softshare.codec.base import open_base
from softshare.config import EncodeConfig
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

FOLDER = Path(__file__).parent
FILES = ("delta", "alone")
BOOK = torch.tensor([0.0, 0.25, -0.5, 0.75])


def base() -> dict[str, Tensor]:
    return {
        "a": torch.arange(48.0).reshape(6, 8) / 16,
        "b": torch.arange(5.0),
        "h": torch.arange(24).reshape(4, 6).bfloat16(),
    }


def wide_base() -> dict[str, Tensor]:
    """Of `alone`: float64 too, a tensor of another shape, one of integers, and names that differ beyond ASCII."""
    steps = torch.arange(1200, dtype=torch.float64)
    return {
        "sum": (steps / 7).reshape(30, 40).float(),
        "wide": 1 + (2.0**-11 + 2.0**-40) * steps.reshape(30, 40),
        "stands": steps.reshape(30, 40).half(),
        "reshaped": steps.reshape(40, 30).float(),
        "numbers": torch.arange(1200).reshape(30, 40),
        "\uff5e": torch.tensor([True, False]),
        "\U0001f600": -steps[:3].bfloat16(),
    }


def contents(stem: str) -> QuantizedWeights:
    if stem == "alone":
        return _alone()
    a = torch.zeros(6, 8, dtype=torch.uint8)
    a[1], a[4, 3] = 1, 2
    shared = (
        QuantizedTensor("a", (6, 8), torch.float32, a.flatten(), BOOK),
        QuantizedTensor("h", (4, 6), torch.bfloat16, 3 * torch.eye(4, 6, dtype=torch.uint8).flatten(), BOOK),
    )
    rest = {"b": torch.tensor([0.0, 1.0, 2.0, 3.0, 4.5])}
    return QuantizedWeights(shared, rest, {}, ("a", "b", "h"), base=open_base(base()).digest)


def _alone() -> QuantizedWeights:
    """Dense differences with scales and the static code, and tensors that are none."""
    dense = indices((30, 40), 4, 600, 3)
    rows, columns = (torch.arange(30) % 5 - 12).to(torch.int8), (torch.arange(40) % 3 * 7 - 40).to(torch.int8)
    one = QuantizedTensor("sum", (30, 40), torch.float32, dense, BOOK, rows, columns)
    shared = (
        one,
        dataclasses.replace(one, name="wide", dtype=torch.float16),  # a base of float64
        QuantizedTensor("stands", (30, 40), torch.float16, dense, BOOK),
        QuantizedTensor("reshaped", (30, 40), torch.bfloat16, dense, BOOK),
        QuantizedTensor("numbers", (30, 40), torch.float64, dense, BOOK),
        QuantizedTensor("new", (1200,), torch.float32, dense, BOOK),
    )
    order = tuple(t.name for t in shared)
    return QuantizedWeights(
        shared, {}, {"tied": "sum"}, order, base=open_base(wide_base()).digest, alone=("stands",)
    )  # fmt: skip


def expected(stem: str) -> dict[str, Tensor]:
    """By definition (docs/format.md 3.5), without decoding."""
    weights, under = contents(stem), base() if stem == "delta" else wide_base()
    out = dict(under) | dict(weights.rest)
    for t in weights.shared:
        of = under.get(t.name)
        step = dataclasses.replace(t, dtype=torch.float32).dense()
        if t.name in weights.alone or of is None or of.shape != step.shape or not of.is_floating_point():
            out[t.name] = step.to(t.dtype)
            continue
        values = of.double() + step.double()
        if of.dtype != torch.float64:
            values = values.float()
        out[t.name] = torch.where(step == 0, of.double(), values.double()).float().to(t.dtype)
    return out | {alias: out[name] for alias, name in weights.tied.items()}


def encoded(stem: str) -> bytes:
    if stem == "delta":
        return encode(contents(stem))
    with large_codes(4):
        return encode(contents(stem), EncodeConfig(speed="fastest"))


def main(overwrite: bool) -> None:
    if any(FOLDER.glob("*.sws")) and not overwrite:
        raise SystemExit("these must decode forever; give --overwrite to replace them")
    for stem in FILES:
        (FOLDER / f"{stem}.sws").write_bytes(encoded(stem))


if __name__ == "__main__":
    main("--overwrite" in sys.argv)
