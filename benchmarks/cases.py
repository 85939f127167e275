"""The input of the codecs: the shared tensors of `.sws` files, and synthetic ones of any size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from softshare.codec import decode
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

N_VALUES = 17  # of a synthetic codebook: zero and 16 free components, as the default prior has
SPREAD = 1.0  # standard deviation of the log of a row's, and of a column's, density
_CHUNK = 1 << 22  # weights drawn at a time

# The weights of VGG-16, 138.3 M in 16 tensors, 103 M of them in one.
VGG16 = [
    *((64, 3, 3, 3), (64, 64, 3, 3), (128, 64, 3, 3), (128, 128, 3, 3), (256, 128, 3, 3), (256, 256, 3, 3)),
    *((256, 256, 3, 3), (512, 256, 3, 3), (512, 512, 3, 3), (512, 512, 3, 3), (512, 512, 3, 3), (512, 512, 3, 3)),
    *((512, 512, 3, 3), (4096, 25088), (4096, 4096), (1000, 4096)),
]


@dataclass(frozen=True)
class Case:
    """A name and a function that makes the weights, so that only one large case exists at a time."""

    name: str
    n_weights: int
    make: Callable[[], QuantizedWeights]


def network_name(path: Path) -> str:
    if path.parent.name.startswith("seed-"):  # a kept result: results/EXPERIMENT/METHOD/seed-N/model.sws
        return f"{path.parents[2].name}-{path.parents[1].name}"
    return path.parent.name if path.stem == "model" else path.stem


def network(path: Path) -> Case:
    """The shared tensors of a file, without its rest."""
    weights = decode(path.read_bytes())
    return Case(network_name(path), weights.n_shared, lambda: QuantizedWeights(weights.shared, {}, {}))


def synthetic(name: str, shapes: Sequence[tuple[int, ...]], density: float, structured: bool, seed: int = 0) -> Case:
    def make() -> QuantizedWeights:
        rng = np.random.default_rng(seed)
        codebook = _codebook()
        tensors = (_indices(rng, math.prod(s[:1]), math.prod(s[1:]), density, structured) for s in shapes)
        shared = (
            QuantizedTensor(f"layer{k}.weight", s, torch.float32, torch.from_numpy(t), codebook)
            for k, (s, t) in enumerate(zip(shapes, tensors, strict=True))
        )
        return QuantizedWeights(tuple(shared), {}, {})

    return Case(name, sum(math.prod(s) for s in shapes), make)


def _codebook() -> torch.Tensor:
    """Zero, then 8 magnitudes with both signs."""
    magnitudes = torch.arange(1, 1 + N_VALUES // 2) / 16
    return torch.cat([torch.zeros(1), torch.stack([-magnitudes, magnitudes], 1).flatten()])


def _indices(
    rng: np.random.Generator, rows: int, cols: int, density: float, structured: bool
) -> npt.NDArray[np.uint8]:  # (rows * cols,)
    """Draw non-zeros independently, with a value whose probability falls by 1/e in 4 values.

    If i.i.d., all have the probability `density`. If structured, it is density * row factor * column factor, at most 1.
    Both factors are log-normal with mean 1. Clipping makes the tensor a little sparser.
    """
    of_row, of_col = np.ones(rows, np.float32), np.ones(cols, np.float32)
    if structured:
        of_row, of_col = (rng.lognormal(-(SPREAD**2) / 2, SPREAD, n).astype(np.float32) for n in (rows, cols))
    frequency = np.exp(-np.arange(N_VALUES - 1) / 4)
    bounds = np.cumsum(frequency / frequency.sum())[:-1]
    out = np.zeros((rows, cols), np.uint8)
    step = max(1, _CHUNK // cols)
    for start in range(0, rows, step):
        part = out[start : start + step]
        nonzero = rng.random(part.shape, np.float32) < density * of_row[start : start + step, None] * of_col
        part[nonzero] = 1 + np.searchsorted(bounds, rng.random(int(nonzero.sum())), side="right")
    return out.reshape(-1)


def small(quick: bool) -> list[Case]:
    name, shape = ("0.25M", [(500, 500)]) if quick else ("1M", [(1000, 1000)])
    return [
        synthetic(f"{name} {density:.1%} {kind}", shape, density, kind == "structured")
        for kind in ("iid", "structured")
        for density in (0.002, 0.02, 0.2)
    ]


def large() -> list[Case]:
    return [
        synthetic("10M 2.0% iid", [(3200, 3125)], 0.02, False),
        synthetic("10M 2.0% structured", [(3200, 3125)], 0.02, True),
        synthetic("138M 2.0% iid", [(4096, 33792)], 0.02, False),
        synthetic("138M 2.0% structured", [(4096, 33792)], 0.02, True),
        synthetic("138M 2.0% structured, 16 tensors", [(2048, 4224)] * 16, 0.02, True),
        synthetic("138M 2.0% structured, VGG-16", VGG16, 0.02, True),
    ]
