"""The arg-max and the sums over each component on the CPU, compiled by numba."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softshare.prior.kernels.assign_torch import Summed
from softshare.prior.kernels.sweep_numba import BLOCK, NO_TENSOR, Floats, as_float32, compiled, cut, in_threads

Integers = npt.NDArray[Any]
LANES = 8  # sums of each component side by side: with one, each addition would wait for the one before it


@compiled
def _assign_part(
    w: Floats,
    constant: Floats,
    mean: Floats,
    half_precision: Floats,
    out: Integers,
    values: Floats,  # empty: not wanted
) -> None:
    largest, index = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    for start in range(0, len(w), BLOCK):
        block = w[start : start + BLOCK]
        n = len(block)
        for i in range(n):
            largest[i] = np.float32(-np.inf)
            index[i] = 0
        for j in range(len(mean)):
            c, m, h = constant[j], mean[j], half_precision[j]
            for i in range(n):
                distance = block[i] - m
                value = c - h * distance * distance
                index[i] = np.int32(j) if value > largest[i] else index[i]
                largest[i] = max(largest[i], value)
        for i in range(n):
            out[start + i] = index[i]
        if len(values) > 0:
            for i in range(n):
                values[start + i] = mean[index[i]]


def assign(
    w: Tensor, log_mixing: Tensor, mean: Tensor, log_var: Tensor, index: Tensor, kept: Tensor | None = None
) -> None:
    """An `Assign`. Its constants are computed in float64, so that each is rounded once."""
    wide = log_var.numpy().astype(np.float64)  # in numpy: ten calls of torch take as long as a thousand weights
    with np.errstate(all="ignore"):  # the loss reports a mixture that diverges
        constant = log_mixing.numpy() - 0.5 * (wide + math.log(2 * math.pi))
        c, h = constant.astype(np.float32), (0.5 * np.exp(-wide)).astype(np.float32)
    m = mean.numpy()
    parts, index_parts, kept_parts = cut([w]), cut([index]), cut([] if kept is None else [kept])

    def one(k: int) -> None:
        own = kept_parts[k].copy_(parts[k]) if kept_parts else parts[k]
        with as_float32(parts[k] if kept_parts else NO_TENSOR, add=False) as values:
            _assign_part(own.float().numpy(), c, m, h, index_parts[k].numpy(), values)

    in_threads(one, len(parts))


@compiled
def _sum_part(index: Integers, values: Floats, sums: npt.NDArray[np.float64]) -> None:
    for i in range(len(index)):
        sums[i & (LANES - 1), index[i]] += values[i]


def sum_by_index(tensors: Sequence[Summed], out: Tensor) -> None:
    """A `SumByIndex`, in float64."""
    parts, value_parts = cut([index for index, _, _ in tensors]), cut([values for _, values, _ in tensors])
    rows = [row for index, _, row in tensors for _ in cut([index])]
    sums = np.zeros((len(parts), LANES, out.shape[1]))
    in_threads(lambda k: _sum_part(parts[k].numpy(), value_parts[k].float().numpy(), sums[k]), len(parts))
    total = np.zeros(out.shape)
    np.add.at(total, rows, sums.sum(1))
    out.copy_(torch.from_numpy(total))
