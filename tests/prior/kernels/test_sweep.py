"""The mixture's loss: the reference against torch.distributions, and every implementation against the reference."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import (
    HAS_GPU,
    HAS_TRITON,
    LAYOUTS,
    NARROW,
    Loss,
    assert_as_near_as,
    channels_last,
    distance,
    each_backend,
    fused,
    image,
    loss_and_grads,
    parameters,
    stored,
    sweep_of,
    weights,
)
from softshare.errors import NotAvailableError
from softshare.prior.kernels import (
    find_sweep,
    log_joint,
    mixture_grads,
    mixture_nll,
    mixture_nll_grad_,
    mixture_nll_ref,
)
from softshare.prior.kernels import sweep as mixture
from softshare.prior.kernels.choice import available_backends


def test_reference_is_the_mixture_of_torch_distributions() -> None:
    log_mixing, mean, log_var = parameters(5)
    w = weights(100)
    truth = MixtureSameFamily(Categorical(logits=log_mixing), Normal(mean, torch.exp(0.5 * log_var)))
    expected = -truth.log_prob(w).sum()
    torch.testing.assert_close(mixture_nll_ref([w], log_mixing, mean, log_var), expected, rtol=1e-13, atol=0)


def test_log_joint_by_hand() -> None:
    value = log_joint(torch.tensor([0.3]), torch.tensor([math.log(0.25)]), torch.tensor([0.1]), torch.tensor([0.0]))
    assert value.item() == pytest.approx(math.log(0.25) - 0.5 * math.log(2 * math.pi) - 0.5 * 0.2**2, rel=1e-6)


@pytest.mark.parametrize("loss", [mixture_nll_ref, partial(mixture_nll, mixture.sweep_torch)])
def test_gradients_are_those_of_finite_differences(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mixture.CHUNK_VALUES, "cpu", 12)  # chunks of 4
    leaves = [t.requires_grad_() for t in (*parameters(3), weights(7), weights(2, seed=5).reshape(2, 1))]
    assert torch.autograd.gradcheck(lambda a, b, c, *ws: loss(ws, a, b, c), leaves)


F32, BF16, F16, F64 = *NARROW, torch.float64
CASES = [  # sizes are around the chunks of torch, the blocks and parts of numba, and the blocks of triton
    ("torch", F64, 1, 1),
    ("torch", F64, 1025, 17),
    ("torch", F32, 1023, 2),
    ("torch", BF16, 5000, 64),
    ("torch", F16, 513, 17),
    ("numba", F32, 1, 17),
    ("numba", F32, 511, 1),
    ("numba", BF16, 513, 64),
    ("numba", F16, 1025, 2),
    ("numba", F32, 2**15 - 1, 17),
    ("numba", F32, 2**15 + 1, 64),
]
if HAS_TRITON:  # up to 33 components in registers, more in tiles
    CASES += [("triton", F32, 1, 1), ("triton", BF16, 31, 17), ("triton", F16, 33, 2)]
if HAS_GPU:
    CASES += [("triton", BF16, 2047, 64), ("triton", F16, 2049, 17), ("triton", F32, 1_000_003, 17)]
SLOW = [pytest.param("triton", F32, 129, 64, marks=pytest.mark.slow)] if HAS_TRITON else []


@pytest.mark.parametrize(("backend", "dtype", "n", "j"), [*CASES, *SLOW])
def test_fused_equals_reference(
    n: int, j: int, dtype: torch.dtype, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Allowed: twice the error of the reference itself in that dtype, plus 1e-6."""
    monkeypatch.setitem(mixture.CHUNK_VALUES, "cpu", 1024 * j)
    params, w = parameters(j), weights(n, dtype)
    truth = loss_and_grads(mixture_nll_ref, [w.double()], params, upstream=0.7)
    own_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    narrow = [t.to(own_dtype) for t in params]
    plain = loss_and_grads(mixture_nll_ref, [w], narrow, upstream=0.7)
    assert_as_near_as(loss_and_grads(fused(backend), [w], narrow, upstream=0.7), plain, truth)


@pytest.mark.slow
@each_backend
@pytest.mark.parametrize(
    ("j", "log_var", "offset", "zero_mixing"),
    [
        (1, math.log(1e-12), 0.0, 0.5),  # collapsed components
        (17, math.log(1e-12), 0.0, 0.5),
        (17, math.log(1e-4), 0.5, 0.5),  # weights 50 standard deviations from every mean
        (17, math.log(1e-2), 0.0, 1 - 1e-7),
        (17, math.log(1e-2), 0.0, 1e-30),
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
    ours = loss_and_grads(fused(backend), [w], narrow)
    assert all(torch.isfinite(t).all() for t in ours)
    assert_as_near_as(ours, loss_and_grads(mixture_nll_ref, [w], narrow), truth)


FAR = [("torch", 17), ("numba", 1), ("numba", 256)]
if HAS_TRITON:
    FAR += [("triton", j) for j in (1, 17, 33, 34)]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "j"), FAR)
def test_far_weights_among_near_ones_equal_float64(j: int, backend: str) -> None:
    """Beyond 12 standard deviations of every component, a kernel that scales by the highest density underflows.

    Some blocks hold no such weight, some hold one, and the last holds only such weights.
    """
    log_mixing, mean, _ = parameters(j, torch.float32)
    params = [log_mixing, mean, torch.full_like(mean, 2 * math.log(0.05))]
    w = mean[torch.arange(110) % j] + 0.05 * weights(110, torch.float32)
    w[40] = float(mean.max()) + 13 * 0.05
    w[45] = float(mean.min()) - 50 * 0.05
    w[96:] = float(mean.max()) + 0.05 * torch.arange(13, 27)
    truth = loss_and_grads(mixture_nll_ref, [w.double()], [t.double() for t in params], upstream=0.7)
    ours = loss_and_grads(fused(backend), [w], params, upstream=0.7)
    assert all(torch.isfinite(t).all() for t in ours)
    assert_as_near_as(ours, loss_and_grads(mixture_nll_ref, [w], params, upstream=0.7), truth)


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


@pytest.mark.slow
@each_backend
def test_two_runs_are_equal(backend: str) -> None:
    params, w = parameters(17, torch.float32), weights(100 if backend == "triton" else 100_000, torch.float32)
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
    params = parameters(2, torch.float32)
    with pytest.raises(NotAvailableError, match=r"backend 'triton' .* float32 mixture on cpu .*: numba, torch"):
        find_sweep(params[1], "triton")
    with pytest.raises(NotAvailableError, match=r"'numba' .* float64 .* available: torch"):
        find_sweep(parameters(2)[1], "numba")
    assert available_backends(params[1]) == ["numba", "torch"]


def test_a_large_gradient_is_scaled_in_place_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    params, w = parameters(3, torch.float32), weights(40, torch.float32)
    expected = loss_and_grads(fused("numba"), [w], params, upstream=0.7)
    monkeypatch.setattr(mixture, "IN_PLACE_FROM", 40)
    for a, b in zip(loss_and_grads(fused("numba"), [w], params, upstream=0.7), expected, strict=True):
        assert torch.equal(a, b)
    w.requires_grad_()
    loss = fused("numba")([w], *params)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# As the training step uses it: the gradient is added to the present one

IN_PLACE = [("numba", NARROW[k % 3], layout) for k, layout in enumerate(LAYOUTS)]
IN_PLACE += [("torch", F32, "transposed"), ("torch", BF16, "gaps in both"), ("torch", F16, "contiguous")]
if HAS_TRITON:
    IN_PLACE += [("triton", F32, "even gaps"), ("triton", BF16, "channels last"), ("triton", F16, "contiguous")]


@pytest.mark.parametrize(("backend", "dtype", "layout"), IN_PLACE)
def test_in_place_adds_scale_times_the_gradient(backend: str, dtype: torch.dtype, layout: str) -> None:
    weight_like, grad_like = LAYOUTS[layout]
    params, scale = parameters(5, torch.float32), torch.tensor(0.3)
    ws = [weight_like(image(dtype)), weights(3, dtype, seed=7)]
    before = [torch.linspace(-1, 1, w.numel()).reshape(w.shape).to(dtype) for w in ws]
    grads = [grad_like(ws[0]).copy_(before[0]), before[1].clone()]
    memory = [g.data_ptr() for g in grads]
    loss, sums = mixture_nll_grad_(sweep_of(backend), ws, grads, *params, scale)
    by_mixture = mixture_grads(sums, params[1])
    assert [g.data_ptr() for g in grads] == memory

    wide = [t.double() for t in params]
    exact = loss_and_grads(mixture_nll_ref, [w.double() for w in ws], wide)
    plain = loss_and_grads(mixture_nll_ref, ws, params)
    summed = [[b.double() + 0.3 * g.double() for b, g in zip(before, r[4:], strict=True)] for r in (exact, plain)]
    summed[1] = [stored(s, dtype, backend) for s in summed[1]]
    assert loss.dtype == sums.dtype == torch.float64
    assert by_mixture.dtype == torch.float32
    assert_as_near_as([loss, *by_mixture, *grads], [*plain[:4], *summed[1]], [*exact[:4], *summed[0]])


def test_small_tensors_swept_as_one_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the way on a GPU, where a launch takes longer than a small tensor's work."""
    params, scale = parameters(5, torch.float32), torch.tensor(0.3)
    ws = [weights(7, torch.float32), channels_last(image(torch.float32)), weights(0, torch.float32)]
    ws += [weights(9, torch.bfloat16), weights(11, torch.float32, seed=4)]
    runs = []
    for together in ([], [0, 1, 2, 3]):
        monkeypatch.setattr(mixture, "_small", lambda weights, device, together=together: together)
        grads = [torch.ones_like(w) for w in ws]
        loss, sums = mixture_nll_grad_(sweep_of("numba"), ws, grads, *params, scale)
        runs.append([loss.float(), sums.float(), *grads])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("in_place", [False, True])
def test_tensors_cut_for_short_indices_get_the_same(in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    params, w = parameters(5, torch.float32), weights(50, torch.float32)
    runs = []
    for most in (mixture.MOST_AT_ONCE, 7):
        monkeypatch.setattr(mixture, "MOST_AT_ONCE", most)
        if in_place:
            grad = torch.ones(50)
            loss, sums = mixture_nll_grad_(sweep_of("numba"), [w], [grad], *params, torch.tensor(0.3))
            runs.append([loss.float(), sums.float(), grad])
        else:
            runs.append(loss_and_grads(fused("numba"), [w], params))
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b)


def test_only_small_tensors_on_a_gpu_are_swept_as_one() -> None:
    sizes = [mixture.SMALL + 1, 5, 0, mixture.SMALL, 3]
    ws = [torch.empty(n, device="meta") for n in sizes]
    assert mixture._small(ws, torch.device("cpu")) == []
    on_gpu = torch.device("cuda")
    assert mixture._small(ws, on_gpu) == [1, 2, 3, 4]
    assert mixture._small(ws[:2], on_gpu) == []
    many = ws[3:4] * (mixture.SMALL_TOGETHER // mixture.SMALL + 1)
    assert mixture._small(many, on_gpu) == []


def test_in_place_leaves_what_lies_between_the_gradients_values() -> None:
    whole = torch.full((6, 4), 9.0)
    w = weights(12, torch.float32).reshape(6, 2)
    mixture_nll_grad_(sweep_of("numba"), [w], [whole[:, ::2]], *parameters(3, torch.float32), torch.tensor(1.0))
    assert torch.equal(whole[:, 1::2], torch.full((6, 2), 9.0))
    assert (whole[:, ::2] != 9).all()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["channels last", "transposed"])
def test_in_place_takes_no_memory_of_the_gradients_size(layout: str) -> None:
    n = 96_000
    w = LAYOUTS[layout][0](weights(n, torch.float32).reshape(-1, 8, 3, 2))
    grad = torch.zeros_like(w)
    with _LargestTensor() as ours:
        mixture_nll_grad_(sweep_of("numba"), [w], [grad], *parameters(3, torch.float32), torch.tensor(1.0))
    assert ours.numel < n
    assert grad.abs().sum() > 0


TIMES = [("torch", 3), ("numba", 3), *([("triton", 3), ("triton", 40)] if HAS_TRITON else [])]  # triton has two kernels


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "j"), TIMES)
def test_times_are_repetitions(backend: str, j: int) -> None:
    params, w = parameters(j, torch.float32), weights(90, torch.float32)
    times = torch.arange(90) % 4  # some count 0 times
    loss, sums = sweep_of(backend)([w], *params, None, None, [times.float()])
    repeated = w.double().repeat_interleave(times)
    expected, expected_sums = sweep_of("torch")([repeated], *parameters(j), [torch.empty_like(repeated)])
    assert max(distance([loss, *sums], [expected, *expected_sums])) < 2e-6
    assert loss.dtype == sums.dtype == torch.float64


@each_backend
def test_a_scale_does_not_touch_loss_and_sums(backend: str) -> None:
    params, w = parameters(5, torch.float32), weights(70, torch.float32)
    plain = sweep_of(backend)([w], *params, [torch.empty(70)])
    scaled = sweep_of(backend)([w], *params, [torch.zeros(70)], torch.tensor(3.0))
    assert all(torch.equal(a, b) for a, b in zip(plain, scaled, strict=True))


# Memory


class _LargestTensor(TorchDispatchMode):
    """Records the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = torch.utils._pytree.tree_leaves(out)
            self.numel = max([self.numel, *(t.numel() for t in leaves if torch.is_tensor(t))])
        return out


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_memory_does_not_grow_with_n_times_j(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    n, j = 20_000, 64
    monkeypatch.setitem(mixture.CHUNK_VALUES, "cpu", n)
    params, w = parameters(j, torch.float32), weights(n, torch.float32)
    with _LargestTensor() as ours:
        loss_and_grads(fused(backend), [w], params)
    assert ours.numel <= n
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
