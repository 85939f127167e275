"""What steering does to the prior, and in which direction."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import softshare as ss
from softshare.target.steer import MOST_GROWTH, Steering, grow_, is_starved
from softshare.train.hooks import EpochRecord


def make_prior(seed: int = 0) -> tuple[nn.Module, ss.MixturePrior]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 10))
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    return model, ss.MixturePrior(model, ss.PriorConfig(zero_mixing=0.999))


def n_nonzero(prior: ss.MixturePrior) -> int:
    return prior.quantize().quantized.n_nonzero


def density(prior: ss.MixturePrior) -> dict[str, float]:
    return {t.name: t.n_nonzero / t.indices.numel() for t in prior.quantize().quantized.shared}


def make_steering(max_bytes: int, sizes: list[int]) -> tuple[Steering, ss.MixturePrior]:
    """A run of ten epochs, all hard, whose files have these sizes, one after the other."""
    _, prior = make_prior()
    remaining = iter(sizes)
    config = ss.RetrainConfig(epochs=10, hard_from=0.0)
    return Steering(max_bytes, config, prior, lambda exact: 1000 if exact else next(remaining)), prior


def soft_epoch(steering: Steering, epoch: int) -> None:
    steering.on_epoch(EpochRecord(epoch, 0.0, 0.1, 0.0, 0.0, 0.0, 5.0, 0))


def hard_epoch(steering: Steering, prior: ss.MixturePrior, epoch: int) -> None:
    steering.zero_(prior, [torch.ones_like(w) for w in prior.view.tensors], 1e-5, epoch / 10)
    soft_epoch(steering, epoch)


def test_growth_is_by_the_factor_and_changes_no_weight() -> None:
    for factor in (1.05, 1.5):
        model, prior = make_prior()
        before, n = copy.deepcopy(model.state_dict()), n_nonzero(prior)
        assert n > 100
        grow_(prior, factor)
        assert n_nonzero(prior) == pytest.approx(factor * n, rel=0.02)
        assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_growth_ends_where_half_of_the_mixing_is_left() -> None:
    _, prior = make_prior()
    grow_(prior, 1e6)
    assert prior.zero_logit.tolist() == pytest.approx([0, 0], abs=0.01)


def test_growth_ends_at_a_half_in_each_mixture() -> None:
    _, prior = make_prior()
    prior.zero_logit[0], prior.zero_logit[1] = -1.0, 2.0
    grow_(prior, 1e6)
    assert prior.zero_logit.tolist() == pytest.approx([-1, 0], abs=0.01)


@torch.no_grad()
def test_growth_gives_an_empty_layer_weights_whatever_the_factor() -> None:
    """No factor makes none into some."""
    _, prior = make_prior()
    n = density(prior)["0.weight"]
    for w in prior.parts[1].tensors:
        w.mul_(1e-3)
        w.view(-1)[:2] = 0.6 * prior.means[1].max()  # within reach, once the mixing is lower
    prior.zero_logit[1] = 12.0
    assert density(prior)["2.weight"] == 0
    assert is_starved(prior)
    grow_(prior, 1.0)
    assert 0 < density(prior)["2.weight"] < 0.05
    assert density(prior)["0.weight"] == pytest.approx(n, rel=0.01)
    assert not is_starved(prior)


def test_a_file_above_the_path_loses_weights_and_one_below_gains() -> None:
    steering, prior = make_steering(950, [1000] * 9)
    n = n_nonzero(prior)
    hard_epoch(steering, prior, 9)  # the path has reached the budget by now
    assert 0 < n_nonzero(prior) < n
    assert steering.tau_scale == 1.0

    steering, prior = make_steering(2000, [1000] * 9)
    hard_epoch(steering, prior, 1)
    assert n < n_nonzero(prior) <= 1.01 * MOST_GROWTH * n
    assert steering.tau_scale == pytest.approx(1 / 2.02)


def test_late_in_the_run_nothing_grows_but_tau_falls() -> None:
    steering, prior = make_steering(2000, [1000] * 9)
    n = n_nonzero(prior)
    hard_epoch(steering, prior, 9)
    assert n_nonzero(prior) == n
    assert steering.tau_scale < 1


@pytest.mark.parametrize(("max_bytes", "falls"), [(500, False), (4000, True)])
def test_before_the_hard_phase_tau_falls_if_the_file_should_be_larger(max_bytes: int, falls: bool) -> None:
    steering, prior = make_steering(max_bytes, [1000])
    n = n_nonzero(prior)
    assert not is_starved(prior)
    for epoch in range(2):
        soft_epoch(steering, epoch)
    assert (steering.tau_scale < 1) == falls
    assert n_nonzero(prior) == n


def test_before_the_hard_phase_tau_falls_if_a_layer_is_nearly_empty() -> None:
    steering, prior = make_steering(500, [1000])
    with torch.no_grad():
        for w in prior.parts[1].tensors:
            w.zero_()
    for epoch in range(2):
        soft_epoch(steering, epoch)
    assert steering.tau_scale == pytest.approx(0.5)


def test_tau_never_falls_to_nothing_and_never_rises_above_the_configs() -> None:
    steering, _ = make_steering(10**9, [1000])
    for _ in range(2):
        steering._growth = 1e6
        steering._is_hard = True
        soft_epoch(steering, 9)
    assert steering.tau_scale == 1 / 64
    steering._growth = 1e-6
    soft_epoch(steering, 9)
    assert steering.tau_scale == 1.0


def test_the_simplified_file_is_measured_again_after_3_looks_or_a_change_by_a_tenth() -> None:
    """Simplifying takes long. In between, its share of the plain file is taken to be the last one."""
    plain = [1000, 1000, 1000, 1000, 1200, 1250]
    exact: list[int] = []
    _, prior = make_prior()
    sizes = iter(plain)

    def size(is_exact: bool) -> int:
        if is_exact:
            exact.append(now[-1])
            return now[-1] // 2
        now.append(next(sizes))
        return now[-1]

    now: list[int] = []
    steering = Steering(10**6, ss.RetrainConfig(epochs=10, hard_from=0.0), prior, size)
    assert [steering._bytes() for _ in plain] == [500, 500, 500, 500, 600, 625]
    assert exact == [1000, 1000, 1200]  # the first, the fourth, and the fifth
