"""The hard phase: the network runs on quantized weights, while training updates the weights behind them.

In each step every shared weight takes the mean of its most responsible component during forward and backward. The
gradient found there serves as the gradient of the weight itself (straight through). Its sum over a component's weights
is the gradient of that component's mean. The prior keeps pulling the weights behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from softshare.prior.kernels import quantize_, sum_by_component
from softshare.prior.prior import MixturePrior


@contextmanager
def hard_step(prior: MixturePrior) -> Iterator[None]:
    """Quantize the network for the forward and backward of a step, and give the means their gradients afterwards:

        with softshare.hard_step(prior):
            loss(model, batch).backward()

    Gradients that the weights had before are added to, and do not count towards the means.

    Args:
        prior: of the network that is trained.

    Returns:
        A context. The weights behind the quantized ones are back at its end, with their gradients.
    """
    weights = prior.view.tensors
    before = [w.grad for w in weights]
    for w in weights:
        w.grad = None
    try:
        with quantized(prior) as assigned:
            yield
        add_mean_gradients_(prior, assigned)
    finally:
        for w, earlier in zip(weights, before, strict=True):
            if earlier is not None:
                w.grad = earlier if w.grad is None else earlier.add_(w.grad)


@contextmanager
def quantized(prior: MixturePrior) -> Iterator[list[Tensor]]:
    """Within, the network has its quantized weights. Yields the component of each weight, tensor by tensor."""
    assigned, kept = quantize_network_(prior)
    try:
        yield assigned
    finally:
        restore_(prior, kept)


@torch.no_grad()
def quantize_network_(prior: MixturePrior) -> tuple[list[Tensor], list[Tensor]]:
    """Quantize the shared weights. Returns the component of each weight and the old weights, tensor by tensor."""
    assigned: list[Tensor] = []
    kept: list[Tensor] = []
    try:
        for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
            for w in part.locals:
                index, own = quantize_(w, mixture.log_mixing, mixture.mean, mixture.log_var)
                assigned.append(index)
                kept.append(own)
    except BaseException:
        restore_(prior, kept)
        raise
    prior.gathered.settle_()
    return assigned, kept


@torch.no_grad()
def restore_(prior: MixturePrior, kept: list[Tensor]) -> None:
    """Give the network its old weights back. After an error, only the first ones may have been quantized."""
    if kept:  # torch refuses an empty list
        torch._foreach_copy_(prior.view.locals[: len(kept)], kept)
        prior.gathered.settle_()


@torch.no_grad()
def add_mean_gradients_(prior: MixturePrior, assigned: Sequence[Tensor]) -> None:
    """Add the sum of its weights' gradients to each mean's gradient. Call it before the prior adds its own."""
    if not prior.means.requires_grad:
        return
    rows = [k for k, part in enumerate(prior.parts) for _ in part.shared]
    held = zip(assigned, prior.view.local_grads, prior.view.counted, rows, strict=True)
    # In float64: added up in any number of processes, the sums are the same once they are rounded, but for rare ties.
    sums = torch.empty_like(prior.log_vars, dtype=torch.float64)  # (parts, J + 1)
    sum_by_component([(index, grad, row) for index, grad, counts, row in held if grad is not None and counts], sums)
    of_free = prior.view.group.sum_(sums[:, 1:].contiguous())
    gradient = of_free.to(prior.means.dtype) * prior.mean_units
    prior.means.grad = gradient if prior.means.grad is None else prior.means.grad + gradient
