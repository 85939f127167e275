"""loss(w) = -sum_i log sum_j mixing_j N(w_i | mean_j, var_j), and its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Sweep(Protocol):
    """Returns the loss, and the sums over weights of r, r p d and r (p d^2 - 1), (3, J): see `mixture_grads`.

    Both are float64. Weights and gradients are 1-d and contiguous. Without `scale`, the gradients are filled with
    d loss / d w. With it, `scale` times d loss / d w is added to them. Loss and sums are not scaled. `times` says how
    often each weight counts in the loss and the sums.
    """

    def __call__(
        self,
        weights: Sequence[Tensor],
        log_mixing: Tensor,  # (J,)
        mean: Tensor,  # (J,)
        log_var: Tensor,  # (J,)
        grads: Sequence[Tensor] | None,
        scale: Tensor | None = None,  # 0-d
        times: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]: ...


# Values of one (J, chunk) buffer: small enough for the cache on a CPU, large enough to fill a GPU.
CHUNK_VALUES = {"cpu": 2**19, "cuda": 2**24}
MOST_AT_ONCE = 2**30  # weights in one piece
SMALL, SMALL_TOGETHER = 2**20, 2**24  # most weights of a tensor, and of all such tensors, that a GPU sweeps as one
IN_PLACE_FROM = 2**24  # from this many weights, gradients are scaled in place: a second copy may not fit


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
    """The definition, in plain autograd: a 0-d tensor. It stores N x J values."""
    w = torch.cat([t.reshape(-1).to(mean.dtype) for t in weights])
    return -torch.logsumexp(log_joint(w, log_mixing, mean, log_var), 0).sum()


def mixture_nll(sweep: Sweep, weights: Sequence[Tensor], log_mixing: Tensor, mean: Tensor, log_var: Tensor) -> Tensor:
    """The same function, fused: one sweep gives the loss and all gradients, without N x J values. Backward scales."""
    if not torch.is_grad_enabled():  # forward cannot see this, and would compute gradients that nobody reads
        log_mixing, mean, log_var = log_mixing.detach(), mean.detach(), log_var.detach()
        weights = [w.detach() for w in weights]
    loss: Tensor = _MixtureNLL.apply(sweep, log_mixing, mean, log_var, *weights)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def mixture_nll_grad_(
    sweep: Sweep,
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    log_mixing: Tensor,  # (J,)
    mean: Tensor,  # (J,)
    log_var: Tensor,  # (J,)
    scale: Tensor,  # 0-d
    together: bool = True,
) -> tuple[Tensor, Tensor]:  # 0-d; (3, J)
    """Add `scale` times d loss / d w to `grads`. Returns the loss and the sums of a `Sweep`, for `mixture_grads`.

    The training step uses this: compared with autograd it saves a gradient's memory and three passes over it. With
    `together`, small tensors are copied and swept as one where that is faster.
    """
    own = [g.permute(memory_order(w)) for w, g in zip(weights, grads, strict=True)]
    as_one = _small(weights, mean.device) if together else []
    flats, outs = [], []
    late: list[tuple[Tensor, Tensor]] = []  # gradients that the sweep does not write, and what to add to them
    for k, (w, g) in enumerate(zip(weights, own, strict=True)):
        if k not in as_one:
            out = g if g.is_contiguous() else torch.zeros_like(g, memory_format=torch.contiguous_format)
            flats.append(flattened(w))
            outs.append(out.view(-1))
            late += [(g, out)] if out is not g else []
    if as_one:
        flats.append(torch.cat([flattened(weights[k]).to(mean.dtype) for k in as_one]))
        outs.append(torch.zeros_like(flats[-1]))
        parts = outs[-1].split([weights[k].numel() for k in as_one])
        late += [(own[k], part.view(own[k].shape)) for k, part in zip(as_one, parts, strict=True)]
    with on(mean.device):
        loss, sums = sweep(_pieces(flats), log_mixing, mean, log_var, _pieces(outs), scale)
    if late:
        torch._foreach_add_([g for g, _ in late], [out.to(g.dtype) for g, out in late])
    return loss, sums


def on(device: torch.device) -> AbstractContextManager[object]:
    """Makes the weights' GPU the current one, because kernels are launched there."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _pieces(flats: Sequence[Tensor]) -> list[Tensor]:
    """The vectors in pieces that are short enough for 32-bit indices."""
    return [piece for flat in flats for piece in flat.split(MOST_AT_ONCE)]


def _small(weights: Sequence[Tensor], device: torch.device) -> list[int]:
    """The tensors to sweep as one. This is for a GPU, where a launch takes longer than a small tensor's work."""
    if device.type != "cuda":
        return []
    small = [k for k, w in enumerate(weights) if w.numel() <= SMALL]
    return small if len(small) > 1 and sum(weights[k].numel() for k in small) <= SMALL_TOGETHER else []


def chunks(n: int, mean: Tensor) -> Iterator[slice]:
    step = max(1, CHUNK_VALUES.get(mean.device.type, CHUNK_VALUES["cuda"]) // len(mean))
    return (slice(start, start + step) for start in range(0, n, step))


def memory_order(t: Tensor) -> list[int]:
    """Dimensions by falling stride: the order in which a dense tensor lies in memory, channels last or transposed."""
    return sorted(range(t.dim()), key=t.stride().__getitem__, reverse=True)


def flattened(t: Tensor) -> Tensor:
    """The tensor as one vector, in the order of its memory: a view, unless the tensor has gaps."""
    return t.detach().permute(memory_order(t)).reshape(-1).contiguous()  # reshape keeps evenly spaced gaps in a view


def sweep_torch(
    weights: Sequence[Tensor],
    log_mixing: Tensor,
    mean: Tensor,
    log_var: Tensor,
    grads: Sequence[Tensor] | None,
    scale: Tensor | None = None,
    times: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """A `Sweep` in plain torch, chunk by chunk, for any device and any dtype."""
    precision = torch.exp(-log_var)[:, None]
    constant = (log_mixing - 0.5 * (log_var + math.log(2 * math.pi)))[:, None]
    # exp of anything below this is denormal: 10 times slower on a CPU, and nothing beside the largest term's 1.
    floor = math.log(torch.finfo(mean.dtype).tiny) + 8
    loss = torch.zeros((), dtype=torch.float64, device=mean.device)
    sums = torch.zeros(3, len(mean), dtype=torch.float64, device=mean.device)
    for k, w in enumerate(weights):
        for part in chunks(len(w), mean):
            distance = w[part].to(mean.dtype) - mean[:, None]  # (J, n)
            scaled = distance * precision
            joint = torch.addcmul(constant, distance, scaled, value=-0.5)
            largest = joint.amax(0)
            terms = joint.sub_(largest).clamp_(min=floor).exp_()
            total = terms.sum(0)
            evidence = largest + total.log()
            loss -= (evidence if times is None else evidence * times[k][part]).sum(dtype=torch.float64)
            if grads is None and times is None:
                continue
            responsibilities = terms.div_(total if times is None else total / times[k][part])
            sums[0] += responsibilities.sum(1)
            scaled.mul_(responsibilities)
            if grads is not None:
                score = scaled.sum(0)
                grads[k][part] = score if scale is None else torch.addcmul(grads[k][part], scale, score)
            sums[1] += scaled.sum(1)
            sums[2] += scaled.mul_(distance).sub_(responsibilities).sum(1)
    return loss, sums


def mixture_grads(
    sums: Tensor,  # (3, ..., J) float64
    mean: Tensor,
) -> Tensor:  # (3, ..., J), of the mean's dtype
    """Gradients by log_mixing, mean and log_var, with responsibility r_ij, d_ij = w_i - mean_j and precision p_j.

    d loss / d w_i          =  sum_j r_ij p_j d_ij
    d loss / d mean_j       = -sum_i r_ij p_j d_ij
    d loss / d log_var_j    = -sum_i r_ij (p_j d_ij^2 - 1) / 2
    d loss / d log_mixing_j = -sum_i r_ij

    docs/math.md derives them.
    """
    return torch.stack([-sums[0], -sums[1], -0.5 * sums[2]]).to(mean.dtype)


class _MixtureNLL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sweep: Sweep, log_mixing: Tensor, mean: Tensor, log_var: Tensor, *weights: Tensor) -> Tensor:
        need_grad = any(ctx.needs_input_grad)
        # They keep the mixture's dtype until backward has scaled them: an unscaled score may not fit into float16.
        grads = [torch.empty(w.numel(), dtype=mean.dtype, device=w.device) for w in weights] if need_grad else None
        pieces = None if grads is None else _pieces(grads)
        with on(mean.device):
            loss, sums = sweep(_pieces([flattened(w) for w in weights]), log_mixing, mean, log_var, pieces)
        if grads is not None:
            shaped = [shaped_like(g, w) for g, w in zip(grads, weights, strict=True)]
            ctx.save_for_backward(mixture_grads(sums, mean), *shaped)
            ctx.weight_dtypes = [w.dtype for w in weights]
        return loss.to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        by_mixture, *grads = ctx.saved_tensors
        if sum(g.numel() for g in grads) < IN_PLACE_FROM:
            scaled = [upstream * g for g in grads]
        else:
            scaled = [g.mul_(upstream) for g in grads]  # after this, autograd refuses a second backward
        own = (g.to(dtype) for g, dtype in zip(scaled, ctx.weight_dtypes, strict=True))
        return (None, *(upstream * by_mixture).unbind(), *own)


def shaped_like(flat: Tensor, w: Tensor) -> Tensor:
    """The inverse of `flattened`."""
    order = memory_order(w)
    places = sorted(range(w.dim()), key=order.__getitem__)
    return flat.view([w.shape[d] for d in order]).permute(places)
