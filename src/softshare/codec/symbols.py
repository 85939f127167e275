"""What both codecs of a shared tensor use: a matrix of indices, in the narrowest dtype (docs/format.md 5)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from softshare.quantization import quantized as quantize

Indices = npt.NDArray[np.integer[Any]]  # of the dtype `index_dtype(n_values)`

FAST_ABOVE = 1 << 20  # weights: larger tensors take the fast model (docs/format.md 8.3)
MAX_CODEBOOK_VALUES = (1 << 16) + 1  # zero included (docs/format.md 7): a value takes at most 16 decisions


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """One row per entry of the first dimension; a vector or a scalar is one row."""
    return (1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))


def index_dtype(n_values: int) -> np.dtype[Any]:
    """`quantize.index_dtype` as a dtype of numpy."""
    return torch.empty(0, dtype=quantize.index_dtype(n_values)).numpy().dtype
