"""The most responsible component of each weight: its index, its mean in place of the weight, and sums over it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from softshare.prior.kernels.assign_torch import Assign, SumByIndex, Summed
from softshare.prior.kernels.choice import available_backends
from softshare.prior.kernels.sweep import MOST_AT_ONCE, flattened, memory_order, on, shaped_like


def index_dtype(n_values: int) -> torch.dtype:
    """The narrowest dtype for indices into `n_values`. As int64, those of a large network would fill the memory."""
    return torch.uint8 if n_values <= 1 << 8 else torch.int16 if n_values <= 1 << 15 else torch.int32


@torch.no_grad()
def mixture_assign(
    w: Tensor,  # any shape
    log_mixing: Tensor,  # (J,)
    mean: Tensor,  # (J,)
    log_var: Tensor,  # (J,)
) -> Tensor:  # (w.numel(),) int64
    """The index of the most responsible component of each weight. The first one wins a tie."""
    index = torch.empty(w.numel(), dtype=torch.int64, device=mean.device)
    _assign(w.detach().reshape(-1).contiguous(), log_mixing, mean, log_var, index, None)
    return index


@torch.no_grad()
def quantize_(
    w: Tensor,  # any shape
    log_mixing: Tensor,  # (J,)
    mean: Tensor,  # (J,)
    log_var: Tensor,  # (J,)
) -> tuple[Tensor, Tensor]:
    """Set each weight to the mean of its most responsible component. Returns the component's index and the old weight.

    Both have the shape of `w` and its order in memory. The dtype of the index is `index_dtype`.
    """
    own = flattened(w)
    index = torch.empty(own.shape, dtype=index_dtype(len(mean)), device=own.device)
    kept = torch.empty_like(own)
    _assign(own, log_mixing, mean, log_var, index, kept)
    if own.data_ptr() != w.data_ptr():  # `w` has gaps in memory, so `own` is a copy
        w.copy_(shaped_like(own, w))
    else:
        torch.autograd.graph.increment_version(w)  # compiled code writes past autograd
    return shaped_like(index, w), shaped_like(kept, w)


def _assign(w: Tensor, log_mixing: Tensor, mean: Tensor, log_var: Tensor, index: Tensor, kept: Tensor | None) -> None:
    assign: Assign = _implementation(mean, "assign")
    with on(mean.device):
        for start in range(0, len(w), MOST_AT_ONCE):
            piece = slice(start, start + MOST_AT_ONCE)
            own = None if kept is None else kept[piece]
            assign(w[piece], log_mixing.detach(), mean.detach(), log_var.detach(), index[piece], own)


@torch.no_grad()
def sum_by_component(
    tensors: Sequence[Summed],  # indices as `quantize_` returns them, and values of the same shape
    out: Tensor,  # (R, J)
) -> None:
    """Fill out[r, j] with the sum of the values at index j over all tensors of row r: the same bits in every run.

    `out` may be wider than the values, for sums of which several processes have a part each.
    """
    pieces: list[Summed] = []
    for index, values, row in tensors:
        order = memory_order(index)
        both = (t.detach().permute(order).reshape(-1).contiguous().split(MOST_AT_ONCE) for t in (index, values))
        pieces += [(i, v, row) for i, v in zip(*both, strict=True) if len(i)]
    kind = torch.float64 if any(v.dtype == torch.float64 for _, v, _ in pieces) else torch.float32
    sum_by_index: SumByIndex = _implementation(torch.empty(0, dtype=kind, device=out.device), "sum_by_index")
    with on(out.device):
        sum_by_index(pieces, out)


def _implementation(mean: Tensor, name: str) -> Any:
    return getattr(import_module(f"softshare.prior.kernels.assign_{available_backends(mean)[0]}"), name)
