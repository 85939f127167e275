"""The hard phase: the network runs on quantized weights, while the weights behind them go on being trained.

In each step every shared weight takes the mean of its most responsible component for the time of forward and
backward. The gradient found there is used for the weight itself, straight through, and summed over a component's
weights it is the gradient of that component's mean. The prior goes on pulling the weights behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from softshare.prior import MixturePrior


@contextmanager
def quantized(prior: MixturePrior) -> Iterator[None]:
    """Within, the network is the quantized one; afterwards its weights are what they were."""
    mixture, weights = prior.mixture().detach(), prior.view.tensors
    kept = [w.detach().clone() for w in weights]
    with torch.no_grad():
        for w in weights:
            w.copy_(mixture.mean[mixture.assign(w)].view_as(w))
    try:
        yield
    finally:
        with torch.no_grad():
            for w, own in zip(weights, kept, strict=True):
                w.copy_(own)


def add_mean_gradients_(prior: MixturePrior) -> None:
    """Add to the means' gradient the sums of their weights' gradients; to be called before the prior adds its own."""
    mixture = prior.mixture().detach()
    sums = torch.zeros_like(mixture.mean)
    for w in prior.view.tensors:
        if w.grad is not None:
            sums += _sums(mixture.assign(w), w.grad.reshape(-1), len(mixture))
    prior.means.grad = sums[1:] if prior.means.grad is None else prior.means.grad + sums[1:]


def _sums(index: torch.Tensor, values: torch.Tensor, n: int) -> torch.Tensor:  # (n,)
    """Of the values of each index, in a fixed order."""
    if index.device.type == "cpu":
        return torch.bincount(index, values.double(), n).to(values.dtype)
    return ((index == torch.arange(n, device=index.device)[:, None]) * values).sum(1)
