"""loss(w) = -sum_i log sum_j mixing_j N(w_i | mean_j, var_j), its gradients, and the arg-max of its terms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Values of one (J, chunk) buffer: small enough for the cache on a CPU, large enough to fill a GPU.
CHUNK_VALUES = {"cpu": 2**19, "cuda": 2**24}


def log_joint(
    w: Tensor,  # (n,)
    log_mixing: Tensor,  # (J,)
    mean: Tensor,  # (J,)
    log_var: Tensor,  # (J,)
) -> Tensor:  # (J, n)
    """log(mixing_j N(w_i | mean_j, var_j)); its softmax over j is the responsibility."""
    constant = log_mixing - 0.5 * (log_var + math.log(2 * math.pi))
    distance = w - mean[:, None]
    return constant[:, None] - 0.5 * distance**2 * torch.exp(-log_var)[:, None]


def mixture_nll_ref(weights: Sequence[Tensor], log_mixing: Tensor, mean: Tensor, log_var: Tensor) -> Tensor:
    """The definition, in plain autograd: a 0-d tensor. Stores N x J values."""
    w = torch.cat([t.reshape(-1).to(mean.dtype) for t in weights])
    return -torch.logsumexp(log_joint(w, log_mixing, mean, log_var), 0).sum()


def mixture_nll(weights: Sequence[Tensor], log_mixing: Tensor, mean: Tensor, log_var: Tensor) -> Tensor:
    """The same function in chunks: loss and all gradients in one sweep, no N x J tensor; backward only scales."""
    if not torch.is_grad_enabled():  # forward cannot tell by itself, and would compute gradients for nobody
        log_mixing, mean, log_var = log_mixing.detach(), mean.detach(), log_var.detach()
        weights = [w.detach() for w in weights]
    loss: Tensor = _MixtureNLL.apply(log_mixing, mean, log_var, *weights)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def mixture_assign(w: Tensor, log_mixing: Tensor, mean: Tensor, log_var: Tensor) -> Tensor:
    """The index of the most responsible component of each weight, (n,) int64, in chunks."""
    w = w.detach().reshape(-1).to(mean.dtype)
    out = torch.empty(w.shape, dtype=torch.int64, device=w.device)
    for part in _chunks(len(w), mean):
        out[part] = log_joint(w[part], log_mixing, mean, log_var).argmax(0)
    return out


def _chunks(n: int, mean: Tensor) -> Iterator[slice]:
    step = max(1, CHUNK_VALUES.get(mean.device.type, CHUNK_VALUES["cuda"]) // len(mean))
    return (slice(start, start + step) for start in range(0, n, step))


class _MixtureNLL(torch.autograd.Function):
    """With responsibility r_ij, d_ij = w_i - mean_j and precision p_j (docs/math.md, "Gradients"):

    d loss / d w_i          =  sum_j r_ij p_j d_ij
    d loss / d mean_j       = -sum_i r_ij p_j d_ij
    d loss / d log_var_j    = -sum_i r_ij (p_j d_ij^2 - 1) / 2
    d loss / d log_mixing_j = -sum_i r_ij
    """

    @staticmethod
    def forward(ctx: Any, log_mixing: Tensor, mean: Tensor, log_var: Tensor, *weights: Tensor) -> Tensor:
        need_grad = any(ctx.needs_input_grad)
        precision = torch.exp(-log_var)[:, None]
        constant = (log_mixing - 0.5 * (log_var + math.log(2 * math.pi)))[:, None]
        # exp of less than this is a denormal number, 10 times slower on a CPU and nothing beside the largest term's 1.
        floor = math.log(torch.finfo(mean.dtype).tiny) + 8
        loss = torch.zeros((), dtype=torch.float64, device=mean.device)
        sums = torch.zeros(3, len(mean), dtype=torch.float64, device=mean.device)  # of r, r p d, r p d^2 over weights
        # In the mixture's dtype until backward has scaled them: an unscaled score may not fit into float16.
        grads = [torch.empty(w.shape, dtype=mean.dtype, device=w.device) if need_grad else w for w in weights]
        for w, grad in zip(weights, grads, strict=True):
            flat, flat_grad = w.detach().reshape(-1), grad.view(-1) if need_grad else None
            for part in _chunks(len(flat), mean):
                distance = flat[part].to(mean.dtype) - mean[:, None]  # (J, n)
                scaled = distance * precision
                joint = torch.addcmul(constant, distance, scaled, value=-0.5)
                largest = joint.amax(0)
                terms = joint.sub_(largest).clamp_(min=floor).exp_()
                total = terms.sum(0)
                loss -= (largest + total.log()).sum(dtype=torch.float64)
                if flat_grad is None:
                    continue
                responsibilities = terms.div_(total)
                sums[0] += responsibilities.sum(1)
                scaled.mul_(responsibilities)
                flat_grad[part] = scaled.sum(0)
                sums[1] += scaled.sum(1)
                sums[2] += scaled.mul_(distance).sum(1)
        if need_grad:
            mixture_grads = torch.stack([-sums[0], -sums[1], 0.5 * (sums[0] - sums[2])]).to(mean.dtype)
            ctx.save_for_backward(mixture_grads, *grads)
            ctx.weight_dtypes = [w.dtype for w in weights]
        return loss.to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, ...]:
        mixture_grads, *grads = ctx.saved_tensors
        scaled = ((upstream * g).to(dtype) for g, dtype in zip(grads, ctx.weight_dtypes, strict=True))
        return (*(upstream * mixture_grads).unbind(), *scaled)
