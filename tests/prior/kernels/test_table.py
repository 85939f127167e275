"""The sweep by table: its grid, the bound of its error, its lookups, and when a prior uses it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from kernels import (
    BACKENDS,
    HAS_GPU,
    Params,
    each_table,
    fused,
    loss_and_grads,
    module,
    needs_gpu,
    needs_triton,
    sweep_of,
    trained_mixture,
    weights,
)
from softshare.errors import ConfigError, DivergedError, NotAvailableError
from softshare.prior import prior as prior_module
from softshare.prior.kernels import mixture_nll_ref
from softshare.prior.kernels import table as table_module
from softshare.prior.kernels.choice import find_sweep
from softshare.prior.kernels.table import CAPACITY, CELLS, Grid, make_grid_ref, n_points, reach_of
from softshare.train.retrain import retrain_

EPS = 2.0**-23
REACH = 4.0


def grid_of(backend: str, params: Params, reach: float = REACH) -> Grid:
    """A backend's grid, on the CPU."""
    if backend == "torch":
        return make_grid_ref(params[1], params[2], reach)
    maker = module(f"table_{backend}").make_grid
    if backend == "triton" and HAS_GPU:
        grid = maker(params[1].cuda(), params[2].cuda(), reach)
        return Grid(reach, grid.cells.cpu(), grid.points.cpu())
    made: Grid = maker(params[1], params[2], reach)
    return made


def look_up(
    backend: str,
    ws: Sequence[Tensor],
    grid: Grid,
    score: Tensor,
    grads: Sequence[Tensor] | None = None,
    add: bool = False,
) -> Tensor:
    """A backend's lookup for tensors on the CPU: the counts at the grid's own points."""
    n = len(grid.points)
    if backend == "numba":
        return module("table_numba").look_up(ws, grid, score, grads, add)  # type: ignore[no-any-return]
    device = "cuda" if HAS_GPU else "cpu"
    points, scores = (torch.cat([t, t[-1:].expand(CAPACITY - n)]).to(device) for t in (grid.points, score))
    there = None if grads is None else [g.to(device) for g in grads]
    padded = Grid(grid.reach, grid.cells.to(device), points)
    counts: Tensor = module("table_triton").look_up([w.to(device) for w in ws], padded, scores, there, add).cpu()
    assert not counts[n:].any()
    for own, new in zip(grads or (), there or (), strict=True):
        own.copy_(new)
    return counts[:n]


@pytest.fixture(autouse=True)
def _large_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter is slow for each block and each row of counts."""
    if "triton" in BACKENDS and not HAS_GPU:
        monkeypatch.setattr(module("table_triton"), "ROWS", 1)
        monkeypatch.setattr(module("sweep_triton"), "BLOCK", 4096)


def sides(grid: Grid) -> list[Tensor]:
    """The points for weights from 0 up, and those for weights below 0."""
    start = int(grid.cells[CELLS]) >> 5
    return [grid.points[:start].double(), grid.points[start:].double()]


# The grid


@pytest.mark.parametrize("narrowest", [0.003, 1e-5, 1e-9])
def test_numba_makes_the_same_grid(narrowest: float) -> None:
    """The narrowest components need more points than there is room for, so their cells are coarser."""
    for seed in range(12):
        params = trained_mixture(seed, narrowest)
        reach = [0.25, REACH, 64.0][seed % 3]
        truth, ours = grid_of("torch", params, reach), grid_of("numba", params, reach)
        assert torch.equal(ours.cells, truth.cells)
        assert torch.equal(ours.points, truth.points)
        assert len(truth.points) <= CAPACITY


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(("seed", "narrowest"), [pytest.param(0, 0.003, marks=pytest.mark.slow), (1, 1e-9)])
def test_triton_makes_the_same_grid_and_pads_it(seed: int, narrowest: float) -> None:
    params = trained_mixture(seed, narrowest, j=17)
    truth, ours = grid_of("torch", params), grid_of("triton", params)
    assert torch.equal(ours.cells, truth.cells)
    n = len(truth.points)
    assert torch.equal(ours.points[:n], truth.points)
    assert ours.points.shape == (CAPACITY,)
    assert (ours.points[n:] == truth.points[-1]).all()
    assert (n_points(params[1], params[2], REACH) > CAPACITY) == (narrowest < 1e-5)


def test_a_grid_below_the_capacity_has_the_number_of_points_announced() -> None:
    for seed in range(20):
        params = trained_mixture(seed)
        assert n_points(params[1], params[2], REACH) == len(grid_of("torch", params).points) < CAPACITY


@pytest.mark.parametrize("narrowest", [0.003, 1e-9])
def test_points_lead_outwards_from_zero_to_the_reach(narrowest: float) -> None:
    for seed in range(5):
        grid = grid_of("torch", trained_mixture(seed, narrowest))
        assert grid.unit == REACH / 4096
        for sign, points in zip((1, -1), sides(grid), strict=True):
            assert points[0] == 0
            assert points[-1] == sign * (REACH - grid.unit)
            assert (sign * points.diff() > 0).all()


def assert_as_fine_as_claimed(grid: Grid, params: Params) -> None:
    """docs/math.md: h <= max(std_j, dist(cell, mean_j) / 4) / 16 for every component j."""
    mean, std = params[1].double(), torch.exp(0.5 * params[2].double())
    for points in sides(grid):
        low, high = torch.minimum(points[:-1], points[1:]), torch.maximum(points[:-1], points[1:])
        away = torch.maximum(low[:, None] - mean, mean - high[:, None]).clamp(min=0)  # (cells, J)
        rounding = EPS * torch.maximum(low.abs(), high.abs())  # points are float32
        allowed = torch.maximum(std, away / 4).amin(1) / 16 * (1 + 1e-9) + rounding
        assert (high - low <= allowed).all()


@pytest.mark.parametrize(("narrowest", "j"), [(0.003, 17), (3e-4, None)])
def test_cells_are_as_fine_as_claimed(narrowest: float, j: int | None) -> None:
    for seed in range(8):
        params = trained_mixture(seed, narrowest, j)
        assert n_points(params[1], params[2], REACH) <= CAPACITY
        assert_as_fine_as_claimed(grid_of("torch", params), params)


@pytest.mark.parametrize(
    ("mean", "std", "resolved"),
    [(0.0, 1e-6, True), (0.0, 1e-9, False), (0.5, 1e-4, True), (0.5, 1e-5, False), (-0.9, 1e-4, True)],
)
def test_one_narrow_component_is_resolved_or_refused(mean: float, std: float, resolved: bool) -> None:
    """It needs many points, but the others leave room for some."""
    params = (
        torch.log(torch.tensor([0.5, 0.5])),
        torch.tensor([0.0, mean]),
        2 * torch.log(torch.tensor([0.01, std])),
    )
    assert (n_points(params[1], params[2], REACH) <= CAPACITY) == resolved
    if resolved:
        assert_as_fine_as_claimed(grid_of("torch", params), params)


def test_a_coarser_grid_fails_that_check(monkeypatch: pytest.MonkeyPatch) -> None:
    params = trained_mixture(0, j=17)
    assert_as_fine_as_claimed(grid_of("torch", params), params)
    monkeypatch.setattr(table_module, "FINENESS", 8)
    with pytest.raises(AssertionError):
        assert_as_fine_as_claimed(grid_of("torch", params), params)


def test_reach_is_a_power_of_two_of_at_least_four_times_the_largest() -> None:
    for largest in (0.0, 1e-40, 0.1, 0.25, 0.2500001, 1.0, 3.0, 1e6):
        reach = reach_of(largest)
        assert math.frexp(reach)[0] == 0.5
        assert max(4 * largest, 2.0**-100) <= reach < 2 * max(4 * largest, 2.0**-100)


# The bound


def exact_score(x: Tensor, params: Params, order: int = 1) -> Tensor:
    """The derivative of that order of -log p at each x, in float64."""
    wide = [t.double() for t in params]
    x = x.double().detach().requires_grad_()
    value = mixture_nll_ref([x], *wide)
    for k in range(order):
        (derivative,) = torch.autograd.grad(value, x, create_graph=k + 1 < order)
        value = derivative.sum()
    return derivative.detach().reshape(x.shape)


def some_weights(params: Params, seed: int, n: int = 400) -> Tensor:
    """Weights around the components, between them, and up to the reach."""
    g = torch.Generator().manual_seed(seed)
    j = torch.randint(len(params[1]), (n // 2,), generator=g)
    near = params[1][j] + 3 * torch.exp(0.5 * params[2][j]) * torch.randn(n // 2, generator=g)
    return torch.cat([near, 0.5 * torch.randn(n // 4, generator=g), REACH * (2 * torch.rand(n // 4, generator=g) - 1)])


def ends_of(w: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """The two points beside each weight, in float64: first the one nearer to 0."""
    out = torch.empty(2, len(w), dtype=torch.float64)
    for points, own in zip(sides(grid), (w >= 0, w < 0), strict=True):
        at = torch.searchsorted(points.abs(), w[own].double().abs(), right=True).clamp(max=len(points) - 1)
        out[0, own], out[1, own] = points[at - 1], points[at]
    return out[0], out[1]


@pytest.mark.parametrize("seed", range(4))
def test_the_interpolated_score_is_within_its_bounds(seed: int) -> None:
    """It lies between the scores at the cell's ends, so it is the exact score of some weight in that cell.

    And it is within h^2 / 8 max |s''| of the weight's own. Scores at the points are exact here. So the only further
    error allowed is the rounding to float32 of |w| + unit, which moves a weight, and of the scores.
    """
    params = trained_mixture(seed)
    grid = grid_of("numba", params)
    w = some_weights(params, seed)
    got = torch.empty_like(w)
    look_up("numba", [w], grid, exact_score(grid.points, params).float(), [got])

    inner, outer = ends_of(w, grid)
    scores = torch.stack([exact_score(inner, params), exact_score(outer, params)])
    moved = EPS * (w.double().abs() + grid.unit + inner.abs())
    inside = inner + (outer - inner) * torch.linspace(0, 1, 33, dtype=torch.float64)[:, None]  # (33, n)
    slope = exact_score(inside.reshape(-1), params, 2).reshape(inside.shape).abs().amax(0)
    rounding = 4 * EPS * scores.abs().amax(0) + 2 * moved * slope
    low, high = scores.amin(0) - rounding, scores.amax(0) + rounding
    assert ((low <= got) & (got <= high)).all()

    curvature = exact_score(inside.reshape(-1), params, 3).reshape(inside.shape).abs().amax(0)
    x = w.double().clamp(-(REACH - grid.unit), REACH - grid.unit)
    error = (got - exact_score(x, params)).abs()
    bound = (outer - inner) ** 2 / 8 * curvature
    assert (error <= 1.01 * bound + rounding).all()
    assert (error > 0.1 * bound + rounding).any()  # the bound is not far too wide


@each_table
def test_loss_and_gradients_by_table_are_near_the_exact_ones(backend: str) -> None:
    """Each is a sum over weights of an interpolated function. For log p, the error of a weight is at most
    h^2 / 8 max |s'|, about 1 / 2048 nats inside a component. Errors are relative to the sum of the absolute terms."""
    for seed in range(12 if backend == "numba" else 1):
        params = trained_mixture(seed, 0.01)
        w = params[1].repeat(100) + torch.exp(0.5 * params[2]).repeat(100) * weights(100 * len(params[1])).float()
        exact = loss_and_grads(mixture_nll_ref, [w.double()], [t.double() for t in params])
        table = loss_and_grads(fused(backend, REACH), [w], params)
        std = torch.exp(0.5 * params[2].double())
        away = (w.double() - params[1].double()[:, None]) / std[:, None]  # (J, n)
        r = torch.softmax(params[0].double()[:, None] - std.log()[:, None] - 0.5 * away**2, 0)
        sizes = [
            torch.tensor(float(len(w))),
            r.sum(1),
            (r * away.abs()).sum(1) / std,
            0.5 * (r * (away**2 - 1).abs()).sum(1),
        ]
        for a, b, size in zip(table[:4], exact[:4], sizes, strict=True):
            assert ((a - b).abs() <= 1e-3 * size + 1e-6 * len(w)).all()


def test_the_loss_by_table_is_within_its_bound() -> None:
    for seed in range(8):
        params = trained_mixture(seed)
        w = some_weights(params, seed)
        w = w[w.abs() < REACH - REACH / 4096]
        exact = loss_and_grads(mixture_nll_ref, [w.double()], [t.double() for t in params])[0]
        table, _ = sweep_of("numba", REACH)([w], *params, None)
        inner, outer = ends_of(w, grid_of("numba", params))
        inside = inner + (outer - inner) * torch.linspace(0, 1, 17, dtype=torch.float64)[:, None]
        slope = exact_score(inside.reshape(-1), params, 2).reshape(inside.shape).abs().amax(0)
        step = (exact_score(inside.reshape(-1), params).reshape(inside.shape).abs().amax(0)) * (outer - inner).abs()
        bound = (1.01 * (outer - inner) ** 2 / 8 * slope + 2.0**-14 * step).sum()
        each = -torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(logits=params[0].double()),
            torch.distributions.Normal(params[1].double(), torch.exp(0.5 * params[2].double())),
        ).log_prob(w.double())
        assert abs(float(table - exact)) <= bound + 1e-6 * each.abs().sum()


# Looking up


def interpolated(w: Tensor, grid: Grid, score: Tensor) -> Tensor:
    """Interpolation by numpy, in float64. It is constant beyond the reach."""
    up, down = sides(grid)
    x = torch.cat([down.flip(0), up[1:]])
    s = torch.cat([score[len(up) :].flip(0), score[1 : len(up)]])
    return torch.from_numpy(np.interp(w.double().numpy(), x.numpy(), s.double().numpy()))


def smooth_score(grid: Grid) -> Tensor:
    """A score whose slope is at most 2, which shows a weight that rounding has moved."""
    return torch.sin(2 * grid.points) + 0.5


LOOKUPS = [("numba", torch.float32), ("numba", torch.bfloat16), ("numba", torch.float16)]
LOOKUPS += [("triton", torch.bfloat16)] if "triton" in BACKENDS else []


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "dtype"), LOOKUPS)
def test_gradients_are_interpolated_filled_or_added(backend: str, dtype: torch.dtype) -> None:
    params = trained_mixture(3, j=17)
    grid = grid_of("torch", params)
    score = smooth_score(grid)
    ws = [some_weights(params, seed).to(dtype) for seed in (0, 1)]
    ws[1] = ws[1][:37]
    grads = [torch.full_like(w, math.nan) for w in ws]
    counts = look_up(backend, ws, grid, score, grads)
    tolerance = torch.finfo(dtype).eps * 2 + 4 * EPS * REACH
    for w, g in zip(ws, grads, strict=True):
        torch.testing.assert_close(g.double(), interpolated(w, grid, score), rtol=0, atol=tolerance)
    added = [torch.full_like(w, 0.25) for w in ws]
    assert torch.equal(look_up(backend, ws, grid, score, added, add=True), counts)
    for w, g in zip(ws, added, strict=True):
        torch.testing.assert_close(g.double(), 0.25 + interpolated(w, grid, score), rtol=0, atol=tolerance)
    assert torch.equal(look_up(backend, ws, grid, score, None), counts)


@each_table
def test_counts_add_up_and_linear_functions_are_exact(backend: str) -> None:
    params = trained_mixture(3, j=17)
    grid = grid_of("torch", params)
    ws = [some_weights(params, 0), torch.empty(0), some_weights(params, 1)]
    counts = look_up(backend, ws, grid, smooth_score(grid)).double()
    assert float(counts.sum()) == pytest.approx(800, rel=1e-6)
    assert (counts >= 0).all()
    inside = torch.cat(ws).double().clamp(-(REACH - grid.unit), REACH - grid.unit)
    assert float(counts @ grid.points.double()) == pytest.approx(float(inside.sum()), abs=800 * 2.0**-16 * 0.1)


@needs_triton
def test_numba_and_triton_find_the_same() -> None:
    params = trained_mixture(5, j=17)
    grid = grid_of("torch", params)
    score = smooth_score(grid)
    w = torch.cat([some_weights(params, 2), odd_weights()])
    one, other = torch.empty_like(w), torch.empty_like(w)
    counts = look_up("numba", [w], grid, score, [one])
    torch.testing.assert_close(look_up("triton", [w], grid, score, [other]), counts, rtol=0, atol=2e-6)
    torch.testing.assert_close(other, one, rtol=0, atol=4 * EPS)


def odd_weights() -> Tensor:
    values = [0.0, -0.0, 1e-45, -1e-45, 1e-39, REACH, 100 * REACH, 3e38, math.inf]
    edges = [REACH - REACH / 4096, REACH / 4096, math.nextafter(REACH, 0), 0.25]
    return torch.tensor([*values, *edges, *(-v for v in (*values, *edges)), math.nan])


@each_table
def test_odd_weights_are_looked_up_where_they_belong(backend: str) -> None:
    """0 is found at 0, and weights beyond the reach at its end. NaN may be anywhere."""
    params = trained_mixture(5, j=17)
    grid = grid_of("torch", params)
    score = smooth_score(grid)
    w = odd_weights()
    negative_nan = torch.tensor([-1], dtype=torch.int32).view(torch.float32)
    got, of_nan = torch.empty_like(w), torch.empty(1)
    counts = look_up(backend, [w, negative_nan], grid, score, [got, of_nan])
    assert float(counts.sum()) == pytest.approx(len(w) + 1, rel=1e-6)
    torch.testing.assert_close(got[:-1].double(), interpolated(w[:-1], grid, score), rtol=0, atol=4 * EPS * REACH)
    assert abs(float(got[0]) - 0.5) < EPS
    assert float(score.min()) <= float(got[-1]) <= float(score.max())
    assert float(score.min()) <= float(of_nan) <= float(score.max())


@each_table
def test_no_weights_at_all(backend: str) -> None:
    grid = grid_of("torch", trained_mixture(5, j=17))
    for ws in ([], [torch.empty(0)]):
        counts = look_up(backend, ws, grid, smooth_score(grid), [torch.empty_like(w) for w in ws])
        assert not counts.any()


def test_the_number_of_threads_changes_nothing_by_table() -> None:
    params, ws = trained_mixture(0), [0.2 * weights(n, torch.float32) for n in (200_000, 3, 40_000)]
    was = torch.get_num_threads()
    try:
        runs = []
        for threads in (1, 2, 3, 2):
            torch.set_num_threads(threads)
            runs.append(loss_and_grads(fused("numba", REACH), ws, params))
    finally:
        torch.set_num_threads(was)
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


@needs_gpu
def test_two_runs_by_table_are_equal_on_a_gpu() -> None:
    params, w = trained_mixture(0), 0.2 * weights(1_000_000, torch.float32)
    first, second = (loss_and_grads(fused("triton", REACH), [w], params) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_many_rows_of_counts_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more weights than one row can count without overflow."""
    grid = grid_of("torch", trained_mixture(0))
    w = 0.2 * weights(200_000, torch.float32)
    expected = look_up("numba", [w], grid, smooth_score(grid))
    monkeypatch.setattr(module("table_numba"), "MOST_COUNTED", 40_000)
    assert torch.equal(look_up("numba", [w], grid, smooth_score(grid)), expected)


@pytest.mark.slow
@needs_triton
def test_counting_a_sample_of_the_blocks_is_unbiased(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in two blocks is counted, and counts twice. A tensor of few blocks is counted in full."""
    triton = module("table_triton")
    grid = grid_of("torch", trained_mixture(0))
    large, small = 0.2 * weights(16 * 12 - 5, torch.float32), 0.2 * weights(45, torch.float32, seed=8)
    expected = look_up("triton", [large], grid, smooth_score(grid)).double()
    expected_small = look_up("triton", [small], grid, smooth_score(grid)).double()
    monkeypatch.setattr(triton, "BLOCK", 16)
    monkeypatch.setattr(triton, "LEAST_BLOCKS", 4)
    monkeypatch.setattr(table_module, "MOST_COUNTED", 120)  # one in 2
    runs = []
    for start in (0.1, 0.9):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "rand", lambda *args, start=start, device: torch.tensor(start, device=device))
            runs.append(look_up("triton", [large, small], grid, smooth_score(grid)).double() - expected_small)
    torch.testing.assert_close(torch.stack(runs).mean(0), expected, rtol=1e-5, atol=1e-5)
    assert [round(float(run.sum())) for run in runs] == [2 * 96, 2 * 91]  # the last block is short


@pytest.mark.slow
@needs_triton
def test_gradients_are_never_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = grid_of("torch", trained_mixture(0))
    w = 0.2 * weights(600, torch.float32)
    monkeypatch.setattr(module("table_triton"), "BLOCK", 128)
    monkeypatch.setattr(module("table_triton"), "LEAST_BLOCKS", 1)
    monkeypatch.setattr(table_module, "MOST_COUNTED", 300)
    got = torch.full_like(w, math.nan)
    counts = look_up("triton", [w], grid, smooth_score(grid), [got])
    assert round(float(counts.sum())) in (2 * (128 + 128 + 88), 2 * (128 + 128))
    torch.testing.assert_close(got.double(), interpolated(w, grid, smooth_score(grid)), rtol=0, atol=4 * EPS * REACH)


# The prior's choice


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(40, 25).to(dtype)


def one_mixture(**changes: Any) -> ss.PriorConfig:
    gammas = {"zero_precision_prior": ss.Gamma(5000, 2), "free_precision_prior": ss.Gamma(250, 0.1)}
    start = {"mixtures": "global", "components": 16, "width": None, "init_std": 0.01}
    return ss.PriorConfig(**{**start, **gammas, **changes})


def narrow(method: Any, components: int = 16) -> ss.PriorConfig:
    return one_mixture(components=components, init_std=1e-6, method=method)


@pytest.mark.parametrize("components", [16, 1])
def test_a_table_that_cannot_resolve_the_components_is_refused(
    components: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"method 'table': expected at most 16384 points.*'auto' or 'exact'"):
        ss.MixturePrior(net(), narrow("table", components))
    monkeypatch.setitem(prior_module.TABLE_FROM, "cpu", 0)
    assert ss.MixturePrior(net(), narrow("auto", components)).reaches == [None]


def test_auto_takes_the_table_for_large_networks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ss.MixturePrior(net(), one_mixture()).reaches == [None]
    monkeypatch.setitem(prior_module.TABLE_FROM, "cpu", 40 * 26 * 17)
    assert ss.MixturePrior(net(), one_mixture()).reaches == [None]
    monkeypatch.setitem(prior_module.TABLE_FROM, "cpu", 41 * 25 * 17)
    assert ss.MixturePrior(net(), one_mixture()).reaches == [1.0]  # 4 times a largest weight of 1 / sqrt(40)
    assert ss.MixturePrior(net(), one_mixture(method="exact")).reaches == [None]
    assert ss.MixturePrior(net(), one_mixture(backend="torch")).reaches == [None]
    assert ss.MixturePrior(net(torch.float64), one_mixture()).reaches == [None]


def test_exact_never_makes_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(prior_module.TABLE_FROM, "cpu", 0)
    monkeypatch.delattr(module("table_numba"), "look_up")
    prior = ss.MixturePrior(net(), one_mixture(method="exact"))
    prior.loss(1.0, 1).backward()
    prior.add_gradients_(1.0, 1)


def test_a_table_in_plain_torch_or_of_float64_is_not_available() -> None:
    for model, backend in ((net(), "torch"), (net(torch.float64), "auto")):
        with pytest.raises(NotAvailableError, match="by table here"):
            ss.MixturePrior(model, one_mixture(method="table", backend=backend)).loss(1.0, 1)
    with pytest.raises(NotAvailableError, match=r"'torch' .* float32 mixture on cpu by table .* available: numba"):
        find_sweep(torch.zeros(2), "torch", REACH)


def test_the_table_is_near_the_exact_prior_and_evaluation_is_exact() -> None:
    config = one_mixture(zero_precision_prior=None, free_precision_prior=None, method="exact")
    by_table = ss.MixturePrior(net(), dataclasses.replace(config, method="table"))
    exact = ss.MixturePrior(net(), config).neg_log_prior().item()
    table = by_table.neg_log_prior().item()
    assert exact != table
    assert table == pytest.approx(exact, rel=1e-3)
    with torch.no_grad():
        assert float(by_table.neg_log_prior()) == pytest.approx(exact, rel=1e-7)


def test_the_method_is_chosen_again_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that has left the table is inside the new one."""
    monkeypatch.setattr(prior_module, "LOOK_EVERY", 4)
    prior = ss.MixturePrior(net(), one_mixture(method="table"))
    reaches: list[float | None] = []
    for step in range(12):
        if step == 1:
            with torch.no_grad():
                prior.view.tensors[0][0, 0] = 6.0
        reaches += prior.reaches
        if step % 2:
            prior.add_gradients_(1.0, 1)
        else:
            prior.loss(1.0, 1).backward()
    assert reaches == [1.0] * 4 + [32.0] * 8


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_network_that_diverges_between_two_looks_is_reported(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table must not fail, although it reads weights that are not finite."""
    monkeypatch.setattr(prior_module, "LOOK_EVERY", 1)
    batches = [torch.tensor(x) for x in (1.0, value, 1.0, 1.0)]
    task = ss.Task(net(), batches, lambda model, batch: batch * model(torch.ones(40)).sum(), lambda model: 1.0, 4)
    prior = ss.MixturePrior(task.model, one_mixture(method="table"))
    with pytest.raises(DivergedError):
        retrain_(task, prior, ss.RetrainConfig(epochs=1))
