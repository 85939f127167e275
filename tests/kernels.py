"""Mixtures and weights for the tests of the kernels, and every backend's sweep for tensors on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from softshare.prior.kernels import mixture_nll
from softshare.prior.kernels.choice import find_sweep
from softshare.prior.kernels.sweep import Sweep, sweep_torch
from softshare.prior.kernels.table import tabulated

Loss = Callable[[Sequence[Tensor], Tensor, Tensor, Tensor], Tensor]
Params = tuple[Tensor, Tensor, Tensor]  # log_mixing, mean, log_var
Test = TypeVar("Test", bound=Callable[..., None])

HAS_GPU = torch.cuda.is_available()
HAS_TRITON = find_spec("triton") is not None
NARROW = [torch.float32, torch.bfloat16, torch.float16]
BACKENDS = ["torch", "numba", *(["triton"] if HAS_TRITON else [])]
each_backend = pytest.mark.parametrize("backend", BACKENDS)
TABLES = ["numba", *([pytest.param("triton", marks=pytest.mark.slow)] if HAS_TRITON else [])]
each_table = pytest.mark.parametrize("backend", TABLES)
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs triton")


def needs_gpu(test: Test) -> Test:
    """Mark a test `gpu`, and skip it without a GPU."""
    marked: Test = pytest.mark.gpu(pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")(test))
    return marked


def module(name: str) -> Any:
    """A module of the kernels. It is imported only now, because some need triton."""
    return import_module(f"softshare.prior.kernels.{name}")


def sweep_of(backend: str, reach: float | None = None) -> Sweep:
    """A backend's exact sweep, or its sweep by table. Triton's runs on a GPU or in its interpreter."""
    if backend == "torch" and reach is None:
        return sweep_torch
    if backend != "triton":
        return find_sweep(torch.zeros(1), backend, reach)
    sweep: Sweep = module("sweep_triton").sweep
    if reach is not None:
        sweep = tabulated(sweep, module("table_triton").make_grid, module("table_triton").look_up, reach)
    return _on_gpu(sweep) if HAS_GPU else sweep


def _on_gpu(sweep: Sweep) -> Sweep:
    """The same sweep for tensors on the CPU."""

    def moved(
        weights: Sequence[Tensor],
        log_mixing: Tensor,
        mean: Tensor,
        log_var: Tensor,
        grads: Sequence[Tensor] | None,
        scale: Tensor | None = None,
        times: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        there = None if grads is None else [g.cuda() for g in grads]
        loss, sums = sweep(
            [w.cuda() for w in weights],
            log_mixing.cuda(),
            mean.cuda(),
            log_var.cuda(),
            there,
            None if scale is None else scale.cuda(),
            None if times is None else [t.cuda() for t in times],
        )
        for own, new in zip(grads or (), there or (), strict=True):
            own.copy_(new)
        return loss.cpu(), sums.cpu()

    return moved


def fused(backend: str, reach: float | None = None) -> Loss:
    """The fused loss of one backend."""
    return partial(mixture_nll, sweep_of(backend, reach))


def parameters(j: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Params:
    """log_mixing, mean, log_var of j components."""
    g = torch.Generator().manual_seed(seed)
    log_mixing = torch.log_softmax(2 * torch.randn(j, generator=g, dtype=torch.float64), 0)
    mean = torch.randn(j, generator=g, dtype=torch.float64)
    log_var = torch.randn(j, generator=g, dtype=torch.float64) - 1
    return log_mixing.to(dtype), mean.to(dtype), log_var.to(dtype)


def trained_mixture(seed: int, narrowest: float = 0.003, j: int | None = None) -> Params:
    """A float32 mixture like a trained one: a zero component, and free ones of widths from `narrowest` to 0.3."""
    g = torch.Generator().manual_seed(seed)
    j = j or int(torch.randint(1, 18, (), generator=g))
    log_mixing = torch.log_softmax(3 * torch.randn(j, generator=g), 0)
    mean = 0.3 * torch.randn(j, generator=g)
    mean[0] = 0
    low, high = math.log(narrowest), math.log(0.3)
    return log_mixing, mean, 2 * (low + (high - low) * torch.rand(j, generator=g))


def weights(n: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def loss_and_grads(loss: Loss, ws: Sequence[Tensor], params: Sequence[Tensor], upstream: float = 1.0) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in (*params, *ws)]
    value = loss(leaves[3:], *leaves[:3])
    (upstream * value).backward()
    return [value.detach(), *(t.grad for t in leaves if t.grad is not None)]


def distance(a: Sequence[Tensor], truth: Sequence[Tensor]) -> list[float]:
    """The error of each result, relative to the truth's largest value."""
    assert len(a) == len(truth)
    scales = [max(float(t.abs().max()), 1e-30) for t in truth]
    return [float((x.double() - t).abs().max()) / s for x, t, s in zip(a, truth, scales, strict=True)]


def assert_as_near_as(ours: Sequence[Tensor], plain: Sequence[Tensor], truth: Sequence[Tensor]) -> None:
    """Allowed: twice the error of plain PyTorch in that dtype, plus 1e-6."""
    for error, allowed in zip(distance(ours, truth), distance(plain, truth), strict=True):
        assert error <= 2 * allowed + 1e-6


def image(dtype: torch.dtype) -> Tensor:
    return weights(5 * 4 * 3 * 2).reshape(5, 4, 3, 2).to(dtype)


def channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)


def transposed(t: Tensor) -> Tensor:
    return t.permute(1, 3, 2, 0)


def with_gaps(t: Tensor) -> Tensor:
    return t[:, ::2, 1:]


def with_even_gaps(t: Tensor) -> Tensor:
    return t[..., ::2]


def alike(t: Tensor) -> Tensor:
    return t


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # of a weight, of its gradient
    "contiguous": (alike, torch.empty_like),
    "channels last": (channels_last, torch.empty_like),
    "transposed": (transposed, torch.empty_like),
    "gaps": (with_gaps, torch.empty_like),
    "even gaps": (with_even_gaps, torch.empty_like),
    "gaps in both": (with_gaps, lambda w: with_gaps(torch.empty(5, 4, 3, 2, dtype=w.dtype))),
    "gradient channels last": (alike, lambda w: torch.empty_like(w, memory_format=torch.channels_last)),
    "weight channels last": (channels_last, lambda w: torch.empty(w.shape, dtype=w.dtype)),
    "weight transposed": (transposed, lambda w: torch.empty(w.shape, dtype=w.dtype)),
}


def stored(t: Tensor, dtype: torch.dtype, backend: str) -> Tensor:
    """The values as stored in `dtype`. Triton's interpreter cuts bfloat16 off instead of rounding to nearest."""
    if backend == "triton" and dtype == torch.bfloat16 and not HAS_GPU:
        return (t.float().view(torch.int32) & -(2**16)).view(torch.float32)
    return t.to(dtype)
