"""What steering does to the prior, and in which direction."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import softshare as ss
from softshare.target.limits import MaxBytes, MaxError
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


def record(epoch: int, error: float) -> EpochRecord:
    return EpochRecord(epoch, 0.0, 0.1, 0.0, 0.0, 0.0, error, 0)


def make_steering(
    target: MaxBytes | MaxError, sizes: list[int], error: float = 0.0
) -> tuple[Steering, ss.MixturePrior]:
    """A run of ten epochs, all hard, whose files have these sizes, one after the other.

    `error` is that of the quantized network before the hard phase.
    """
    model, prior = make_prior()
    remaining = iter(sizes)
    config = ss.RetrainConfig(epochs=10, hard_from=0.0)
    size = lambda exact: 1000 if exact else next(remaining)  # noqa: E731
    return Steering(target, config, model, prior, size, lambda: error), prior


def hard_epoch(steering: Steering, prior: ss.MixturePrior, epoch: int, error: float) -> None:
    steering.zero_(prior, [torch.ones_like(w) for w in prior.view.tensors], 1e-5, epoch / 10)
    steering.on_epoch(record(epoch, error))


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
    steering, prior = make_steering(MaxBytes(950), [1000] * 9)
    n = n_nonzero(prior)
    hard_epoch(steering, prior, 9, 5.0)  # the path has reached the budget by now
    assert 0 < n_nonzero(prior) < n
    assert steering.tau_scale == 1.0

    steering, prior = make_steering(MaxBytes(2000), [1000] * 9)
    hard_epoch(steering, prior, 1, 5.0)
    assert n < n_nonzero(prior) <= 1.01 * MOST_GROWTH * n
    assert steering.tau_scale == pytest.approx(1 / 2.02)


def test_late_in_the_run_nothing_grows_but_tau_falls() -> None:
    steering, prior = make_steering(MaxBytes(2000), [1000] * 9)
    n = n_nonzero(prior)
    hard_epoch(steering, prior, 9, 5.0)
    assert n_nonzero(prior) == n
    assert steering.tau_scale < 1


@pytest.mark.parametrize(("error", "rises"), [(1.0, True), (2.0, False), (9.0, False)])
def test_the_price_rises_while_the_error_leaves_room_and_else_falls(error: float, rises: bool) -> None:
    steering, prior = make_steering(MaxError(2.0), [1000] * 9)
    steering.on_epoch(record(0, 1.0))
    start = steering.zeroing
    hard_epoch(steering, prior, 9, error)
    assert (steering.zeroing > start) == rises
    assert (steering.tau_scale < 1) != rises


def test_the_best_network_is_restored_if_the_last_is_above_the_limit() -> None:
    steering, prior = make_steering(MaxError(2.0), [1000, 900, 1000, 700, 1000, 800, 1000])
    steering.on_epoch(record(0, 1.0))
    for epoch, error in ((7, 1.9), (8, 1.8), (9, 1.7), (10, 2.1)):
        with torch.no_grad():
            prior.view.tensors[0].fill_(epoch)
        hard_epoch(steering, prior, epoch, error)
    assert steering.settle_() == 8  # of those within the limit, it has the smallest file, 700
    assert bool((prior.view.tensors[0] == 8).all())


@pytest.mark.parametrize(("error", "falls"), [(1.0, False), (90.0, True)])
def test_before_the_hard_phase_tau_falls_if_the_quantized_network_is_far_above_the_limit(
    error: float, falls: bool
) -> None:
    steering, prior = make_steering(MaxError(2.0), [], error)
    assert not is_starved(prior)
    for epoch in range(2):
        steering.on_epoch(record(epoch, 0.0))  # before it is quantized, the network is good
    assert (steering.tau_scale < 1) == falls


@pytest.mark.parametrize("target", [MaxError(2.0), MaxBytes(500)], ids=repr)
def test_before_the_hard_phase_tau_falls_if_a_layer_is_nearly_empty(target: MaxBytes | MaxError) -> None:
    steering, prior = make_steering(target, [1000])
    with torch.no_grad():
        for w in prior.parts[1].tensors:
            w.zero_()
    for epoch in range(2):
        steering.on_epoch(record(epoch, 0.0))
    assert steering.tau_scale < 1


def test_nothing_is_zeroed_by_the_gradients_of_a_broken_network() -> None:
    steering, prior = make_steering(MaxError(2.0), [1000] * 9, error=90.0)
    for epoch in range(2):
        steering.on_epoch(record(epoch, 0.0))
    n = n_nonzero(prior)
    steering.zero_(prior, [torch.zeros_like(w) for w in prior.view.tensors], 1e-5, 0.2)
    assert n_nonzero(prior) == n


def test_the_last_network_stays_if_it_is_within_the_limit() -> None:
    steering, prior = make_steering(MaxError(2.0), [1000] * 9)
    steering.on_epoch(record(0, 1.0))
    hard_epoch(steering, prior, 10, 1.5)
    assert steering.settle_() is None
