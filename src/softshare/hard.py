"""The hard phase: the network runs on quantized weights, while the weights behind them go on being trained.

In each step every shared weight takes the mean of its most responsible component for the time of forward and
backward. The gradient found there is used for the weight itself, straight through, and summed over a component's
weights it is the gradient of that component's mean. The prior goes on pulling the weights behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from softshare.prior import MixturePrior


@contextmanager
def quantized(prior: MixturePrior) -> Iterator[list[Tensor]]:
    """Within, the network is the quantized one; yields the component of each weight, tensor by tensor."""
    kept = [w.detach().clone() for w in prior.view.tensors]
    assigned = []
    with torch.no_grad():
        for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
            for w in part.tensors:
                assigned.append(mixture.assign(w))
                w.copy_(mixture.mean[assigned[-1]].view_as(w))
    try:
        yield assigned
    finally:
        with torch.no_grad():
            for w, own in zip(prior.view.tensors, kept, strict=True):
                w.copy_(own)


@torch.no_grad()
def add_mean_gradients_(prior: MixturePrior, assigned: Sequence[Tensor]) -> None:
    """Add to each mean's gradient the sum of its weights' gradients, as they are before the prior adds its own."""
    if not prior.means.requires_grad:
        return
    components, n, dtype = iter(assigned), prior.means.shape[1] + 1, prior.means.dtype
    sums = []
    for part in prior.parts:
        sums.append(torch.stack([_sums(next(components), w.grad, n, dtype) for w in part.tensors]).sum(0))
    gradient = torch.stack(sums)[:, 1:].contiguous()
    prior.means.grad = gradient if prior.means.grad is None else prior.means.grad + gradient


def _sums(
    index: Tensor,  # (m,) in [0, n)
    values: Tensor | None,  # of m elements; None: zeros
    n: int,
    dtype: torch.dtype,
) -> Tensor:  # (n,)
    """Of the values of each index, in a fixed order: atomic adds would round differently each time."""
    if values is None:
        return torch.zeros(n, dtype=dtype, device=index.device)
    values = values.reshape(-1)
    if index.device.type == "cpu":
        return torch.bincount(index, values.double(), n).to(dtype)
    return ((index == torch.arange(n, device=index.device)[:, None]) * values).sum(1, dtype=dtype)
