"""The most responsible component, weights set to its mean, and sums over it: every backend and the definition."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from kernels import (
    BACKENDS,
    HAS_GPU,
    LAYOUTS,
    NARROW,
    Params,
    channels_last,
    each_backend,
    image,
    module,
    needs_gpu,
    needs_triton,
    parameters,
    stored,
    trained_mixture,
    weights,
)
from softshare.prior.kernels import assign, assign_torch, index_dtype, mixture_assign, quantize_, sum_by_component
from softshare.prior.kernels import sweep as mixture
from softshare.prior.kernels.sweep_numba import PART

EPS = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def _large_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter is slow for each block."""
    if "triton" in BACKENDS and not HAS_GPU:
        monkeypatch.setattr(module("assign_triton"), "tile", lambda n: 1024)


@pytest.fixture
def device(backend: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes this backend the chosen one, and returns the device of its tensors."""
    monkeypatch.setattr(assign, "available_backends", lambda mean: [backend])
    return "cuda" if backend == "triton" and HAS_GPU else "cpu"


def moved(params: Params, device: str) -> Params:
    log_mixing, mean, log_var = (p.to(device) for p in params)
    return log_mixing, mean, log_var


def assigned(w: Tensor, params: Params, device: str) -> Tensor:
    return mixture_assign(w.to(device), *moved(params, device)).cpu()


def joint_of(w: Tensor, params: Params) -> Tensor:
    """log(mixing N(w)) of every component, by torch.distributions in float64."""
    log_mixing, mean, log_var = (p.double()[:, None] for p in params)
    log_prob: Tensor = Normal(mean, torch.exp(0.5 * log_var)).log_prob(w.double().reshape(-1))
    return log_mixing + log_prob


def rounding(joint: Tensor) -> Tensor:
    """Differences that float32 cannot see: a few of its steps at the size of the largest terms."""
    return 8 * EPS * (10 + joint.amax(0).abs())


def assert_largest(index: Tensor, w: Tensor, params: Params) -> None:
    """No component is likelier by more than float32 can see."""
    joint = joint_of(w, params)
    assert bool((joint.amax(0) - joint.gather(0, index.long()[None])[0] <= rounding(joint)).all())


def clear(w: Tensor, params: Params) -> Tensor:
    """Where the largest term is larger by more than float32 can see."""
    joint = joint_of(w, params)
    if len(joint) == 1:
        return torch.ones(w.numel(), dtype=torch.bool)
    first, second = joint.topk(2, 0).values.unbind()
    return first - second > 2 * rounding(joint)


# The arg-max


@each_backend
def test_assign_is_the_largest_responsibility(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mixture.CHUNK_VALUES, "cpu", 40)
    params, w = parameters(9, torch.float32), weights(1000, torch.float32)
    index = assigned(w.reshape(20, 50), params, device)
    assert (index.dtype, index.shape) == (torch.int64, (1000,))
    assert torch.equal(index, joint_of(w, params).argmax(0))


def test_assign_in_float64_is_by_torch_and_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mixture.CHUNK_VALUES, "cpu", 40)
    params, w = parameters(9), weights(1000)
    assert torch.equal(mixture_assign(w, *params), joint_of(w, params).argmax(0))


F32, BF16, F16, F64 = *NARROW, torch.float64
CASES = [  # sizes are around the blocks and parts of numba and the blocks of triton; 300 takes wider indices
    ("numba", 1, 1, F32),
    ("numba", 2, 511, BF16),
    ("numba", 5, 513, F32),
    ("numba", 17, PART - 1, F16),
    ("numba", 17, PART + 1, F64),
    ("numba", 17, 3 * PART, F32),
    ("numba", 256, 1023, F32),
    ("numba", 300, 1025, BF16),
    ("triton", 1, 1, F32),
    ("triton", 2, 1023, F16),
    ("triton", 5, 777, BF16),
    ("triton", 17, 1025, F64),
    ("triton", 64, 129, F32),
]
if HAS_GPU:
    CASES += [("triton", 5, 127, BF16), ("triton", 17, 2**18 + 1, F32), ("triton", 256, 1_000_003, F16)]
CASES = [case for case in CASES if case[0] in BACKENDS]
SLOW = [pytest.param("triton", 300, 129, F32, marks=pytest.mark.slow)] if "triton" in BACKENDS else []


@pytest.mark.parametrize(("backend", "j", "n", "dtype"), [*CASES, *SLOW])
def test_quantizing_is_that_of_the_definition(backend: str, j: int, n: int, dtype: torch.dtype, device: str) -> None:
    """Index, values and kept weights agree bit for bit. Near the border of two components, either index is right."""
    params, w = parameters(j, torch.float32), weights(n, dtype)
    ours = w.to(device, copy=True)
    index, kept = (t.cpu() for t in quantize_(ours, *moved(params, device)))
    assert (index.dtype, kept.dtype) == (index_dtype(j), dtype)
    assert torch.equal(kept, w)
    assert torch.equal(ours.cpu(), stored(params[1], dtype, backend).to(dtype)[index.long()])

    truth = torch.empty(n, dtype=torch.int64)
    assign_torch.assign(w, *params, truth)
    decided = clear(w.float(), params)
    assert decided.double().mean() > (0.99 if n > 100 else 0)
    assert torch.equal(index[decided].long(), truth[decided])
    assert_largest(index, w.float(), params)
    assert torch.equal(mixture_assign(w.to(device), *moved(params, device)).cpu(), index.long())


@each_backend
def test_the_definition_and_all_others_quantize_a_trained_mixture_alike(backend: str, device: str) -> None:
    for seed in range(5):
        params = trained_mixture(seed, j=17)
        w = 0.3 * weights(1000, torch.float32, seed)
        expected = torch.empty(1000, dtype=torch.int64)
        assign_torch.assign(w, *params, expected)
        index, _ = quantize_(w.to(device, copy=True), *moved(params, device))
        differ = index.cpu().long() != expected
        assert not bool((differ & clear(w, params)).any())


@each_backend
def test_of_components_alike_the_first_is_assigned(device: str) -> None:
    params = parameters(3, torch.float32)
    doubled: Params = (
        torch.cat([params[0], params[0]]) - math.log(2),
        torch.cat([params[1], params[1]]),
        torch.cat([params[2], params[2]]),
    )
    w = weights(1000, torch.float32)
    assert torch.equal(assigned(w, doubled, device), joint_of(w, params).argmax(0))
    between = torch.tensor([0.5, -0.5, 0.0])  # as far from one mean as from the other
    even: Params = (torch.full((2,), 0.5).log(), torch.tensor([0.0, 1.0]), torch.zeros(2))
    assert assigned(between, even, device).tolist() == [0, 0, 0]
    many: Params = (torch.full((256,), -math.log(256)), torch.full((256,), 0.5), torch.zeros(256))
    assert not assigned(w, many, device).any()


@each_backend
@pytest.mark.parametrize(
    ("log_var", "scale", "zero_mixing"),
    [
        (-30.0, 1.0, 1e-30),
        (math.log(1e-12), 1e-20, 0.5),
        (-12.0, 1e8, 1 - 1e-7),
        (0.0, 1e8, 1e-30),
        (30.0, 1.0, 1 - 1e-7),
    ],
)
def test_extremes_are_assigned_as_in_float64(log_var: float, scale: float, zero_mixing: float, device: str) -> None:
    log_mixing = torch.tensor([zero_mixing, *[(1 - zero_mixing) / 3] * 3], dtype=torch.float64).log().float()
    params: Params = (log_mixing, torch.tensor([0.0, -1.0, 0.25, 3.0]), torch.tensor([log_var] * 3 + [0.0]))
    w = scale * weights(1000, torch.float32)
    index, _ = quantize_(w.to(device, copy=True), *moved(params, device))
    joint = joint_of(w, params)
    allowed = 8 * EPS * (10 + joint.abs().amax(0))
    assert bool((joint.amax(0) - joint.gather(0, index.cpu().long()[None])[0] <= allowed).all())


@each_backend
def test_the_border_of_narrow_components_is_that_of_float64(device: str) -> None:
    """Up to a few roundings of the terms. A precision of e^30 errs by 40 times more if its exponent is rounded."""
    for seed in range(20):
        log_var = -24 - 6 * weights(2, torch.float32, seed).abs()
        params: Params = (torch.full((2,), -math.log(2)), torch.tensor([0.0, 1.0]), log_var)
        near, far = (0.5 * log_var.double()).exp().tolist()
        w = near / (near + far) * (1 + 2 * EPS * torch.arange(-20, 21, dtype=torch.float64)).float()
        assert_largest(assigned(w, params, device), w, params)


@each_backend
def test_weights_far_from_every_mean(device: str) -> None:
    """They are 50 standard deviations away and more, where every density is 0 in float32."""
    mean = torch.linspace(-0.5, 0.5, 5)
    for std in (1e-6, 0.01):
        params: Params = (torch.full((5,), -math.log(5)), mean, torch.full((5,), 2 * math.log(std)))
        w = torch.cat([mean[0] - std * torch.arange(50, 90), mean[4] + std * torch.arange(50, 90)])
        assert assigned(w, params, device).tolist() == [0] * 40 + [4] * 40


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of triton's interpreter
@each_backend
def test_where_all_densities_are_0_or_not_a_number_the_zero_component_is_assigned(device: str) -> None:
    """Weights whose squared distance overflows float32, infinite ones, and NaN."""
    params = parameters(4, torch.float32)
    w = torch.tensor([1e30, -1e30, 3e38, math.inf, -math.inf, math.nan])
    assert assigned(w, params, device).tolist() == [0] * 6
    ours = w.to(device, copy=True)
    index, kept = quantize_(ours, *moved(params, device))
    assert index.tolist() == [0] * 6
    assert ours.tolist() == [float(params[1][0])] * 6
    assert torch.equal(kept.cpu().nan_to_num(7.0), w.nan_to_num(7.0))


@each_backend
def test_assign_reads_values_in_their_logical_order_and_tracks_nothing(device: str) -> None:
    log_mixing, mean, log_var = (p.to(device).requires_grad_() for p in parameters(5, torch.float32))
    w = weights(60, torch.float32).reshape(3, 4, 5).permute(2, 0, 1).to(device)
    index = mixture_assign(w.requires_grad_(), log_mixing, mean, log_var)
    assert not index.requires_grad
    assert torch.equal(index, mixture_assign(w.detach().contiguous(), log_mixing, mean, log_var))


@pytest.mark.parametrize("backend", ["numba"])
def test_the_number_of_threads_changes_nothing(device: str) -> None:
    params, w = parameters(5, torch.float32), weights(5 * PART // 2, torch.float32)
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            index, _ = quantize_(w.clone(), *params)
            sums = torch.empty(1, 5)
            sum_by_component([(index, w, 0)], sums)
            results.append((index, sums))
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# In place


@each_backend
@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("contiguous", BF16), ("channels last", F16), ("transposed", F32), ("gaps", BF16), ("even gaps", F32)],
)
def test_any_layout_is_quantized_in_place(backend: str, dtype: torch.dtype, layout: str, device: str) -> None:
    params = parameters(5, torch.float32)
    plain = image(dtype)
    w = LAYOUTS[layout][0](plain.to(device)).requires_grad_()
    memory, strides, version, before = w.data_ptr(), w.stride(), w._version, w.detach().clone()
    index, kept = quantize_(w, *moved(params, device))
    assert (w.data_ptr(), w.stride()) == (memory, strides)
    assert w._version > version  # autograd must see the change
    assert index.shape == kept.shape == w.shape
    assert torch.equal(kept, before)
    assert not kept.requires_grad
    if "gaps" not in layout:
        assert index.stride() == kept.stride() == strides
    assert torch.equal(index.cpu().flatten().long(), joint_of(before.cpu(), params).argmax(0))
    assert torch.equal(w.detach().cpu(), stored(params[1], dtype, backend).to(dtype)[index.cpu().long()])


@each_backend
def test_what_lies_between_the_weights_stays(device: str) -> None:
    whole = torch.full((6, 4), 9.0, device=device)
    quantize_(whole[:, ::2], *moved(parameters(3, torch.float32), device))
    assert (whole[:, 1::2] == 9).all()
    assert (whole[:, ::2] != 9).all()


@each_backend
def test_small_shapes(device: str) -> None:
    params = parameters(3, torch.float32)
    shapes: list[tuple[int, ...]] = [(), (0,), (0, 4), (1, 1, 3), (3, 1)]
    for shape in shapes:
        w = weights(math.prod(shape), torch.float32).reshape(shape).to(device)
        expected = joint_of(w.cpu(), params).argmax(0) if w.numel() else torch.empty(0, dtype=torch.int64)
        index, _ = quantize_(w, *moved(params, device))
        assert index.shape == shape
        assert torch.equal(index.flatten().long().cpu(), expected)
        sums = torch.full((2, 3), 9.0, device=device)
        sum_by_component([(index, torch.ones_like(w), 1)], sums)
        assert torch.equal(sums.cpu(), torch.stack([torch.zeros(3), torch.bincount(expected, minlength=3).float()]))


@pytest.mark.slow
@each_backend
def test_tensors_cut_for_short_indices_get_the_same(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params, w = parameters(5, torch.float32), weights(50, torch.float32)
    runs = []
    for most in (50, 7):
        monkeypatch.setattr(assign, "MOST_AT_ONCE", most)
        ours, sums = w.to(device, copy=True), torch.empty(1, 5, device=device)
        index, kept = quantize_(ours, *moved(params, device))
        sum_by_component([(index, kept, 0)], sums)
        runs.append((index, kept, ours, mixture_assign(w.to(device), *moved(params, device)), sums))
    for a, b in zip(runs[0][:4], runs[1][:4], strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(runs[0][4], runs[1][4])


# Sums


SUMS = [  # triton sums 32 components at once, in blocks of 128 then, and of 1024 for one component
    ("torch", 1, 1, BF16),
    ("torch", 5, 511, F32),
    ("torch", 17, PART + 1, F64),
    ("torch", 256, 1025, F16),
    ("numba", 1, 1, F64),
    ("numba", 2, 511, F16),
    ("numba", 17, PART - 1, BF16),
    ("numba", 64, PART + 1, F32),
    ("numba", 300, 100_000, F32),
    ("triton", 1, 1025, F32),
    ("triton", 2, 1, F64),
    ("triton", 17, 127, F16),
    ("triton", 17, 129, BF16),
    ("triton", 64, 129, F32),
    ("triton", 300, 129, F32),
]
if HAS_GPU:  # around one block for each program
    SUMS += [("triton", 17, 135_167, BF16), ("triton", 17, 135_169, F32), ("triton", 17, 1_000_003, F64)]
SUMS = [case for case in SUMS if case[0] in BACKENDS]


@pytest.mark.parametrize(("backend", "j", "n", "dtype"), SUMS)
def test_sums_are_those_of_float64_and_the_same_each_time(j: int, n: int, dtype: torch.dtype, device: str) -> None:
    index = (weights(n, seed=3).abs() * j).long().clamp(max=j - 1).to(index_dtype(j))
    values = weights(n, dtype)
    runs = []
    for _ in range(2):
        sums = torch.full((1, j), 7.0, device=device)
        sum_by_component([(index.to(device), values.to(device), 0)], sums)
        runs.append(sums.cpu())
    assert torch.equal(*runs)
    truth = torch.bincount(index, values.double(), j)
    size = torch.bincount(index, values.double().abs(), j)  # rounding is relative to it
    assert bool(((runs[0][0].double() - truth).abs() <= 4 * EPS * size + 1e-30).all())


@pytest.mark.slow
@each_backend
def test_sums_go_to_their_rows_whatever_the_layout(device: str) -> None:
    """The rows have two, no and three tensors. Some values have another memory order than their indices."""
    params = moved(parameters(5, torch.float32), device)
    of_each = [alone.to(device) for alone in (weights(700).float(), image(torch.float32), weights(1).float())]
    tensors = []
    for row, w in zip((2, 0, 0), of_each, strict=True):
        tensors.append((quantize_(w.clone(), *params)[0], w, row))
    last = channels_last(image(torch.float32).to(device))
    index = quantize_(last.clone(memory_format=torch.preserve_format), *params)[0]
    tensors += [(index, last, 2), (index, last.contiguous(), 2)]
    sums = torch.empty(3, 5, device=device)
    sum_by_component(tensors, sums)
    expected = torch.zeros(3, 5, dtype=torch.float64)
    for i, values, row in tensors:
        expected[row] += torch.bincount(i.cpu().flatten(), values.cpu().double().flatten(), 5)
    torch.testing.assert_close(sums.cpu().double(), expected, rtol=1e-5, atol=1e-5)
    assert not sums[1].any()


@each_backend
def test_of_nothing_the_sums_are_0(device: str) -> None:
    sums = torch.full((2, 3), 9.0, device=device)
    sum_by_component([], sums)
    assert not sums.any()


@each_backend
def test_a_value_that_is_no_number_stays_in_its_sum(device: str) -> None:
    index, values = torch.tensor([0, 1, 2, 1], dtype=torch.uint8), torch.tensor([1.0, math.nan, math.inf, 2.0])
    sums = torch.empty(1, 4, device=device)
    sum_by_component([(index.to(device), values.to(device), 0)], sums)
    assert str(sums[0].tolist()) == "[1.0, nan, inf, 0.0]"


@needs_triton
def test_one_launch_for_each_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    triton_module = module("assign_triton")
    for name in ("_assign", "_add_sums"):
        kernel = getattr(triton_module, name)

        class Counted:
            def __init__(self, name: str, kernel: object) -> None:
                self.name, self.kernel = name, kernel

            def __getitem__(self, grid: object) -> object:
                launched.append(self.name)
                return self.kernel[grid]  # type: ignore[index]

        monkeypatch.setattr(triton_module, name, Counted(name, kernel))
    monkeypatch.setattr(assign, "available_backends", lambda mean: ["triton"])
    device = "cuda" if HAS_GPU else "cpu"
    w = channels_last(image(torch.bfloat16)).to(device)
    index, kept = quantize_(w, *moved(parameters(17, torch.float32), device))
    assert launched == ["_assign"]
    sum_by_component([(index, kept, 0), (index, kept, 0)], torch.empty(1, 17, device=device))
    assert launched == ["_assign", "_add_sums", "_add_sums"]


@needs_gpu
def test_on_a_gpu_all_is_captured_and_replays_the_same_bits() -> None:
    params = moved(parameters(17, torch.float32), "cuda")
    w, values = weights(300_000, torch.float32).cuda(), weights(300_000, torch.float32, seed=5).cuda()
    sums, out = torch.empty(1, 17, device="cuda"), torch.empty_like(w)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def run() -> Tensor:
        index, kept = quantize_(w, *params)
        sum_by_component([(index, values, 0)], sums)
        out.copy_(w)
        w.copy_(kept)
        return index

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = [t.clone() for t in (run(), sums, out, w)]
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        index = run()
    for _ in range(3):
        for t in (sums, out):
            t.zero_()
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip((index, sums, out, w), expected, strict=True))


@needs_gpu
@needs_triton
def test_on_a_gpu_triton_is_chosen() -> None:
    assert assign._implementation(torch.zeros(3, device="cuda"), "assign").__module__.endswith("assign_triton")
