"""loss(w) = -sum_i log sum_j mixing_j N(w_i | mean_j, var_j), its gradients, and the arg-max of its terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from softshare.errors import NotAvailableError

# weights, log_mixing, mean, log_var, gradients to fill or None -> the loss, and the sums over weights of r, r p d and
# r (p d^2 - 1), (3, J): both float64. `_MixtureNLL` says what for.
Sweep = Callable[[Sequence[Tensor], Tensor, Tensor, Tensor, Sequence[Tensor] | None], tuple[Tensor, Tensor]]

# Values of one (J, chunk) buffer: small enough for the cache on a CPU, large enough to fill a GPU.
CHUNK_VALUES = {"cpu": 2**19, "cuda": 2**24}
IN_PLACE_FROM = 2**24  # weights whose gradient is scaled in place: there may be no room for a second copy


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


def mixture_nll(
    weights: Sequence[Tensor], log_mixing: Tensor, mean: Tensor, log_var: Tensor, backend: str = "auto"
) -> Tensor:
    """The same function, fused: loss and all gradients in one sweep, no N x J tensor; backward only scales."""
    sweep = _sweep(backend, mean)
    if not torch.is_grad_enabled():  # forward cannot tell by itself, and would compute gradients for nobody
        log_mixing, mean, log_var = log_mixing.detach(), mean.detach(), log_var.detach()
        weights = [w.detach() for w in weights]
    loss: Tensor = _MixtureNLL.apply(sweep, log_mixing, mean, log_var, *weights)  # type: ignore[no-untyped-call]
    return loss


def available_backends(
    mean: Tensor,  # (J,)
) -> list[str]:
    """What can compute a mixture of this device and dtype here, the fastest first."""
    fits = {
        "triton": mean.device.type == "cuda" and mean.dtype == torch.float32 and _installed("triton"),
        "numba": mean.device.type == "cpu" and mean.dtype == torch.float32 and _installed("numba"),
        "torch": True,
    }
    return [name for name, fit in fits.items() if fit]


@cache
def _installed(package: str) -> bool:
    return find_spec(package) is not None


def _sweep(backend: str, mean: Tensor) -> Sweep:
    available = available_backends(mean)
    if backend not in ("auto", *available):
        where = f"a {mean.dtype} mixture on {mean.device.type}".replace("torch.", "")
        raise NotAvailableError(
            f"backend {backend!r} cannot compute {where} here; available are {', '.join(available)}"
        )
    name = available[0] if backend == "auto" else backend
    if name == "torch":
        return sweep_torch
    sweep: Sweep = import_module(f"softshare.kernels.mixture_{name}").sweep
    return sweep


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


def sweep_torch(
    weights: Sequence[Tensor], log_mixing: Tensor, mean: Tensor, log_var: Tensor, grads: Sequence[Tensor] | None
) -> tuple[Tensor, Tensor]:
    """A `Sweep` in plain torch, chunk by chunk: any device, any dtype."""
    precision = torch.exp(-log_var)[:, None]
    constant = (log_mixing - 0.5 * (log_var + math.log(2 * math.pi)))[:, None]
    # exp of less than this is a denormal number, 10 times slower on a CPU and nothing beside the largest term's 1.
    floor = math.log(torch.finfo(mean.dtype).tiny) + 8
    loss = torch.zeros((), dtype=torch.float64, device=mean.device)
    sums = torch.zeros(3, len(mean), dtype=torch.float64, device=mean.device)
    for k, w in enumerate(weights):
        flat, flat_grad = w.detach().reshape(-1), grads[k].view(-1) if grads is not None else None
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
            sums[2] += scaled.mul_(distance).sub_(responsibilities).sum(1)
    return loss, sums


class _MixtureNLL(torch.autograd.Function):
    """With responsibility r_ij, d_ij = w_i - mean_j and precision p_j (docs/math.md, "Gradients"):

    d loss / d w_i          =  sum_j r_ij p_j d_ij
    d loss / d mean_j       = -sum_i r_ij p_j d_ij
    d loss / d log_var_j    = -sum_i r_ij (p_j d_ij^2 - 1) / 2
    d loss / d log_mixing_j = -sum_i r_ij
    """

    @staticmethod
    def forward(ctx: Any, sweep: Sweep, log_mixing: Tensor, mean: Tensor, log_var: Tensor, *weights: Tensor) -> Tensor:
        need_grad = any(ctx.needs_input_grad)
        # In the mixture's dtype until backward has scaled them: an unscaled score may not fit into float16.
        grads = [torch.empty(w.shape, dtype=mean.dtype, device=w.device) for w in weights] if need_grad else None
        loss, sums = sweep(weights, log_mixing, mean, log_var, grads)
        if grads is not None:
            mixture_grads = torch.stack([-sums[0], -sums[1], -0.5 * sums[2]]).to(mean.dtype)
            ctx.save_for_backward(mixture_grads, *grads)
            ctx.weight_dtypes = [w.dtype for w in weights]
        return loss.to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        mixture_grads, *grads = ctx.saved_tensors
        if sum(g.numel() for g in grads) < IN_PLACE_FROM:
            scaled = [upstream * g for g in grads]
        else:
            scaled = [g.mul_(upstream) for g in grads]  # autograd refuses a second backward after that
        own = (g.to(dtype) for g, dtype in zip(scaled, ctx.weight_dtypes, strict=True))
        return (None, *(upstream * mixture_grads).unbind(), *own)
