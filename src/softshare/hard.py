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

from softshare.layer_priors import Prior


@contextmanager
def quantized(prior: Prior) -> Iterator[list[Tensor]]:
    """Within, the network is the quantized one; yields the component of each weight, tensor by tensor."""
    kept = [w.detach().clone() for w in prior.view.tensors]
    assigned = []
    with torch.no_grad():
        for part in prior.parts:
            mixture = part.mixture()
            for w in part.view.tensors:
                assigned.append(mixture.assign(w))
                w.copy_(mixture.mean[assigned[-1]].view_as(w))
    try:
        yield assigned
    finally:
        with torch.no_grad():
            for w, own in zip(prior.view.tensors, kept, strict=True):
                w.copy_(own)


@torch.no_grad()
def add_mean_gradients_(prior: Prior, assigned: Sequence[Tensor]) -> None:
    """Add to each mean's gradient the sum of its weights' gradients, as they are before the prior adds its own."""
    components = iter(assigned)
    for part in prior.parts:
        sums = part.means.new_zeros(len(part.means) + 1)
        for w in part.view.tensors:
            index = next(components)
            if w.grad is not None:
                sums += _sums(index, w.grad.reshape(-1), len(sums))
        part.means.grad = sums[1:] if part.means.grad is None else part.means.grad + sums[1:]


def _sums(
    index: Tensor,  # (m,) in [0, n)
    values: Tensor,  # (m,)
    n: int,
) -> Tensor:  # (n,)
    """Of the values of each index, in a fixed order: atomic adds would round differently each time."""
    if index.device.type == "cpu":
        return torch.bincount(index, values.double(), n).to(values.dtype)
    return ((index == torch.arange(n, device=index.device)[:, None]) * values).sum(1)
