"""MixturePrior: its start, its normalized mixture, its loss."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Beta as TorchBeta
from torch.distributions import Categorical, Dirichlet, MixtureSameFamily, Normal
from torch.distributions import Gamma as TorchGamma

import softshare as ss
from softshare.errors import ConfigError, ModelError


def one_mixture(**changes: Any) -> ss.PriorConfig:
    """The paper's: one mixture over all weights, its widths left to the hyper-priors."""
    return dataclasses.replace(ss.PriorConfig(mixtures="global", width=None), **changes)


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def perturbed(config: ss.PriorConfig, model: nn.Module | None = None) -> ss.MixturePrior:
    """A prior whose parameters are no longer those of the start."""
    prior = ss.MixturePrior(model or net(), config)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in prior.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return prior


def test_start_by_range() -> None:
    prior = ss.MixturePrior(net(), one_mixture(components=5, zero_mixing=0.9, init_std=None))
    w = prior.view.gather()
    mixture = prior.mixture()
    spacing = float(w.max() - w.min()) / 4
    expected = [0.0] + [float(w.min()) + k * spacing for k in range(5)]
    assert mixture.mean.tolist() == pytest.approx(expected, rel=1e-6)
    assert mixture.mixing.tolist() == pytest.approx([0.9] + [0.02] * 5, rel=1e-5)
    assert mixture.std.tolist() == pytest.approx([spacing] * 6, rel=1e-5)
    told = ss.MixturePrior(net(), one_mixture(components=16, init_std=0.2))
    assert told.mixture().std.tolist() == pytest.approx([0.2] * 17)


def test_start_by_quantiles_gives_each_component_as_many_weights() -> None:
    model = nn.Linear(100, 100, bias=False)
    torch.manual_seed(3)
    nn.init.normal_(model.weight)
    (means,) = ss.MixturePrior(model, one_mixture(components=8, init="quantile", init_std=0.1)).means
    inner = (means[1:] + means[:-1]) / 2
    counts = torch.bucketize(model.weight.flatten(), inner).bincount()
    assert counts.min() > 0.8 * 1250
    assert counts.max() < 1.2 * 1250


def test_start_by_quantiles_of_more_weights_than_torch_quantile_takes() -> None:
    model = nn.Linear(4096, 4200, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1, 1, model.weight.numel()).reshape(model.weight.shape))
    (means,) = ss.MixturePrior(model, one_mixture(components=4, init="quantile")).means
    assert means.tolist() == pytest.approx([-0.75, -0.25, 0.25, 0.75], abs=1e-3)


@pytest.mark.parametrize("mixing_prior", [None, ss.Beta(50, 3), ss.Dirichlet(50, 2)])
def test_mixture_is_normalized_and_zero_stays_zero(mixing_prior: ss.Beta | ss.Dirichlet | None) -> None:
    mixture = perturbed(one_mixture(components=4, mixing_prior=mixing_prior, zero_mixing=0.97)).mixture().detach()
    assert float(mixture.mixing.sum()) == pytest.approx(1, rel=1e-6)
    assert float(mixture.mean[0]) == 0
    if mixing_prior is None:
        assert float(mixture.mixing[0]) == pytest.approx(0.97, rel=1e-6)
    else:
        assert abs(float(mixture.mixing[0]) - 0.97) > 1e-4


@pytest.mark.parametrize("mixing_prior", [None, ss.Beta(50, 3), ss.Dirichlet(50, 2)])
@pytest.mark.parametrize("zero_precision_prior", [None, ss.Gamma(5000, 2)])
@pytest.mark.parametrize("free_precision_prior", [None, ss.Gamma(250, 0.1)])
def test_loss_equals_torch_distributions(
    mixing_prior: ss.Beta | ss.Dirichlet | None,
    zero_precision_prior: ss.Gamma | None,
    free_precision_prior: ss.Gamma | None,
) -> None:
    """-log p(w, theta) up to the hyper-priors' constants: the difference between two states of the parameters."""
    config = one_mixture(
        components=4,
        mixing_prior=mixing_prior,
        zero_precision_prior=zero_precision_prior,
        free_precision_prior=free_precision_prior,
    )

    def truth(prior: ss.MixturePrior) -> torch.Tensor:
        m, w = prior.mixture(), prior.view.gather()
        mixing, precision = m.mixing / m.mixing.sum(), 1 / m.std**2
        log_p: torch.Tensor = MixtureSameFamily(Categorical(probs=mixing), Normal(m.mean, m.std)).log_prob(w).sum()
        if zero_precision_prior:
            log_p += TorchGamma(torch.tensor(zero_precision_prior.alpha).double(), zero_precision_prior.beta).log_prob(
                precision[0]
            )
        if free_precision_prior:
            log_p += (
                TorchGamma(torch.tensor(free_precision_prior.alpha).double(), free_precision_prior.beta)
                .log_prob(precision[1:])
                .sum()
            )
        if isinstance(mixing_prior, ss.Beta):
            beta = TorchBeta(torch.tensor(mixing_prior.alpha).double(), mixing_prior.beta)
            log_p += beta.log_prob(mixing[0])
        if isinstance(mixing_prior, ss.Dirichlet):
            concentration = torch.tensor([mixing_prior.zero] + [mixing_prior.free] * 4).double()
            log_p += Dirichlet(concentration).log_prob(mixing)
        return -log_p

    model = net().double()
    start, moved = ss.MixturePrior(model, config), perturbed(config, model)
    got = moved.neg_log_prior() - start.neg_log_prior()
    torch.testing.assert_close(got, truth(moved) - truth(start), rtol=1e-9, atol=1e-6)


def test_loss_is_a_scalar_scaled_by_tau_over_n() -> None:
    prior = perturbed(ss.PriorConfig(components=4))
    loss = prior.loss(tau=0.005, n_examples=60_000)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(0.005 / 60_000 * prior.neg_log_prior().item(), rel=1e-6)


def test_gradients_reach_weights_and_every_mixture_parameter() -> None:
    model = net()
    prior = ss.MixturePrior(model, ss.PriorConfig(components=4, mixing_prior=ss.Beta(5, 1), zero_mixing=0.5))
    prior.loss(tau=1.0, n_examples=1).backward()
    for name, p in [*prior.named_parameters(), *((s.name, s.tensor) for s in prior.view.shared)]:
        assert p.grad is not None, name
        assert p.grad.abs().sum() > 0, name
    norm = model[1]  # type: ignore[index]
    assert norm.weight.grad is None


def test_param_groups_have_their_own_learning_rates_and_no_model_weights() -> None:
    config = ss.PriorConfig(lr_means=1.0, lr_log_vars=2.0, lr_mixing=3.0, mixing_prior=ss.Beta(5, 1))
    prior = ss.MixturePrior(net(), config)
    groups = prior.param_groups()
    assert [g["lr"] for g in groups] == [1.0, 2.0, 3.0]
    grouped = [p for g in groups for p in g["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in prior.parameters()}
    assert [n for n, _ in prior.named_parameters()] == ["means", "log_vars", "mixing_logits", "zero_logit"]
    fixed = ss.MixturePrior(net(), ss.PriorConfig())
    assert [n for n, _ in fixed.named_parameters()] == ["means", "log_vars", "mixing_logits"]


def test_a_mixture_taken_does_not_change_with_training() -> None:
    prior = ss.MixturePrior(net(), one_mixture(components=4))
    taken = prior.mixture().detach()
    before = [t.clone() for t in (taken.log_mixing, taken.mean, taken.log_var)]
    with torch.no_grad():
        for p in prior.parameters():
            p.add_(1.0)
    for now, then in zip((taken.log_mixing, taken.mean, taken.log_var), before, strict=True):
        assert torch.equal(now, then)


def test_responsibilities_sum_to_one_and_follow_bayes() -> None:
    mixture = perturbed(one_mixture(components=3, zero_mixing=0.6)).mixture().detach()
    w = torch.tensor([-0.2, 0.0, 0.4])
    joint = torch.stack(
        [p * Normal(m, s).log_prob(w).exp() for p, m, s in zip(mixture.mixing, mixture.mean, mixture.std, strict=True)]
    )
    torch.testing.assert_close(mixture.responsibilities(w), joint / joint.sum(0))
    assert torch.equal(mixture.assign(w), joint.argmax(0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_in_other_dtypes(dtype: torch.dtype) -> None:
    model = net().to(dtype)
    prior = ss.MixturePrior(model, ss.PriorConfig(components=4))
    assert prior.means.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    prior.loss(tau=1.0, n_examples=1).backward()
    gradient = prior.view.tensors[0].grad
    assert gradient is not None
    assert gradient.dtype == dtype
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("bad", [{"tau": -1.0, "n_examples": 10}, {"tau": math.nan, "n_examples": 10}])
def test_bad_tau(bad: dict[str, float]) -> None:
    prior = ss.MixturePrior(net(), ss.PriorConfig())
    with pytest.raises(ConfigError, match="tau: expected"):
        prior.loss(tau=bad["tau"], n_examples=int(bad["n_examples"]))
    with pytest.raises(ConfigError, match="n_examples: expected"):
        prior.loss(tau=0.1, n_examples=0)


def test_bad_models() -> None:
    with pytest.raises(ModelError, match=r"no parameter to share.*weight"):
        ss.MixturePrior(nn.BatchNorm1d(3))
    constant = nn.Linear(3, 3)
    with torch.no_grad():
        for p in constant.parameters():
            p.fill_(0.25)
    with pytest.raises(ModelError, match=r"all 12 shared weights equal 0\.25"):
        ss.MixturePrior(constant)
    with torch.no_grad():
        constant.bias[1] = math.nan
    with pytest.raises(ModelError, match="tensor bias: 1 of 3 weights are NaN"):
        ss.MixturePrior(constant)
