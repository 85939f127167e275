"""The definition of what `kernels.assign` calls, in plain torch, for any device and any dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from softshare.prior.kernels.sweep import chunks, log_joint

Summed = tuple[Tensor, Tensor, int]  # indices in [0, J), a value for each, and the row that takes their sums


class Assign(Protocol):
    """Fills `index` with the component of the largest `log_joint`. The first one wins a tie; a NaN weight gets 0.

    With `kept`, the weights are copied there, and the means of their components replace them.
    """

    def __call__(
        self,
        w: Tensor,  # (n,), contiguous
        log_mixing: Tensor,  # (J,)
        mean: Tensor,  # (J,)
        log_var: Tensor,  # (J,)
        index: Tensor,  # (n,), of any integer dtype that holds J - 1
        kept: Tensor | None = None,  # (n,), of the weights' dtype
    ) -> None: ...


class SumByIndex(Protocol):
    """Fills out[r, j] with the sum of the values at index j over all tensors of row r, in a fixed order.

    Indices and values are 1-d and contiguous.
    """

    def __call__(
        self,
        tensors: Sequence[Summed],
        out: Tensor,  # (R, J)
    ) -> None: ...


def assign(
    w: Tensor, log_mixing: Tensor, mean: Tensor, log_var: Tensor, index: Tensor, kept: Tensor | None = None
) -> None:
    """An `Assign`, in chunks."""
    for part in chunks(len(w), mean):
        found = log_joint(w[part].to(mean.dtype), log_mixing, mean, log_var).argmax(0)
        index[part] = found
        if kept is not None:
            kept[part] = w[part]
            w[part] = mean[found].to(w.dtype)


def sum_by_index(tensors: Sequence[Summed], out: Tensor) -> None:
    """A `SumByIndex`. On a GPU it uses masks: the atomic adds of `bincount` would round differently each time."""
    out.zero_()
    n = out.shape[1]
    for index, value, row in tensors:
        if out.device.type == "cpu":
            out[row] += torch.bincount(index, value.double(), n).to(out.dtype)
            continue
        of_each = torch.arange(n, device=out.device)[:, None]
        for part in chunks(len(index), out[row]):
            out[row] += torch.where(index[part] == of_each, value[part].to(out.dtype), 0.0).sum(1)
