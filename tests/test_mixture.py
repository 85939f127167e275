"""The mixture's loss: the reference against torch.distributions, and every implementation against the reference."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.utils._python_dispatch import TorchDispatchMode

from softshare.errors import NotAvailableError
from softshare.kernels import log_joint, mixture, mixture_assign, mixture_nll, mixture_nll_ref

Loss = Callable[[Sequence[Tensor], Tensor, Tensor, Tensor], Tensor]

HAS_GPU = torch.cuda.is_available()
os.environ.setdefault("TRITON_INTERPRET", "0" if HAS_GPU else "1")  # before triton is loaded
HAS_TRITON = find_spec("triton") is not None
each_backend = pytest.mark.parametrize("backend", ["torch", "numba", *(["triton"] if HAS_TRITON else [])])


def fused(backend: str) -> Loss:
    """The fused loss by one backend; triton's on a GPU or, without one, in its interpreter."""
    if backend != "triton":
        return partial(mixture_nll, backend=backend)
    if HAS_GPU:
        return lambda ws, a, b, c: mixture_nll([w.cuda() for w in ws], a.cuda(), b.cuda(), c.cuda(), "triton").cpu()
    sweep = import_module("softshare.kernels.mixture_triton").sweep
    return lambda ws, *params: mixture._MixtureNLL.apply(sweep, *params, *ws)  # type: ignore[no-untyped-call]


def parameters(j: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """log_mixing, mean, log_var of j components."""
    g = torch.Generator().manual_seed(seed)
    log_mixing = torch.log_softmax(2 * torch.randn(j, generator=g, dtype=torch.float64), 0)
    mean = torch.randn(j, generator=g, dtype=torch.float64)
    log_var = torch.randn(j, generator=g, dtype=torch.float64) - 1
    return log_mixing.to(dtype), mean.to(dtype), log_var.to(dtype)


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


def test_reference_is_the_mixture_of_torch_distributions() -> None:
    log_mixing, mean, log_var = parameters(5)
    w = weights(100)
    truth = MixtureSameFamily(Categorical(logits=log_mixing), Normal(mean, torch.exp(0.5 * log_var)))
    expected = -truth.log_prob(w).sum()
    torch.testing.assert_close(mixture_nll_ref([w], log_mixing, mean, log_var), expected, rtol=1e-13, atol=0)


def test_log_joint_by_hand() -> None:
    value = log_joint(torch.tensor([0.3]), torch.tensor([math.log(0.25)]), torch.tensor([0.1]), torch.tensor([0.0]))
    assert value.item() == pytest.approx(math.log(0.25) - 0.5 * math.log(2 * math.pi) - 0.5 * 0.2**2, rel=1e-6)


@pytest.mark.parametrize("loss", [mixture_nll_ref, mixture_nll])
def test_gradients_are_those_of_finite_differences(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mixture.CHUNK_VALUES, "cpu", 12)  # chunks of 4
    leaves = [t.requires_grad_() for t in (*parameters(3), weights(7), weights(2, seed=5).reshape(2, 1))]
    assert torch.autograd.gradcheck(lambda a, b, c, *ws: loss(ws, a, b, c), leaves)


NARROW = [torch.float32, torch.bfloat16, torch.float16]
SIZES = [1, 511, 513, 1023, 1025]
CASES = [("torch", torch.float64, n) for n in [*SIZES, 5000]]
CASES += [(backend, dtype, n) for backend in ("torch", "numba") for dtype in NARROW for n in [*SIZES, 5000]]
CASES += [("triton", dtype, n) for dtype in NARROW for n in (SIZES if HAS_TRITON else [])]


@pytest.mark.parametrize("j", [1, 2, 17, 64])
@pytest.mark.parametrize(("backend", "dtype", "n"), CASES)
def test_fused_equals_reference(
    n: int, j: int, dtype: torch.dtype, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allowed: twice the error of the reference itself in that dtype, plus 1e-6."""
    monkeypatch.setitem(mixture.CHUNK_VALUES, "cpu", 1024 * j)
    params, w = parameters(j), weights(n, dtype)
    truth = loss_and_grads(mixture_nll_ref, [w.double()], params, upstream=0.7)
    own_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    narrow = [t.to(own_dtype) for t in params]
    plain = distance(loss_and_grads(mixture_nll_ref, [w], narrow, upstream=0.7), truth)
    ours = distance(loss_and_grads(fused(backend), [w], narrow, upstream=0.7), truth)
    for error, allowed in zip(ours, plain, strict=True):
        assert error <= 2 * allowed + 1e-6


@each_backend
@pytest.mark.parametrize("j", [1, 17])
@pytest.mark.parametrize(
    ("log_var", "offset", "zero_mixing"),
    [
        (math.log(1e-12), 0.0, 0.5),  # collapsed components
        (math.log(1e-4), 0.5, 0.5),  # weights 50 standard deviations from every mean
        (math.log(1e-2), 0.0, 1 - 1e-7),
        (math.log(1e-2), 0.0, 1e-30),
    ],
)
def test_extremes_equal_float64(j: int, log_var: float, offset: float, zero_mixing: float, backend: str) -> None:
    mixing = torch.full((j,), (1 - zero_mixing) / max(1, j - 1), dtype=torch.float64)
    mixing[0] = zero_mixing if j > 1 else 1.0
    mean = torch.arange(j, dtype=torch.float64) / 16
    params = [mixing.log(), mean, torch.full_like(mean, log_var)]
    w = (mean[torch.arange(50) % j] + offset + 1e-3 * weights(50)).float()
    if offset:
        w = w + 1.0
    narrow = [t.float() for t in params]
    truth = loss_and_grads(mixture_nll_ref, [w.double()], [t.double() for t in narrow])
    plain = distance(loss_and_grads(mixture_nll_ref, [w], narrow), truth)
    ours = loss_and_grads(fused(backend), [w], narrow)
    assert all(torch.isfinite(t).all() for t in ours)
    for error, allowed in zip(distance(ours, truth), plain, strict=True):
        assert error <= 2 * allowed + 1e-6


@each_backend
def test_many_tensors_any_layout_and_empty(backend: str) -> None:
    params = parameters(4, torch.float32)
    ws = [weights(12).reshape(3, 4).T, weights(0), weights(8, seed=3).reshape(2, 2, 2), weights(1).reshape(())]
    ws = [w.float() for w in ws]
    flat = torch.cat([w.reshape(-1) for w in ws])
    whole = loss_and_grads(mixture_nll_ref, [flat], params)
    parts = loss_and_grads(fused(backend), ws, params)
    for a, b in zip(parts[:4], whole[:4], strict=True):
        torch.testing.assert_close(a, b)
    assert [g.shape for g in parts[4:]] == [w.shape for w in ws]
    torch.testing.assert_close(torch.cat([g.reshape(-1) for g in parts[4:]]), whole[4])
    with torch.no_grad():
        torch.testing.assert_close(fused(backend)(ws, *params), whole[0])


@each_backend
def test_two_runs_are_equal(backend: str) -> None:
    params, w = parameters(17, torch.float32), weights(500 if backend == "triton" else 100_000, torch.float32)
    first, second = (loss_and_grads(fused(backend), [w], params) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_number_of_threads_changes_nothing() -> None:
    params, w = parameters(17, torch.float32), weights(200_000, torch.float32)
    was = torch.get_num_threads()
    try:
        runs = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            runs.append(loss_and_grads(fused("numba"), [w], params))
    finally:
        torch.set_num_threads(was)
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_what_is_not_available_is_an_error_that_lists_what_is() -> None:
    w, params = weights(5, torch.float32), parameters(2, torch.float32)
    with pytest.raises(NotAvailableError, match=r"backend 'triton' .* float32 mixture on cpu .* are numba, torch"):
        mixture_nll([w], *params, backend="triton")
    with pytest.raises(NotAvailableError, match=r"'numba' .* float64 .* available are torch"):
        mixture_nll([w.double()], *parameters(2), backend="numba")
    assert mixture.available_backends(params[1]) == ["numba", "torch"]


def test_a_large_gradient_is_scaled_in_place_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    params, w = parameters(3, torch.float32), weights(40, torch.float32)
    expected = loss_and_grads(mixture_nll, [w], params, upstream=0.7)
    monkeypatch.setattr(mixture, "IN_PLACE_FROM", 40)
    for a, b in zip(loss_and_grads(mixture_nll, [w], params, upstream=0.7), expected, strict=True):
        assert torch.equal(a, b)
    w.requires_grad_()
    loss = mixture_nll([w], *params)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class _LargestTensor(TorchDispatchMode):
    """Records the largest tensor any operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = torch.utils._pytree.tree_leaves(out)
            self.numel = max([self.numel, *(t.numel() for t in leaves if torch.is_tensor(t))])
        return out


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_memory_does_not_grow_with_n_times_j(backend: str) -> None:
    n, j = 200_000, 64
    params, w = parameters(j, torch.float32), weights(n, torch.float32)
    with _LargestTensor() as ours:
        loss_and_grads(fused(backend), [w], params)
    assert ours.numel <= max(n, mixture.CHUNK_VALUES["cpu"])
    with _LargestTensor() as plain:
        loss_and_grads(mixture_nll_ref, [w], params)
    assert plain.numel >= n * j  # the yardstick does see such a tensor


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_no_gradient_asked_none_computed(backend: str) -> None:
    """Under no_grad no operation makes a tensor as large as the weights' gradient."""
    n = 3 * mixture.CHUNK_VALUES["cpu"] // 2
    params, w = parameters(3, torch.float32), weights(n, torch.float32).requires_grad_()
    with torch.no_grad(), _LargestTensor() as ours:
        value = fused(backend)([w], *params)
    assert ours.numel < n
    assert not value.requires_grad
    torch.testing.assert_close(value, mixture_nll_ref([w.detach()], *params), rtol=1e-5, atol=0)


def test_assign_is_the_largest_responsibility(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mixture.CHUNK_VALUES, "cpu", 40)
    params, w = parameters(9), weights(1000)
    mixing, mean, std = params[0].exp(), params[1], torch.exp(0.5 * params[2])
    brute = torch.stack([m * torch.exp(Normal(mu, s).log_prob(w)) for m, mu, s in zip(mixing, mean, std, strict=True)])
    assert torch.equal(mixture_assign(w.reshape(20, 50), *params), brute.argmax(0))
