"""The sweep on a sample of the weights is unbiased and reproducible, and its cost is in proportion."""

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


def some_weights(sizes: Sequence[int] = SIZES) -> list[Tensor]:
    return [weights(n, seed=k) for k, n in enumerate(sizes)]


def swept(sweep: Sweep, ws: Sequence[Tensor], scale: float | None = None, fill: float = math.nan) -> list[Tensor]:
    """Loss, sums and gradients as one list. Gradients start at `fill`."""
    params = parameters(4, ws[0].dtype)
    grads = [torch.full_like(w, fill) for w in ws]
    factor = None if scale is None else torch.tensor(scale, dtype=ws[0].dtype)
    loss, sums = sweep(ws, *params, grads, factor)
    return [loss, sums, torch.cat(grads)]


def counted(seen: list[int]) -> Sweep:
    """The exact sweep. It records the number of weights in each call."""

    def sweep(weights: Sequence[Tensor], *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        seen.append(sum(len(w) for w in weights))
        return sweep_torch(weights, *args, **kwargs)

    return cast(Sweep, sweep)


def starting_at(start: int) -> Callable[..., Tensor]:
    return lambda high, size: torch.tensor(start)


@pytest.mark.parametrize(("one_in", "scale"), [(2, None), (5, 0.3), (37, None), (50, 0.3)])
def test_blocks_from_all_starts_have_the_mean_of_the_full_sweep(
    one_in: int, scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly, because there are only 37 starts. Each draws the same number of weights, around the end."""
    ws, seen = some_weights(), list[int]()
    full = swept(sweep_torch, ws, scale, fill=0.0)
    runs = []
    for start in range(37):
        monkeypatch.setattr(torch, "randint", starting_at(start))
        runs.append(swept(sampled(counted(seen), one_in), ws, scale, fill=0.0))
    for parts, expected in zip(zip(*runs, strict=True), full, strict=True):
        torch.testing.assert_close(torch.stack(parts).mean(0), expected, rtol=1e-12, atol=1e-12)
    assert seen == [math.ceil(37 / one_in)] * 37
    assert all(int((run[2] != 0).sum()) == math.ceil(37 / one_in) for run in runs)


def test_a_block_goes_around_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randint", starting_at(34))
    gradient = swept(sampled(sweep_torch, 5), some_weights())[2]
    assert (gradient != 0).nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 34, 35, 36]


@pytest.mark.parametrize("n", [1000, 1003])
def test_the_cost_is_in_proportion(n: int) -> None:
    torch.manual_seed(0)
    for one_in in (2, 10, 100):
        seen: list[int] = []
        for _ in range(10):
            swept(sampled(counted(seen), one_in), some_weights([n]))
        assert set(seen) == {math.ceil(n / one_in)}


def test_the_random_state_decides() -> None:
    sample, ws = sampled(sweep_torch, 4), some_weights()
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        runs.append([swept(sample, ws)[2] for _ in range(3)])
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))
    assert not torch.equal(runs[0][0], runs[0][1])  # each call draws other weights


def test_one_in_one_is_the_sweep_itself() -> None:
    assert sampled(sweep_torch, 1) is sweep_torch


@each_backend
def test_gradients_of_drawn_weights_are_scaled_up_and_others_are_0(backend: str) -> None:
    ws = [w.float() for w in some_weights()]
    full = swept(sweep_torch, ws)[2]
    torch.manual_seed(1)
    gradient = swept(sampled(sweep_of(backend), 3), ws)[2]
    drawn = gradient != 0
    factor = 37 / 13
    assert 10 <= int(drawn.sum()) <= 15
    torch.testing.assert_close(gradient[drawn], factor * full[drawn], rtol=1e-4, atol=1e-5)
    torch.manual_seed(1)
    added = swept(sampled(sweep_of(backend), 3), ws, scale=0.5, fill=2.0)[2]
    torch.testing.assert_close(added, 2 + 0.5 * gradient)


def test_a_loss_alone_draws_a_sample_too() -> None:
    ws, params = some_weights(), parameters(4)
    torch.manual_seed(1)
    with_gradients = swept(sampled(sweep_torch, 3), ws)
    torch.manual_seed(1)
    assert torch.equal(sampled(sweep_torch, 3)(ws, *params, None)[0], with_gradients[0])


def test_no_weights_are_no_error() -> None:
    loss, sums, _ = swept(sampled(sweep_torch, 3), [torch.empty(0, dtype=torch.float64)])
    assert loss == 0
    assert not sums.any()


def test_a_sample_counts_each_weight_once() -> None:
    with pytest.raises(ValueError, match="once"):
        sampled(sweep_torch, 3)(some_weights(), *parameters(4), None, None, some_weights())


# Through the prior


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 10))


def make_prior(one_in: int, method: Any = "exact") -> ss.MixturePrior:
    config = ss.PriorConfig(
        mixtures="global",
        components=16,
        width=None,
        init_std=0.01,
        zero_precision_prior=ss.Gamma(5000, 2),
        free_precision_prior=ss.Gamma(250, 0.1),
        sample_one_in=one_in,
        method=method,
    )
    return ss.MixturePrior(net(), config)


def gradients(prior: ss.MixturePrior, in_place: bool) -> list[Tensor]:
    """Gradients of weights and mixture, with the sample of one seed."""
    torch.manual_seed(7)
    if in_place:
        prior.add_gradients_(0.5, 10)
    else:
        prior.loss(0.5, 10).backward()
    return [t.grad for t in (*prior.view.tensors, *prior.parameters()) if t.grad is not None]


@pytest.mark.parametrize("method", ["exact", "table"])
def test_both_ways_of_a_prior_take_the_same_sample(method: str) -> None:
    by_loss = gradients(make_prior(4, method), in_place=False)
    added = gradients(make_prior(4, method), in_place=True)
    assert max(distance(added, [g.double() for g in by_loss])) < 1e-5
    n = sum(g.numel() for g in by_loss[:4])
    drawn = sum(int((g != 0).sum()) for g in by_loss[:4])
    assert drawn == pytest.approx(n / 4, abs=2)


def test_by_table_a_sample_is_near_the_exact_one() -> None:
    exact, table = (gradients(make_prior(4, method), in_place=True) for method in ("exact", "table"))
    assert max(distance(table, [g.double() for g in exact])) < 5e-3


def test_under_no_grad_all_weights_count() -> None:
    with torch.no_grad():
        assert torch.equal(make_prior(4).neg_log_prior(), make_prior(1).neg_log_prior())


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_a_bad_number_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="sample_one_in: expected"):
        ss.PriorConfig(sample_one_in=bad)
