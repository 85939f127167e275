"""The prior over whole units: its exact value, its gradient, and a task with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F

import softshare as ss
from kernels import needs_gpu
from softshare.errors import ConfigError, ModelError
from softshare.simplify.shrink import shrink
from softshare.task import Task
from softshare.train.replayed import WARM_UP
from softshare.train.retrain import retrain_
from softshare.train.units import UnitPrior, UnitPriorConfig, with_unit_prior

Batch = tuple[Tensor, Tensor]


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7, bias=False), nn.Tanh(), nn.Linear(7, 3))


def convolutions(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 5, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 3))


def by_torch(groups: list[list[Tensor]], scales: list[list[Tensor]], config: UnitPriorConfig) -> Tensor:
    """-log p of units. A unit is its tensors and the root mean squares of their layers."""
    total = torch.zeros((), dtype=torch.float64)
    for tensors, of_each in zip(groups, scales, strict=True):
        narrow, broad = (
            sum(Normal(0.0, std * s).log_prob(t).sum() for t, s in zip(tensors, of_each, strict=True))
            for std in (config.narrow, config.broad)
        )
        p = torch.tensor(config.zero_mixing, dtype=torch.float64)
        total = total - torch.logaddexp(p.log() + narrow, (1 - p).log() + broad)
    return total


def rms(t: Tensor) -> Tensor:
    return t.detach().square().mean().sqrt()


@pytest.mark.parametrize(("outgoing", "narrow"), [(False, 0.9), (True, 0.1)])
def test_exact_on_linear_layers(outgoing: bool, narrow: float) -> None:
    model = mlp().double()
    config = UnitPriorConfig(narrow=narrow, broad=1.5, zero_mixing=0.7, outgoing=outgoing)
    prior = UnitPrior(model, config)
    a, b, c = (model[k].get_parameter("weight") for k in (0, 2, 4))
    bias, (ra, rb, rc) = model[0].get_parameter("bias"), map(rms, (a, b, c))
    groups = [[a[k], bias[k], *([b[:, k]] if outgoing else [])] for k in range(9)]
    groups += [[b[k], *([c[:, k]] if outgoing else [])] for k in range(7)]
    scales = [[ra, ra, rb][: len(group)] for group in groups[:9]] + [[rb, rc][: len(g)] for g in groups[9:]]
    expected = by_torch(groups, scales, config)
    torch.testing.assert_close(prior.neg_log_prior(), expected, rtol=1e-12, atol=0)
    ours, theirs = (torch.autograd.grad(loss, [a, b, bias]) for loss in (prior.neg_log_prior(), expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_exact_on_convolutions() -> None:
    """A unit is a filter. It feeds a channel of the next kernels, or a block of a Linear's columns."""
    model, config = convolutions().double(), UnitPriorConfig(narrow=0.3, broad=1.0)
    a, b, c = (model[k].get_parameter("weight") for k in (0, 1, 4))
    first, second = (model[k].get_parameter("bias") for k in (0, 1))
    groups = [[a[k], first[k], b[:, k]] for k in range(4)]
    groups += [[b[k], second[k], c.view(3, 5, 4)[:, k]] for k in range(5)]
    scales = [[rms(a), rms(a), rms(b)]] * 4 + [[rms(b), rms(b), rms(c)]] * 5
    ours = UnitPrior(model, config).neg_log_prior()
    torch.testing.assert_close(ours, by_torch(groups, scales, config), rtol=1e-12, atol=0)


def test_float32_and_extreme_widths_stay_finite() -> None:
    model = nn.Sequential(nn.Linear(784, 30), nn.ReLU(), nn.Linear(30, 10))
    for weights in (1.0, 1e-20, 1e3):
        scaled = copy.deepcopy(model)
        prior = UnitPrior(scaled, UnitPriorConfig(narrow=1e-3, broad=100.0, zero_mixing=0.9999))
        with torch.no_grad():
            for p in scaled.parameters():
                p.mul_(weights)
        exact = prior.neg_log_prior(copy.deepcopy(scaled).double())
        torch.testing.assert_close(prior.neg_log_prior().double(), exact, rtol=1e-4, atol=1)


def test_loss_is_scaled_by_tau_over_n_and_reads_the_model_given() -> None:
    model = mlp()
    prior = UnitPrior(model)
    torch.testing.assert_close(prior.loss(0.3, 600), prior.neg_log_prior() * 0.3 / 600)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].get_parameter("weight").mul_(2)
    assert prior.neg_log_prior(other) > prior.neg_log_prior()
    assert torch.equal(prior.neg_log_prior(copy.deepcopy(model)), prior.neg_log_prior())
    prior.neg_log_prior(other).backward()
    assert other[0].weight.grad is not None
    assert model[0].weight.grad is None


def test_a_unit_falls_below_the_threshold_and_stays_above() -> None:
    """The threshold between the two components is where the docstring of `UnitPriorConfig` puts it."""
    config = UnitPriorConfig(narrow=0.2, broad=1.0, zero_mixing=0.9, outgoing=False)
    model = nn.Sequential(nn.Linear(50, 1, bias=False), nn.ReLU(), nn.Linear(1, 1)).double()
    prior = UnitPrior(model, config)
    ratio, odds = torch.tensor(config.broad / config.narrow), torch.tensor(9.0)
    threshold = ((2 * ratio.log() + 2 / 50 * odds.log()) / (1 / 0.2**2 - 1)).sqrt()
    weight, start = model[0].get_parameter("weight"), model[0].get_parameter("weight").detach().clone()
    scale = float(rms(start))
    for factor, std in ((0.9, config.narrow), (1.1, config.broad)):
        with torch.no_grad():
            weight.copy_(start * threshold * factor)
        (grad,) = torch.autograd.grad(prior.neg_log_prior(), weight)
        torch.testing.assert_close(grad, weight.detach() / (std * scale) ** 2, rtol=0.1, atol=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tau": -1.0}, "tau: expected a number of at least 0"),
        ({"narrow": 2.0, "broad": 1.0}, r"narrow: expected a number above 0 and below broad, 1\.0, got 2\.0"),
        ({"narrow": 0.0}, "narrow: expected a number above 0"),
        ({"broad": float("inf")}, "broad: expected a number above 0"),
        ({"zero_mixing": 1.0}, "zero_mixing: expected a number between 0 and 1"),
        ({"outgoing": 1}, "outgoing: expected true or false"),
    ],
)
def test_what_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        UnitPriorConfig(**values)


def test_models_without_hidden_units() -> None:
    with pytest.raises(ModelError, match="expected hidden units in chains of Linear and Conv2d, got a model without"):
        UnitPrior(nn.Linear(3, 3))
    normalized = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    with pytest.raises(ModelError, match="0: BatchNorm1d may mix its units"):
        UnitPrior(normalized)
    blank = mlp()
    nn.init.zeros_(blank[2].weight)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"tensor 2\.weight: expected trained weights"):
        UnitPrior(blank)
    with pytest.raises(ConfigError, match="n_examples"):
        UnitPrior(mlp()).loss(0.1, 0)


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_task(device: str = "cpu") -> Task:
    """Two classes that one direction separates: a few of 40 hidden units are enough."""
    x = torch.randn(512, 8, generator=torch.Generator().manual_seed(0)).to(device)
    y = (x[:, 0] + x[:, 1] > 0).long()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 2)).to(device)
    batches = list(zip(x.split(64), y.split(64), strict=True))
    task = Task(model, batches, cross_entropy, lambda m: float((m(x).argmax(1) != y).float().mean()) * 100, 512)
    retrain_(task, None, ss.RetrainConfig(epochs=30, lr_weights=1e-2))
    return task


@pytest.mark.slow
def test_the_route_with_it_leaves_fewer_units() -> None:
    task = make_task()
    config = ss.CompressConfig().override(
        epochs=40, scaling="paper", lr_weights=1e-2, tau=0.005, hard_from=0.5, width=0.2, zeroing=0.0
    )
    left, errors = [], []
    for t in (task, with_unit_prior(task, UnitPriorConfig(tau=2.0))):
        small = shrink(task.model, ss.compress(t, config, target=None).quantized)
        left.append(small.get_submodule("0").get_parameter("weight").shape[0])
        errors.append(task.judge(small))
    assert left[1] < left[0] / 2
    assert errors[1] < 10


def test_the_task_is_otherwise_the_same() -> None:
    task = make_task()
    other = with_unit_prior(task, UnitPriorConfig(tau=0.3))
    batch = next(iter(task.train))
    prior = UnitPrior(task.model, UnitPriorConfig(tau=0.3))
    expected = task.loss(task.model, batch) + prior.loss(0.3, 512)
    torch.testing.assert_close(other.loss(task.model, batch), expected)
    assert (other.model, other.train, other.evaluate, other.n_examples) == (task.model, task.train, task.evaluate, 512)


@needs_gpu
def test_captured_training_gives_the_same_weights() -> None:
    states = []
    for capture in (False, True):
        task = with_unit_prior(make_task("cuda"), UnitPriorConfig(tau=0.2))
        assert len(list(task.train)) > WARM_UP
        retrain_(task, ss.MixturePrior(task.model), ss.RetrainConfig(epochs=4, capture=capture))
        states.append(task.model.state_dict())
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-5)
