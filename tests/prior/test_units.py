"""The prior over whole units: its exact value, its gradient, and the route with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F

import softshare as ss
from kernels import needs_gpu
from softshare.config import RetrainConfig
from softshare.network.groups import Group, Slices, find_groups
from softshare.prior.units import BROAD, FLOOR, NARROW, ZERO_MIXING, UnitPrior
from softshare.result import load_copy
from softshare.simplify.shrink import shrink
from softshare.task import Task
from softshare.train.first_look import look
from softshare.train.replayed import WARM_UP
from softshare.train.retrain import retrain_

Batch = tuple[Tensor, Tensor]


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7, bias=False), nn.Tanh(), nn.Linear(7, 3))


def convolutions(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 5, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(20, 3))


def with_units(model: nn.Module, x: Tensor, **settings: Any) -> ss.MixturePrior:
    groups, _ = find_groups(model, (x,), {})
    return ss.MixturePrior(model, ss.PriorConfig(method="exact", **{"units": 1.0, **settings}), groups=groups)


def units_of(prior: ss.MixturePrior) -> Tensor:
    assert prior.units is not None
    return prior.units.neg_log_prior()


def value_of(prior: ss.MixturePrior) -> float:
    return float(units_of(prior).detach())


def by_torch(groups: list[list[Tensor]], scales: list[list[Tensor]]) -> Tensor:
    """-log p of units, up to a constant. A unit is its tensors and the root mean squares of their layers."""
    total = torch.zeros((), dtype=torch.float64)
    for tensors, of_each in zip(groups, scales, strict=True):
        narrow, broad = (
            sum(Normal(0.0, std * s).log_prob(t).sum() for t, s in zip(tensors, of_each, strict=True))
            for std in (NARROW, BROAD)
        )
        p = torch.tensor(ZERO_MIXING, dtype=torch.float64)
        total = total - torch.logaddexp(p.log() + narrow, (1 - p).log() + broad)
    return total


def rms(t: Tensor) -> Tensor:
    return t.detach().square().mean().sqrt()


def test_exact_on_linear_layers() -> None:
    model = mlp().double()
    prior = with_units(model, torch.randn(2, 6).double())
    a, b, c = (model[k].get_parameter("weight") for k in (0, 2, 4))
    bias, (ra, rb, rc) = model[0].get_parameter("bias"), map(rms, (a, b, c))
    groups = [[a[k], bias[k], b[:, k]] for k in range(9)] + [[b[k], c[:, k]] for k in range(7)]
    scales = [[ra, ra, rb]] * 9 + [[rb, rc]] * 7
    left_out = sum(
        t.numel() * (torch.log(s) + math.log(2 * math.pi) / 2)
        for tensors, of_each in zip(groups, scales, strict=True)
        for t, s in zip(tensors, of_each, strict=True)
    )
    expected = by_torch(groups, scales)
    torch.testing.assert_close(units_of(prior).double(), expected - left_out, rtol=1e-5, atol=1e-4)
    ours, theirs = (torch.autograd.grad(loss, [a, b, c, bias]) for loss in (units_of(prior), expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_exact_on_convolutions() -> None:
    """A unit is a filter. It feeds a channel of the next kernels, or a block of a Linear's columns."""
    model = convolutions().double()
    prior = with_units(model, torch.randn(2, 1, 8, 8).double())
    a, b, c = (model[k].get_parameter("weight") for k in (0, 1, 4))
    first, second = (model[k].get_parameter("bias") for k in (0, 1))
    groups = [[a[k], first[k], b[:, k]] for k in range(4)]
    groups += [[b[k], second[k], c.view(3, 5, 4)[:, k]] for k in range(5)]
    scales = [[rms(a), rms(a), rms(b)]] * 4 + [[rms(b), rms(b), rms(c)]] * 5
    ours, theirs = (torch.autograd.grad(x, [a, b, c, first]) for x in (units_of(prior), by_torch(groups, scales)))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_fused_gradient_is_that_of_the_loss(memory_format: torch.memory_format) -> None:
    """For weights that are read as rows, columns, channels and blocks, and with gradients there already."""
    model = convolutions().to(memory_format=memory_format)  # type: ignore[call-overload]
    prior = with_units(model, torch.randn(2, 1, 8, 8), units=0.7)
    prior.loss(0.3, 20).backward()
    expected = [p.grad for p in model.parameters()]
    for p in [*model.parameters(), *prior.parameters()]:
        p.grad = None
    torch.manual_seed(5)
    given = [torch.randn_like(p) for p in model.parameters()]
    for p, g in zip(model.parameters(), given, strict=True):
        p.grad = g.clone()
    loss = prior.add_gradients_(0.3, 20)
    torch.testing.assert_close(loss, prior.loss(0.3, 20).detach())
    for p, g, e in zip(model.parameters(), given, expected, strict=True):
        assert p.grad is not None
        assert e is not None
        torch.testing.assert_close(p.grad, g + e, rtol=1e-5, atol=1e-6)


def test_a_unit_falls_below_the_threshold_and_stays_above() -> None:
    """The threshold between the two components is where the docstring of `UnitPrior` puts it."""
    model = nn.Sequential(nn.Linear(50, 3, bias=False), nn.ReLU(), nn.Linear(3, 1)).double()
    group = Group(3, (Slices("0.weight", 0, 1, 1, read=False),))
    prior = ss.MixturePrior(model, ss.PriorConfig(units=1.0), groups=[group])
    odds, ratio = torch.tensor(ZERO_MIXING / (1 - ZERO_MIXING)), torch.tensor(BROAD / NARROW)
    threshold = ((2 * ratio.log() + 2 / 50 * odds.log()) / (1 / NARROW**2 - 1 / BROAD**2)).sqrt()
    weight, start = model[0].get_parameter("weight"), model[0].get_parameter("weight").detach().clone()
    for factor, std in ((0.9, NARROW), (1.1, BROAD)):
        with torch.no_grad():
            weight[0] = start[0] / rms(start[0]) * rms(start) * threshold * factor
        grad = torch.autograd.grad(units_of(prior), weight)[0][0]
        torch.testing.assert_close(grad, weight[0].detach() / (std * rms(start)) ** 2, rtol=0.15, atol=0)


def test_blank_layers_and_biases_stay_finite() -> None:
    model = mlp()
    for parameter in (model[0].get_parameter("bias"), model[2].get_parameter("weight")):
        nn.init.zeros_(parameter)
    prior = with_units(model, torch.randn(2, 6))
    assert torch.isfinite(prior.add_gradients_(0.1, 10))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_scales_are_part_of_the_state() -> None:
    model = mlp()
    prior = with_units(model, torch.randn(2, 6))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    again = with_units(model, torch.randn(2, 6))
    assert value_of(again) != value_of(prior)
    again.load_state_dict(prior.state_dict())
    assert value_of(again) == value_of(prior)


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
    retrain_(task, None, RetrainConfig(epochs=30, lr_weights=1e-2))
    return task


@pytest.mark.slow
def test_the_route_with_it_leaves_fewer_units() -> None:
    task = make_task()
    config = ss.CompressConfig().override(
        epochs=40, scaling="paper", lr_weights=1e-2, tau=0.005, hard_from=0.5, width=0.2, zeroing=0.0
    )
    left, errors = [], []
    for units in (0.0, 200.0):
        small = shrink(task.model, ss.compress(task, config.override(units=units), target=None).quantized)
        left.append(small.get_submodule("0").get_parameter("weight").shape[0])
        errors.append(task.judge(small))
    assert left[1] < left[0] / 2
    assert errors[1] < 10


def test_the_pull_on_units_warms_up_with_tau(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 4 epochs of 8 steps, and tau rises over the first half. Each step pulls by `units` times tau / N."""
    task, pulls = make_task(), list[float]()
    prior = with_units(task.model, next(iter(task.train))[0], units=3.0)
    pull_ = UnitPrior.add_gradients_

    def spied(own: UnitPrior, scale: Tensor, grads: Sequence[Tensor], squares: Tensor) -> Tensor:
        pulls.append(float(scale))
        return pull_(own, scale, grads, squares)

    monkeypatch.setattr(UnitPrior, "add_gradients_", spied)
    retrain_(task, prior, RetrainConfig(epochs=4, scaling="paper", tau=0.12, tau_warmup=0.5, hard_from=0.75))
    assert task.n_examples == 512
    assert pulls == pytest.approx([3 * 0.12 / 512 * min(1.0, k / 16) for k in range(32)])


def test_rows_of_an_embedding_that_no_input_chooses_are_empty_in_the_file() -> None:
    """They are no units, because inputs name rows by number. They cost the loss nothing, so zeroing empties them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 6), nn.Linear(6, 2))
    x = 2 * torch.randint(6, (256,))  # the even rows
    y = (x > 5).long()
    before = model[0].get_parameter("weight").detach().clone()
    task = Task(model, [(x, y)] * 4, cross_entropy, lambda m: float((m(x).argmax(1) != y).float().mean()) * 100, 1024)
    compressed = ss.compress(task, ss.CompressConfig().override(epochs=20, lr_weights=1e-2), target=None)
    left = load_copy(model, compressed.state_dict())
    rows = left.get_parameter("0.weight").count_nonzero(1)
    assert before[1::2].count_nonzero(1).min() == 6
    assert rows[1::2].max() == 0
    assert rows[::2].max() > 0
    assert task.judge(left) < 10


def test_the_first_look_finds_the_units_only_if_they_are_needed() -> None:
    task = make_task()
    assert look(task, ss.MixturePrior(task.model), 0).groups == ()
    found = look(task, ss.MixturePrior(task.model), 0, needs_groups=True).groups
    assert [group.n_units for group in found] == [40]


@needs_gpu
@pytest.mark.parametrize("hard_from", [0.5, 1.0])
def test_captured_training_gives_the_same_weights(hard_from: float) -> None:
    states = []
    for capture in (False, True):
        task = make_task("cuda")
        assert len(list(task.train)) > WARM_UP
        prior = with_units(task.model, next(iter(task.train))[0])
        retrain_(task, prior, RetrainConfig(epochs=4, capture=capture, hard_from=hard_from))
        states.append(task.model.state_dict())
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_alive", [0, 1, 2, 5])
def test_the_last_units_of_a_layer_are_spared(n_alive: int) -> None:
    """With `FLOOR` units alive or more, each dead one is pulled as it is alone. With one it is half, with none 0."""
    model = nn.Sequential(nn.Linear(50, 8, bias=False), nn.ReLU(), nn.Linear(8, 40, bias=False))
    prior = with_units(model, torch.randn(2, 50))
    weight = model[0].get_parameter("weight")
    with torch.no_grad():
        weight[n_alive:] *= 0.1
        model[2].get_parameter("weight")[:, n_alive:] *= 0.1
    (grad,) = torch.autograd.grad(units_of(prior), [weight])
    assert prior.units is not None
    scale = prior.units.squared_scales[0]
    expected = min(1.0, n_alive / FLOOR) * weight[n_alive:].detach() / scale / NARROW**2
    torch.testing.assert_close(grad[n_alive:], expected, rtol=1e-3, atol=1e-4)
    weight.grad = None
    found = [torch.zeros_like(t) for t in prior.view.tensors]
    prior.units.add_gradients_(torch.ones(()), found, prior.units.squares().detach())
    torch.testing.assert_close(found[0], grad, rtol=1e-4, atol=1e-5)
