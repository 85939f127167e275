"""Scales of the rows and columns of a quantized matrix, in quarters of an octave.

A weight is a value of the codebook times 2^((row + column) / 4), with whole numbers for its row and its column. A scale
need not be finer: quantization adapts to it. The factor is one of 511 float32 numbers, so a weight takes one
multiplication and is the same on every machine (docs/format.md 5).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PER_OCTAVE = 4
FARTHEST = 128  # an exponent is from -128 to 127
_MANTISSAS = tuple(float.fromhex(m) for m in ("0x1p0", "0x1.306fe0p0", "0x1.6a09e6p0", "0x1.ae89fap0"))
FACTORS = torch.tensor(
    [math.ldexp(_MANTISSAS[k % PER_OCTAVE], k // PER_OCTAVE) for k in range(-2 * FARTHEST, 2 * FARTHEST - 1)]
)  # of the sums -256..254


def exponents(
    scales: Tensor,  # (n,) above 0
) -> Tensor:  # (n,) int8
    """The nearest exponents of some scales."""
    wanted = (scales.double().log2() * PER_OCTAVE).round()
    return wanted.clamp(-FARTHEST, FARTHEST - 1).to(torch.int8)


def factors(
    rows: Tensor | None,  # (r,) int8 exponents
    columns: Tensor | None,  # (c,)
    shape: tuple[int, int],  # r, c
) -> Tensor:  # (r, c), or a shape that broadcasts to it, float32
    """2^((row + column) / 4). None stands for zeros."""
    r = torch.zeros(1) if rows is None else rows
    c = torch.zeros(1) if columns is None else columns
    total = r.int()[:, None] + c.int()[None, :] + 2 * FARTHEST
    return FACTORS[total].expand(shape)
