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
from softshare.network.weights import WeightView
from softshare.prior.mixture import Mixture


def one_mixture(**changes: Any) -> ss.PriorConfig:
    """The paper's prior: one mixture over all weights, whose widths follow the hyper-priors."""
    gammas = {"zero_precision_prior": ss.Gamma(5000, 2), "free_precision_prior": ss.Gamma(250, 0.1)}
    return ss.PriorConfig(**{"mixtures": "global", "width": None, **gammas, **changes})


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def perturbed(config: ss.PriorConfig, model: nn.Module | None = None) -> ss.MixturePrior:
    """A prior whose parameters have moved from the start."""
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("mixing_prior", "zero_precision_prior", "free_precision_prior"),
    [
        (None, None, None),
        (ss.Beta(50, 3), ss.Gamma(5000, 2), None),
        (ss.Dirichlet(50, 2), None, ss.Gamma(250, 0.1)),
        (None, ss.Gamma(5000, 2), ss.Gamma(250, 0.1)),
    ],
)
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
    with pytest.raises(ModelError, match=r"tensor bias: .*1 of 3 .*NaN"):
        ss.MixturePrior(constant)


# One mixture for each layer


class Layers(nn.Module):
    """Three layers, a tied one, an empty one, and one whose weights are all equal."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.none = nn.Linear(3, 1, bias=False)
        self.none.weight = nn.Parameter(torch.empty(0, 3))
        self.conv = nn.Conv2d(2, 3, 2)
        self.norm = nn.BatchNorm2d(3)
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7)
        self.out.weight = self.embed.weight
        self.alike = nn.Linear(2, 2)
        with torch.no_grad():
            self.alike.weight.fill_(0.25)
            self.alike.bias.fill_(0.25)
        self.to(dtype)


NAMES = [
    ("conv.weight", "conv.bias", "none.weight"),  # the empty tensor goes with the first layer that has weights
    ("embed.weight",),
    ("out.bias",),
    ("alike.weight", "alike.bias"),
]


def test_layers_are_the_tensors_of_a_module() -> None:
    model = Layers()
    assert WeightView.of(model).layers() == NAMES
    prior = ss.MixturePrior(model, ss.PriorConfig(components=3))
    assert [{s.name for s in part.shared} for part in prior.parts] == [set(names) for names in NAMES]
    assert [s.name for s in prior.view.shared] == [s.name for part in prior.parts for s in part.shared]
    assert all(s.tensor is model.get_parameter(s.name) for s in prior.view.shared)
    assert prior.means.shape == prior.mixing_logits.shape == (4, 3)
    assert (prior.log_vars.shape, prior.zero_logit.shape) == ((4, 4), (4,))
    one = ss.MixturePrior(model, ss.PriorConfig(mixtures="global", components=3))
    assert (len(one.parts), one.means.shape, one.view.n_weights) == (1, (1, 3), prior.view.n_weights)


def test_rules_choose_what_is_in_a_layer() -> None:
    rules = (ss.Rule("*.bias", share=False), ss.Rule("norm.weight", share=True))
    prior = ss.MixturePrior(Layers(), ss.PriorConfig(rules=rules))
    names = [sorted(s.name for s in part.shared) for part in prior.parts]
    assert names == [["conv.weight", "none.weight"], ["norm.weight"], ["embed.weight"], ["alike.weight"]]


@pytest.mark.parametrize(("init", "width"), [("range", None), ("quantile", 0.45)])
def test_each_layer_starts_from_its_own_weights(init: Any, width: float | None) -> None:
    """One layer has equal weights, whose spacing is 0, and one has only zeros."""
    model = Layers()
    with torch.no_grad():
        model.out.bias.zero_()
    prior = ss.MixturePrior(model, ss.PriorConfig(components=3, init=init, width=width))
    for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
        w = torch.cat([t.detach().flatten() for t in part.tensors])
        low, high, rms = float(w.min()), float(w.max()), float(w.square().mean().sqrt())
        ends = [low, (low + high) / 2, high]
        if init == "quantile":
            ends = [float(torch.quantile(w, q)) for q in (1 / 6, 3 / 6, 5 / 6)]
        assert mixture.mean.tolist() == pytest.approx([0.0, *ends])
        spacing = (high - low) / 2 or abs(high) or 1.0
        assert mixture.std.tolist() == pytest.approx([spacing if width is None else width * (rms or 1.0)] * 4)
    assert math.isfinite(prior.neg_log_prior().item())


@pytest.mark.parametrize(
    ("in_place", "width", "mixing_prior"),
    [
        (False, 0.45, None),
        (False, None, ss.Beta(50, 3)),
        (True, None, ss.Dirichlet(50, 2)),
        (True, 0.45, ss.Beta(50, 3)),
    ],
)
def test_loss_and_gradients_are_the_sum_over_layers_of_torch_distributions(
    in_place: bool, width: float | None, mixing_prior: ss.Beta | ss.Dirichlet | None
) -> None:
    """Each layer's mixture and hyper-priors, from the raw parameters alone, as differences between two states."""
    config = ss.PriorConfig(components=3, width=width, zero_mixing=0.8, mixing_prior=mixing_prior)
    if width is None:
        config = dataclasses.replace(
            config, zero_precision_prior=ss.Gamma(5000, 2), free_precision_prior=ss.Gamma(250, 0.1)
        )
    held = {"conv": 0.0, "embed": 0.0, "out": 0.0, "alike": 0.0}

    def truth(prior: ss.MixturePrior) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for k, names in enumerate(NAMES):
            w = torch.cat([prior._model[0].get_parameter(name).flatten() for name in names])
            zero = torch.sigmoid(prior.zero_logit[k])
            mixing = torch.cat([zero[None], (1 - zero) * prior.mixing_logits[k].softmax(0)])
            mean, var = torch.cat([torch.zeros(1).double(), prior.means[k]]), prior.log_vars[k].exp()
            log_p = MixtureSameFamily(Categorical(mixing), Normal(mean, var.sqrt())).log_prob(w).sum()
            if width is None:
                log_p = log_p + TorchGamma(torch.tensor(5000.0).double(), 2.0).log_prob(1 / var[0])
                log_p = log_p + TorchGamma(torch.tensor(250.0).double(), 0.1).log_prob(1 / var[1:]).sum()
            else:  # a Gamma whose mode is the start and whose standard deviation is a thousandth of that
                start = held[names[0].partition(".")[0]]
                beta = (1000**2 + 1000 * math.sqrt(1000**2 + 4)) * start / 2
                gamma = TorchGamma(torch.tensor(1 + beta / start).double(), beta)
                log_p = log_p + gamma.log_prob(1 / var).sum()
            if isinstance(mixing_prior, ss.Beta):
                log_p = log_p + TorchBeta(torch.tensor(50.0).double(), 3.0).log_prob(mixing[0])
            if isinstance(mixing_prior, ss.Dirichlet):
                log_p = log_p + Dirichlet(torch.tensor([50.0, 2.0, 2.0, 2.0]).double()).log_prob(mixing)
            total = total - log_p
        return total

    model = Layers()
    start, moved = ss.MixturePrior(model, config), ss.MixturePrior(model, config)
    for k, name in enumerate(held):
        held[name] = math.exp(float(start.log_vars[k, 0].detach()))
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in moved.parameters():
            p.add_((0.02 if p is moved.log_vars else 0.3) * torch.randn(p.shape, generator=g).double())
    leaves = [*moved.view.tensors, *moved.parameters()]
    expected = truth(moved)
    gradients = torch.autograd.grad(expected, leaves)
    got = moved.neg_log_prior()
    difference = (got - start.neg_log_prior()).item()
    assert difference == pytest.approx((expected - truth(start)).item(), rel=1e-8)
    for t in leaves:
        t.grad = None
    if in_place:
        moved.add_gradients_(3.0, 2)
    else:
        moved.loss(3.0, 2).backward()
    for leaf, gradient in zip(leaves, gradients, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad, 1.5 * gradient, rtol=1e-6, atol=1e-6)


def test_float32_is_near_float64() -> None:
    """This uses the compiled sweep, layer by layer."""
    config = ss.PriorConfig(components=3)
    grads = []
    for dtype in (torch.float32, torch.float64):
        prior = ss.MixturePrior(Layers(dtype), config)
        prior.add_gradients_(1.0, 1)
        grads.append([t.grad.double() for t in (*prior.view.tensors, prior.means) if t.grad is not None])
    for ours, truth in zip(*grads, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-3)


def test_a_mixture_alone_is_refused_where_there_are_several() -> None:
    prior = ss.MixturePrior(Layers(), ss.PriorConfig())
    with pytest.raises(ConfigError, match=r"expected one for all weights, got 4 layers\. Use mixtures\(\)"):
        prior.mixture()
    assert len(prior.mixtures()) == 4


def test_a_layer_is_quantized_with_its_own_mixture() -> None:
    model = Layers()
    compressed = ss.MixturePrior(model, ss.PriorConfig(components=3, zero_mixing=0.1)).quantize()
    for names in NAMES:
        mixture = compressed.mixtures[names[0]]
        for name in names:
            assert compressed.mixtures[name] is mixture
            w = model.get_parameter(name).detach()
            expected = mixture.mean[mixture.responsibilities(w.flatten()).argmax(0)].float().view_as(w)
            tensor = next(t for t in compressed.quantized.shared if t.name == name)
            assert torch.equal(tensor.dense().float(), expected)
    assert [t.name for t in compressed.quantized.shared] == [s.name for s in WeightView.of(model).shared]
    assert len({id(m) for m in compressed.mixtures.values()}) == 4


# Widths relative to the weights


@pytest.mark.parametrize(("mixtures", "width"), [("global", 0.1), ("layer", 0.45)])
def test_a_width_is_relative(mixtures: Any, width: float) -> None:
    """If all weights are c times as large, so are the means and the standard deviations; the choices are the same."""
    config = ss.PriorConfig(mixtures=mixtures, components=3, width=width)
    model, other = net(), net()
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(8)
    a, b = ss.MixturePrior(model, config), ss.MixturePrior(other, config)
    for part, one, scaled in zip(a.parts, a.mixtures(), b.mixtures(), strict=True):
        torch.testing.assert_close(scaled.mean, 8 * one.mean)
        torch.testing.assert_close(scaled.std, 8 * one.std)
        assert torch.equal(scaled.mixing, one.mixing)
        rms = float(part.gather().square().mean().sqrt())
        assert one.std.tolist() == pytest.approx([width * rms] * 4)
        w = part.gather()
        assert torch.equal(scaled.assign(8 * w), one.assign(w))


@pytest.mark.parametrize("mean", [0.3, -4.073, 8.0])
def test_the_width_sets_the_dead_zone(mean: float) -> None:
    """docs/math.md: zero ends at |mean| / 2 + std^2 / |mean| log(mixing_0 / mixing_j), which is at least 4.073 std."""
    std, log_odds = 0.5, math.log(0.999 / 0.00025)
    border = abs(mean) * std / 2 + std / abs(mean) * log_odds
    assert border > 4.0725 * std
    mixture = Mixture(
        torch.tensor([0.999, 0.00025]).log(), torch.tensor([0.0, mean * std]), torch.full((2,), 2 * math.log(std))
    )
    w = math.copysign(border, mean) * torch.tensor([0.999, 1.001])
    assert mixture.assign(w).tolist() == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("mixtures", [pytest.param("global", marks=pytest.mark.slow), "layer"])
def test_a_width_is_held(mixtures: Any) -> None:
    """However hard the prior pulls: with strength k, n weights move a log-variance by about n / (2 k^2)."""
    model = net()
    config = ss.PriorConfig(mixtures=mixtures, components=3, zero_mixing=0.6, lr_log_vars=1e-3)

    def moved(config: ss.PriorConfig) -> float:
        prior = ss.MixturePrior(model, config)
        start = prior.log_vars.detach().clone()
        optimizer = torch.optim.Adam(prior.parameters(), lr=1e-3)
        for _ in range(200):
            optimizer.zero_grad()
            prior.loss(1.0, 1).backward()
            optimizer.step()
        return float((prior.log_vars.detach() - start).abs().max())

    assert moved(config) < 1e-3
    assert moved(dataclasses.replace(config, width=None, zero_precision_prior=ss.Gamma(5000, 2))) > 0.05


class Wide(nn.Module):
    """A layer with 3 million weights, and a small one."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(1500, 2000, bias=False), nn.Linear(20, 10, bias=False)


def widths_at_rest(model: nn.Module, n_steps: int = 100) -> torch.Tensor:  # (parts, J + 1)
    """The widths after training them alone, relative to where they are held."""
    prior = ss.MixturePrior(model, ss.PriorConfig())
    held = prior.log_vars.detach().clone()
    optimizer = torch.optim.Adam([prior.log_vars], lr=3e-3)
    for _ in range(n_steps):
        optimizer.zero_grad()
        prior.add_gradients_(1.0, 1)
        optimizer.step()
    return torch.exp((prior.log_vars.detach() - held) / 2)


@pytest.mark.slow
def test_a_width_is_held_against_3_million_weights_at_its_mean() -> None:
    """They would narrow it: with the strength for few weights to 0.63 of what it is, (1 + 1.5)^(-1/2)."""
    model = Wide()
    with torch.no_grad():
        model.large.weight.zero_()
        model.large.weight[0, 0] = 1.0
    ratio = widths_at_rest(model)
    assert float(ratio[0, 0]) < 0.99  # they do pull
    assert float((ratio - 1).abs().max()) < 0.05


@pytest.mark.slow
def test_a_width_is_held_against_3_million_weights_far_from_0() -> None:
    """Most lie inside the dead zone but far from 0, and would widen the zero component."""
    model = Wide()
    torch.manual_seed(0)
    with torch.no_grad():
        model.large.weight.uniform_(-0.05, 0.05)
    ratio = widths_at_rest(model)
    assert float(ratio[0, 0]) > 1.01  # they do pull
    assert float((ratio - 1).abs().max()) < 0.05


def test_what_holds_a_width_follows_the_prior_and_is_part_of_its_state() -> None:
    model = net()
    prior = ss.MixturePrior(model, ss.PriorConfig())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)  # training may do this
    resumed = ss.MixturePrior(model, ss.PriorConfig())
    assert resumed.neg_log_prior() != prior.neg_log_prior()
    resumed.load_state_dict(prior.state_dict())
    assert resumed.neg_log_prior() == prior.neg_log_prior()
    assert prior.double()._log_held.dtype == torch.float64
