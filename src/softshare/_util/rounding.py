"""How far two computations of one function may differ by rounding."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# Relative to the largest value of an output. Float sums in another order differ far less.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def coarsest(tensors: Iterable[Tensor]) -> torch.dtype:
    """The least precise dtype of floating-point tensors; float32 if there is none of the known ones."""
    known = [t.dtype for t in tensors if t.dtype in TOLERANCES]
    return max(known, key=lambda dtype: TOLERANCES[dtype], default=torch.float32)
