"""The sweep on a sample of the weights: unbiased, reproducible, and its cost in proportion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from kernels import distance, each_backend, parameters, sweep_of, weights
from softshare.errors import ConfigError
from softshare.prior.kernels import sampled
from softshare.prior.kernels.sweep import Sweep, sweep_torch

SIZES = [7, 0, 1, 23, 6]  # 37 weights in several tensors, one of them empty
each_schedule = pytest.mark.parametrize("schedule", ["block", "random"])


def some_weights(sizes: Sequence[int] = SIZES) -> list[Tensor]:
    return [weights(n, seed=k) for k, n in enumerate(sizes)]


def swept(sweep: Sweep, ws: Sequence[Tensor], scale: float | None = None, fill: float = math.nan) -> list[Tensor]:
    """Loss, sums and gradients as one list; gradients are `fill` before."""
    params = parameters(4, ws[0].dtype)
    grads = [torch.full_like(w, fill) for w in ws]
    factor = None if scale is None else torch.tensor(scale, dtype=ws[0].dtype)
    loss, sums = sweep(ws, *params, grads, factor)
    return [loss, sums, torch.cat(grads)]


def counted(seen: list[int]) -> Sweep:
    """The exact sweep; notes how many weights it is given."""

    def sweep(weights: Sequence[Tensor], *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        seen.append(sum(len(w) for w in weights))
        return sweep_torch(weights, *args, **kwargs)

    return cast(Sweep, sweep)


def starting_at(start: int) -> Callable[..., Tensor]:
    return lambda high, size: torch.tensor(start)


@pytest.mark.parametrize("one_in", [2, 5, 37, 50])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_blocks_from_all_starts_have_the_mean_of_the_full_sweep(
    one_in: int, scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, for there are no more than 37 starts; each draws as many weights, around the end."""
    ws, seen = some_weights(), list[int]()
    full = swept(sweep_torch, ws, scale, fill=0.0)
    runs = []
    for start in range(37):
        monkeypatch.setattr(torch, "randint", starting_at(start))
        runs.append(swept(sampled(counted(seen), one_in, "block"), ws, scale, fill=0.0))
    for parts, expected in zip(zip(*runs, strict=True), full, strict=True):
        torch.testing.assert_close(torch.stack(parts).mean(0), expected, rtol=1e-12, atol=1e-12)
    assert seen == [math.ceil(37 / one_in)] * 37
    assert all(int((run[2] != 0).sum()) == math.ceil(37 / one_in) for run in runs)


def test_a_block_goes_around_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randint", starting_at(34))
    gradient = swept(sampled(sweep_torch, 5, "block"), some_weights())[2]
    assert (gradient != 0).nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 34, 35, 36]


@pytest.mark.parametrize("one_in", [2, 5, 24])
def test_random_samples_have_the_mean_of_the_full_sweep(one_in: int) -> None:
    """2,000 draws of a fixed seed: within 5 standard errors of each of the 50 values."""
    torch.manual_seed(0)
    ws = some_weights()
    full = torch.cat([t.reshape(-1) for t in swept(sweep_torch, ws)])
    sample = sampled(sweep_torch, one_in, "random")
    runs = torch.stack([torch.cat([t.reshape(-1) for t in swept(sample, ws)]) for _ in range(2000)])
    error = runs.std(0) / math.sqrt(len(runs))
    assert (error > 0).all()
    assert ((runs.mean(0) - full).abs() <= 5 * error).all()


def test_random_samples_draw_one_of_every_so_many() -> None:
    torch.manual_seed(0)
    sample = sampled(sweep_torch, 5, "random")
    chosen = torch.stack([swept(sample, some_weights([20]))[2] != 0 for _ in range(200)])
    assert (chosen.view(200, 4, 5).sum(2) == 1).all()
    assert (chosen.sum(0) > 20).all()  # 40 expected: every weight has its turn


@each_schedule
@pytest.mark.parametrize("n", [1000, 1003])
def test_the_cost_is_in_proportion(schedule: str, n: int) -> None:
    torch.manual_seed(0)
    for one_in in (2, 10, 100):
        seen: list[int] = []
        for _ in range(10):
            swept(sampled(counted(seen), one_in, schedule), some_weights([n]))
        if schedule == "block":
            assert set(seen) == {math.ceil(n / one_in)}
        else:
            assert set(seen) <= {n // one_in, n // one_in + 1}


@each_schedule
def test_the_random_state_decides(schedule: str) -> None:
    sample, ws = sampled(sweep_torch, 4, schedule), some_weights()
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        runs.append([swept(sample, ws)[2] for _ in range(3)])
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))
    assert not torch.equal(runs[0][0], runs[0][1])  # others in each call


@each_schedule
def test_one_in_one_is_the_sweep_itself(schedule: str) -> None:
    assert sampled(sweep_torch, 1, schedule) is sweep_torch


@each_schedule
@each_backend
def test_gradients_of_drawn_weights_are_scaled_up_and_others_are_0(backend: str, schedule: str) -> None:
    ws = [w.float() for w in some_weights()]
    full = swept(sweep_torch, ws)[2]
    torch.manual_seed(1)
    gradient = swept(sampled(sweep_of(backend), 3, schedule), ws)[2]
    drawn = gradient != 0
    factor = 37 / 13 if schedule == "block" else 3
    assert 10 <= int(drawn.sum()) <= 15
    torch.testing.assert_close(gradient[drawn], factor * full[drawn], rtol=1e-4, atol=1e-5)
    torch.manual_seed(1)
    added = swept(sampled(sweep_of(backend), 3, schedule), ws, scale=0.5, fill=2.0)[2]
    torch.testing.assert_close(added, 2 + 0.5 * gradient)


@each_schedule
def test_a_loss_alone_draws_a_sample_too(schedule: str) -> None:
    ws, params = some_weights(), parameters(4)
    torch.manual_seed(1)
    with_gradients = swept(sampled(sweep_torch, 3, schedule), ws)
    torch.manual_seed(1)
    assert torch.equal(sampled(sweep_torch, 3, schedule)(ws, *params, None)[0], with_gradients[0])


@each_schedule
def test_no_weights_are_no_error(schedule: str) -> None:
    loss, sums, _ = swept(sampled(sweep_torch, 3, schedule), [torch.empty(0, dtype=torch.float64)])
    assert loss == 0
    assert not sums.any()


@each_schedule
def test_a_sample_counts_each_weight_once(schedule: str) -> None:
    with pytest.raises(ValueError, match="once"):
        sampled(sweep_torch, 3, schedule)(some_weights(), *parameters(4), None, None, some_weights())


# Through the prior


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 10))


def make_prior(one_in: int, schedule: Any, method: Any = "exact") -> ss.MixturePrior:
    config = ss.PriorConfig(
        mixtures="global",
        components=16,
        width=None,
        init_std=0.01,
        zero_precision_prior=ss.Gamma(5000, 2),
        free_precision_prior=ss.Gamma(250, 0.1),
        sample_one_in=one_in,
        sample_schedule=schedule,
        method=method,
    )
    return ss.MixturePrior(net(), config)


def gradients(prior: ss.MixturePrior, in_place: bool) -> list[Tensor]:
    """Of weights and mixture, drawn by one seed."""
    torch.manual_seed(7)
    if in_place:
        prior.add_gradients_(0.5, 10)
    else:
        prior.loss(0.5, 10).backward()
    return [t.grad for t in (*prior.view.tensors, *prior.parameters()) if t.grad is not None]


@each_schedule
@pytest.mark.parametrize("method", ["exact", "table"])
def test_both_ways_of_a_prior_take_the_same_sample(schedule: str, method: str) -> None:
    by_loss = gradients(make_prior(4, schedule, method), in_place=False)
    added = gradients(make_prior(4, schedule, method), in_place=True)
    assert max(distance(added, [g.double() for g in by_loss])) < 1e-5
    n = sum(g.numel() for g in by_loss[:4])
    drawn = sum(int((g != 0).sum()) for g in by_loss[:4])
    assert drawn == pytest.approx(n / 4, abs=2)


@each_schedule
def test_by_table_a_sample_is_near_the_exact_one(schedule: str) -> None:
    exact, table = (gradients(make_prior(4, schedule, method), in_place=True) for method in ("exact", "table"))
    assert max(distance(table, [g.double() for g in exact])) < 5e-3


@each_schedule
def test_under_no_grad_all_weights_count(schedule: str) -> None:
    with torch.no_grad():
        assert torch.equal(make_prior(4, schedule).neg_log_prior(), make_prior(1, schedule).neg_log_prior())


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_a_bad_number_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="sample_one_in: expected"):
        ss.PriorConfig(sample_one_in=bad)
    with pytest.raises(ConfigError, match="sample_schedule: expected one of block, random"):
        ss.PriorConfig(sample_schedule="cyclic")  # type: ignore[arg-type]
