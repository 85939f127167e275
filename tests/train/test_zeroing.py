"""Rate-aware zeroing: its bits, its rule, and the curvature from the gradients of the task."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from paths import ROOT
from softshare.codec import decode, encode
from softshare.config import EncodeConfig
from softshare.prior.mixture import Mixture
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.task import Task
from softshare.train import zeroing as rate
from softshare.train.hard import quantized
from softshare.train.retrain import retrain_
from softshare.train.step import Step
from softshare.train.zeroing import Cheapest, bits_saved, cost_and_bits, spare_bits_, take_common_, zero_cheap_

# Bits


def plainly(index: Tensor, n_values: int) -> list[float]:
    """The same in plain Python, weight by weight. A tensor is a matrix by its first size; a scalar is 1 by 1."""
    n_rows = index.shape[0] if index.dim() else 1
    flat = index.flatten().tolist()
    n_columns = len(flat) // n_rows
    rows = [flat[r * n_columns : (r + 1) * n_columns] for r in range(n_rows)]
    alive = sum(k != 0 for k in flat)
    density = max(0.5, alive - 0.5) / len(flat)
    out = []
    for r, row in enumerate(rows):
        for c, k in enumerate(row):
            others_in_row = sum(v != 0 for j, v in enumerate(row) if j != c)
            others_in_column = sum(rows[i][c] != 0 for i in range(n_rows) if i != r)
            p = min(0.5, (others_in_row + density) / n_columns * (others_in_column + density) / n_rows / density)
            q = (flat.count(k) - 1 + 0.5) / (alive - 1 + 0.5 * n_values)
            out.append(math.log2((1 - p) / p) - math.log2(q) if k else 0.0)
    return out


@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 9), (9, 1), (6, 5), (4, 3, 3, 3)])
def test_bits_saved_against_a_plain_computation(shape: tuple[int, ...]) -> None:
    for density in (0.0, 0.1, 0.5, 1.0):
        g = torch.Generator().manual_seed(len(shape))
        index = torch.randint(1, 5, shape, generator=g) * (torch.rand(shape, generator=g) < density)
        saved = bits_saved(index, 5)
        assert saved.shape == index.shape
        assert saved.flatten().tolist() == pytest.approx(plainly(index, 5), rel=1e-4, abs=1e-5)


def test_bits_saved_by_hand() -> None:
    """One of 2 by 2 weights, alone: density 0.5 / 4, row and column 0.125 / 2, share of the only value 0.5 / 1."""
    saved = bits_saved(torch.tensor([[1, 0], [0, 0]]), 2)
    p = 0.0625**2 / 0.125
    assert saved.tolist()[0][0] == pytest.approx(math.log2((1 - p) / p) + 1, rel=1e-6)
    assert saved.flatten().tolist()[1:] == [0.0, 0.0, 0.0]


def of_densities(shape: tuple[int, int], density: float, spread: float, seed: int) -> Tensor:
    """Indices up to 4, the first the commonest. The densities of rows and of columns are log-normal."""
    g = torch.Generator().manual_seed(seed)
    p = torch.exp(spread * torch.randn(shape[0], 1, generator=g) + spread * torch.randn(1, shape[1], generator=g))
    values = 1 + torch.multinomial(torch.tensor([4.0, 3.0, 2.0, 1.0]), shape[0] * shape[1], True, generator=g)
    return values.view(shape) * (torch.rand(shape, generator=g) < density * p / p.mean())


def file_bits(index: Tensor, compact: bool = True) -> int:
    codebook = torch.arange(5.0)
    tensor = QuantizedTensor("w", tuple(index.shape), torch.float32, index.flatten().to(torch.uint8), codebook)
    return 8 * len(encode(QuantizedWeights((tensor,), {}, {}), EncodeConfig(compact=compact)))


def estimated_and_saved(index: Tensor, n: int, times: int, compact: bool = True) -> tuple[float, float]:
    """Mean bits of a weight, by `bits_saved` and by the coder, if `n` at random become zeros. A file is whole bytes."""
    bits, places, whole = bits_saved(index, 5).flatten(), index.flatten().nonzero()[:, 0], file_bits(index, compact)
    estimated, saved, g = 0.0, 0, torch.Generator().manual_seed(0)
    for _ in range(times):
        gone = places[torch.randperm(len(places), generator=g)[:n]]
        estimated += float(bits[gone].sum())
        saved += whole - file_bits(index.flatten().index_fill(0, gone, 0).view_as(index), compact)
    return estimated / n / times, saved / n / times


@pytest.mark.parametrize(
    ("shape", "density", "spread"),
    [((60, 100), 0.05, 0.0), ((60, 100), 0.05, 1.0), ((200, 100), 0.02, 1.0), ((300, 100), 0.1, 0.5)],
)
def test_the_bits_saved_are_those_of_the_file(shape: tuple[int, int], density: float, spread: float) -> None:
    """Within 15%, if one weight in twenty goes: from 4 to 8 bits a weight."""
    for seed in range(2):
        index = of_densities(shape, density, spread, seed)
        estimated, saved = estimated_and_saved(index, int(index.count_nonzero()) // 20, times=10)
        assert 4 < saved < 8
        assert estimated == pytest.approx(saved, rel=0.15)


@pytest.mark.parametrize(("compact", "within"), [(False, 0.1), (True, 0.2)])
def test_the_bits_saved_of_a_short_vector_are_those_of_the_file(compact: bool, within: float) -> None:
    """19 of 500 biases. If a weight counted as evidence of itself, the estimate would be 4 bits too low.

    In the compact form, the vector shares one code with the header, and a file is a few bytes.
    """
    found = []
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        places = torch.randperm(500, generator=g)[:19]
        index = torch.zeros(500, dtype=torch.int64).index_copy(0, places, torch.randint(1, 5, (19,), generator=g))
        found.append(estimated_and_saved(index, 3, times=4, compact=compact))
    estimated, saved = (sum(values) / len(found) for values in zip(*found, strict=True))
    assert 5 < saved < 8
    assert estimated == pytest.approx(saved, rel=within)


@pytest.mark.parametrize(("name", "n", "expected"), [("fc1.bias", 3, 5.7), ("conv2.weight", 180, 4.08)])
def test_the_bits_of_a_kept_network_are_between_two_measures_of_its_file(name: str, n: int, expected: float) -> None:
    """A LeNet-5 with 16 of 500 biases and 901 of 25,000 weights. The plain code spends 7.0 and 5.0 bits on each.

    The first to go, drawn at random, save less than that: where the others are, the coder still expects one. If a
    weight counted as evidence of its own presence, the estimate for the biases would be below both.
    """
    kept = decode((ROOT / "results/lenet-5-caffe/softshare/seed-2/model.sws").read_bytes())
    (tensor,) = (t for t in kept.shared if t.name == name)

    def bits_of(indices: Tensor) -> int:
        alone = QuantizedWeights((dataclasses.replace(tensor, indices=indices),), {}, {})
        return 8 * len(encode(alone, EncodeConfig(compact=False)))

    index = tensor.indices.long().reshape(tensor.shape)
    places, g = index.flatten().nonzero()[:, 0], torch.Generator().manual_seed(0)
    spent = (bits_of(tensor.indices) - bits_of(torch.zeros_like(tensor.indices))) / len(places)
    firsts = [places[torch.randperm(len(places), generator=g)[:n]] for _ in range(20)]
    left = [bits_of(tensor.indices.flatten().index_fill(0, gone, 0)) for gone in firsts]
    at_first = (bits_of(tensor.indices) - sum(left) / len(left)) / n
    estimated = float(bits_saved(index, len(tensor.codebook))[index != 0].mean())
    assert estimated == pytest.approx(expected, rel=0.01)
    assert at_first < estimated < spent


def test_the_lonely_and_the_rare_save_most() -> None:
    """A weight saves more in an empty row than in a full one, and a rare value saves more than a common one."""
    index = torch.zeros(20, 20, dtype=torch.int64)
    index[0, :10] = 1
    index[10, 15] = 1
    index[0, 9] = 2
    saved = bits_saved(index, 3)
    assert saved[10, 15] > saved[0, 0] > 0
    assert saved[0, 9] > saved[0, 8]


def test_no_weight_saves_less_than_the_bits_of_its_value() -> None:
    """In a full matrix it costs nothing to say that a weight is there. This must not count as a gain of zeros."""
    index = torch.randint(1, 4, (8, 8), generator=torch.Generator().manual_seed(0))
    assert bool((bits_saved(index, 4) > 0).all())


# The rule


def make_prior(mixtures: Any = "layer", model: nn.Module | None = None) -> ss.MixturePrior:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 10))
    return ss.MixturePrior(model, ss.PriorConfig(mixtures=mixtures, components=4, zero_mixing=0.5))


def with_mixtures(prior: ss.MixturePrior) -> list[tuple[Mixture, Tensor]]:
    """Each tensor of weights, after the mixture over it."""
    return [(m, w) for part, m in zip(prior.parts, prior.mixtures(), strict=True) for w in part.tensors]


@pytest.mark.parametrize("mixtures", ["layer", "global"])
def test_zeroed_are_exactly_those_not_worth_their_bits(mixtures: str) -> None:
    prior = make_prior(mixtures)
    g = torch.Generator().manual_seed(1)
    curvatures = [torch.rand(w.shape, generator=g) ** 4 for w in prior.view.tensors]
    price, expected, n_kept, n_zeroed = 1e-4, [], 0, 0
    remaining = iter(curvatures)
    for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
        for w in part.tensors:
            index = mixture.responsibilities(w.detach().flatten()).argmax(0).view_as(w)
            value = mixture.mean.detach()[index].double()
            saved = torch.tensor(plainly(index, 5)).double().view_as(w)
            cheap = next(remaining).double() * value**2 / 2 < price * saved
            expected.append(torch.where(cheap, 0.0, w.detach()))
            n_zeroed, n_kept = n_zeroed + int(cheap.sum()), n_kept + int((~cheap & (index != 0)).sum())
    assert min(n_kept, n_zeroed) > 50
    zero_cheap_(prior, curvatures, price)
    for w, truth in zip(prior.view.tensors, expected, strict=True):
        assert torch.equal(w.detach(), truth)
    assert all(w.requires_grad and w.grad is None for w in prior.view.tensors)


def costs_of(prior: ss.MixturePrior) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [
        cost_and_bits(m.assign(w).view_as(w), m.mean, torch.rand(w.shape, generator=g)) for m, w in with_mixtures(prior)
    ]


@pytest.mark.parametrize("share", [0.01, 0.9])
def test_the_wanted_bits_are_saved(share: float) -> None:
    costs = costs_of(make_prior())
    cheapest = Cheapest(costs)
    assert cheapest.total == pytest.approx(sum(float(bits[bits > 0].sum()) for _, bits in costs))
    wanted = share * cheapest.total
    masks = cheapest.saving(wanted)
    gone = sum(float(bits.flatten()[mask].sum()) for (_, bits), mask in zip(costs, masks, strict=True))
    assert wanted * (1 - 1e-5) <= gone <= wanted + max(float(bits.max()) for _, bits in costs)  # whole weights


def test_the_cheapest_are_those_that_a_price_would_zero() -> None:
    """Some number of bits zeroes the same weights as a price."""
    costs = costs_of(make_prior())
    cheap = [((cost < 3e-4 * bits) & (bits > 0)).flatten() for cost, bits in costs]
    saved = sum(float(bits.flatten()[c].sum()) for c, (_, bits) in zip(cheap, costs, strict=True))
    cheapest = Cheapest(costs)
    assert 0.1 < saved / cheapest.total < 0.9
    pairs = zip(cheapest.saving(saved * (1 - 1e-6)), cheap, strict=True)
    assert all(torch.equal(found, wanted) for found, wanted in pairs)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0])
def test_a_network_that_fits_its_data_perfectly_keeps_its_weights(scale: float) -> None:
    """Without curvature all weights seem worthless. Below a nat, only the proportions of the curvatures matter."""

    def worth_of(prior: ss.MixturePrior, curvatures: list[Tensor]) -> float:
        pairs = zip(with_mixtures(prior), curvatures, strict=True)
        return sum(float((0.5 * h * m.mean[m.assign(w).view_as(w)] ** 2).detach().sum()) for (m, w), h in pairs)

    expected, found = make_prior(), make_prior()
    g = torch.Generator().manual_seed(1)
    curvatures = [torch.rand(w.shape, generator=g) for w in found.view.tensors]
    nat = [h / worth_of(found, curvatures) for h in curvatures]
    price = 0.1 / sum(w.numel() for w in found.view.tensors)
    spare_bits_(expected, nat, price, least_worth=0.0)
    spare_bits_(found, [scale * h for h in nat], price, least_worth=1.0)
    pairs = list(zip(expected.view.tensors, found.view.tensors, strict=True))
    assert all(torch.equal(a.detach(), b.detach()) for a, b in pairs)
    assert any(bool((a == 0).any()) for a, _ in pairs)
    before = found.quantize(hard=True).quantized.n_nonzero
    spare_bits_(found, [1e-12 * h for h in nat], price, least_worth=0.0)
    assert found.quantize(hard=True).quantized.n_nonzero < 0.1 * before


@torch.no_grad()
@pytest.mark.parametrize("mixtures", ["layer", "global"])
def test_each_weight_takes_the_value_whose_bits_it_is_worth(mixtures: str) -> None:
    """Against the cost of every value, weight by weight. Zeros stay zeros, and no other weight becomes one."""
    prior = make_prior(mixtures)
    g = torch.Generator().manual_seed(1)
    curvatures = [torch.rand(w.shape, generator=g) ** 4 for w in prior.view.tensors]
    price, expected, moved = 1e-3, [], 0
    for (mixture, w), h in zip(with_mixtures(prior), curvatures, strict=True):
        index, values = mixture.assign(w).flatten().tolist(), mixture.mean.double().tolist()
        n_others = sum(k != 0 for k in index) - 1
        bits = [-math.log2((max(0, index.count(k) - 1) + 0.5) / (n_others + 0.5 * len(values))) for k in range(5)]
        best = []
        for own, curvature in zip(index, h.flatten().double().tolist(), strict=True):
            costs = {k: 0.5 * curvature * (values[k] - values[own]) ** 2 + price * bits[k] for k in range(1, 5)}
            best.append(min(costs, key=lambda k: (costs[k], k != own)) if own else 0)
        moved += sum(a != b for a, b in zip(index, best, strict=True))
        expected.append(
            (best, [v if a == b else None for v, a, b in zip(w.flatten().tolist(), index, best, strict=True)])
        )
    assert moved > 30
    take_common_(prior, curvatures, price)
    for (mixture, w), (best, unmoved) in zip(with_mixtures(prior), expected, strict=True):
        values = mixture.mean.tolist()
        assert w.flatten().tolist() == [values[k] if v is None else v for v, k in zip(unmoved, best, strict=True)]


@torch.no_grad()
def test_no_weight_moves_for_nothing_or_if_it_is_not_trained() -> None:
    prior = make_prior()
    before = [w.clone() for w in prior.view.tensors]
    take_common_(prior, [torch.ones_like(w) for w in before], 0.0)
    take_common_(prior, [torch.full_like(w, math.inf) for w in before], 1e6)
    assert all(torch.equal(a, b) for a, b in zip(prior.view.tensors, before, strict=True))


def test_weights_that_stay_at_a_price() -> None:
    """At a price of 0, even weights without curvature stay. At any price, those of infinite curvature stay."""
    prior = make_prior()
    before = [w.detach().clone() for w in prior.view.tensors]
    zero_cheap_(prior, [torch.zeros_like(w) for w in before], 0.0)
    zero_cheap_(prior, [torch.full_like(w, math.inf) for w in before], 1e6)
    assert all(torch.equal(a, b) for a, b in zip(prior.view.tensors, before, strict=True))


def test_at_a_high_price_nothing_but_zeros_is_left() -> None:
    prior = make_prior()
    zero_cheap_(prior, [torch.ones_like(w) for w in prior.view.tensors], 1e9)
    assert prior.quantize().quantized.n_nonzero == 0


def test_tensors_without_weights_and_scalars() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.linear.none = nn.Parameter(torch.empty(0, 3))
            self.linear.scale = nn.Parameter(torch.tensor(0.75))

    prior = make_prior(model=Odd())
    zero_cheap_(prior, [torch.ones_like(w) for w in prior.view.tensors], 1e9)
    assert [t.n_nonzero for t in prior.quantize().quantized.shared] == [0, 0, 0, 0]
    assert prior.view.tensors[-1].item() == 0


# The curvature


class Quadratic(nn.Module):
    """Two weights, each with one input."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[0.5, -0.25]]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x)[:, 0]
        return out


def gaussian_nll(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """For variance 1, without its constant. The curvature by a weight is the mean square of its input."""
    out: Tensor = model(batch[0])
    return 0.5 * (out - batch[1]).square().mean()


@pytest.mark.slow
def test_the_curvature_is_that_of_a_quadratic_task() -> None:
    """Targets are the network's outputs plus noise of variance 1, as if it had learned all there is.

    The mean square of one example's gradient is then E[x^2], the true curvature. That of a batch's mean gradient is
    1 / B of it. The running mean covers about 1000 steps, so the estimate is within 10%.
    """
    g = torch.Generator().manual_seed(0)
    model, size = Quadratic(), 16
    scale = torch.tensor([2.0, 0.5])
    task = Task(model, [], gaussian_nll, lambda m: 0.0, size)
    prior = ss.MixturePrior(model, ss.PriorConfig(components=2))
    step = Step(task, prior, ss.RetrainConfig(lr_weights=1e-3))
    step.hard = True
    step.set(0.0, 0.0)  # nothing moves
    for _ in range(3000):
        x = scale * torch.randn(size, 2, generator=g)
        with quantized(prior):
            y = model(x).detach() + torch.randn(size, generator=g)
        step((x, y))
    assert step.curvature is not None
    (curvature,) = step.curvature.estimate(size)
    assert curvature.tolist()[0] == pytest.approx([4.0, 0.25], rel=0.1)


def test_the_curvature_by_its_definition() -> None:
    """The batch size times the running mean square, with its bias corrected, here by hand after 3 steps.

    It is that of the task's gradient at the quantized weights, without the prior's.
    """
    model = Quadratic()
    task, prior = Task(model, [], gaussian_nll, lambda m: 0.0, 4), ss.MixturePrior(model, ss.PriorConfig(components=2))
    step = Step(task, prior, ss.RetrainConfig(scaling="paper", lr_weights=1e-3))
    step.hard = True
    mean_square = torch.zeros(1, 2)
    for k in range(3):
        x, y = torch.randn(4, 2, generator=torch.Generator().manual_seed(k)), torch.ones(4)
        with quantized(prior):
            gradient = torch.autograd.grad(gaussian_nll(model, (x, y)), model.fc.weight)[0]
        mean_square = 0.999 * mean_square + 0.001 * gradient**2
        step.set(100.0, 1.0)
        step((x, y))
    assert step.curvature is not None
    (curvature,) = step.curvature.estimate(4)
    torch.testing.assert_close(curvature, 4 * mean_square / (1 - 0.999**3), rtol=1e-4, atol=0)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_curvature_ignores_the_prior_and_the_decay(optimizer: Any) -> None:
    """However strong they are. With rates of 0, only the gradients used for training depend on them."""
    found, trained_with = [], []
    for tau, decay in ((0.0, 0.0), (1e4, 0.0), (0.0, 10.0)):
        model = Quadratic()
        prior = ss.MixturePrior(model, ss.PriorConfig(components=2, zero_mixing=0.4))
        config = ss.RetrainConfig(scaling="paper", optimizer=optimizer, weight_decay=decay)
        step = Step(Task(model, [], gaussian_nll, lambda m: 0.0, 4), prior, config)
        step.hard = True
        step.set(tau, 0.0)
        for k in range(3):
            step((torch.randn(4, 2, generator=torch.Generator().manual_seed(k)), torch.ones(4)))
        assert step.curvature is not None
        found.append(step.curvature.estimate(4)[0])
        assert model.fc.weight.grad is not None
        trained_with.append(model.fc.weight.grad.clone())
    assert bool((found[0] > 0).all())
    assert all(torch.equal(f, found[0]) for f in found[1:])
    assert float((trained_with[1] - trained_with[0]).abs().max()) > 1


def test_soft_steps_are_not_noted() -> None:
    model = Quadratic()
    prior = ss.MixturePrior(model, ss.PriorConfig(components=2, zero_mixing=0.4))
    estimates = []
    for n_soft in (0, 3):
        step = Step(Task(model, [], gaussian_nll, lambda m: 0.0, 4), prior, ss.RetrainConfig())
        step.set(0.0, 0.0)
        for k in range(n_soft):
            step((torch.randn(4, 2, generator=torch.Generator().manual_seed(100 + k)), torch.ones(4)))
        step.hard = True
        step((torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), torch.ones(4)))
        assert step.curvature is not None
        estimates.append(step.curvature.estimate(4)[0])
    assert torch.equal(estimates[0], estimates[1])


@pytest.mark.parametrize(("hard_from", "zeroing"), [(1.0, 0.3), (0.0, 0.0)])
def test_without_zeroing_no_curvature_is_kept(hard_from: float, zeroing: float) -> None:
    model = Quadratic()
    config = ss.RetrainConfig(hard_from=hard_from, zeroing=zeroing)
    assert Step(Task(model, [], gaussian_nll, lambda m: 0.0, 4), ss.MixturePrior(model), config).curvature is None


def test_a_weight_on_which_no_loss_depends_has_no_curvature() -> None:
    """The prior still pulls it, which must not count as curvature. It is zeroed at any price."""

    class Unused(Quadratic):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(3, 2, bias=False)
            nn.init.constant_(self.unused.weight, 0.5)

    model = Unused()
    prior = ss.MixturePrior(model, ss.PriorConfig(components=2, zero_mixing=0.4))
    step = Step(Task(model, [], gaussian_nll, lambda m: 0.0, 4), prior, ss.RetrainConfig(scaling="paper"))
    step.hard = True
    step.set(100.0, 0.0)
    step((torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), torch.ones(4)))
    assert step.curvature is not None
    used, unused = step.curvature.estimate(4)
    assert bool((used > 0).all())
    assert unused.tolist() == [[0.0] * 3] * 2
    assert prior.quantize().quantized.shared[1].n_nonzero == 6
    zero_cheap_(prior, [used, unused], 1e-12)
    assert [t.n_nonzero for t in prior.quantize().quantized.shared] == [2, 0]


def test_a_step_that_gives_no_shared_weight_a_gradient() -> None:
    """All shared weights are frozen. Only other weights are trained."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model[0].requires_grad_(False)
    prior = ss.MixturePrior(model, ss.PriorConfig(components=2, rules=(ss.Rule("0.*", share=True),)))
    task = Task(model, [torch.randn(4, 2)] * 2, lambda m, x: m(x).square().mean(), lambda m: 0.0, 8)
    before = model.get_parameter("0.weight").clone()
    retrain_(task, prior, ss.RetrainConfig(epochs=2, hard_from=0.0))
    assert torch.equal(model.get_parameter("0.weight"), before)


def test_nothing_is_known_of_a_weight_that_is_not_trained() -> None:
    """A rule shares it although it needs no gradient. It is never zeroed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    prior = ss.MixturePrior(model, ss.PriorConfig(components=2, zero_mixing=0.4, rules=(ss.Rule("*", share=True),)))
    task = Task(model, [], lambda m, x: m(x).square().mean(), lambda m: 0.0, 4)
    step = Step(task, prior, ss.RetrainConfig())
    step.hard = True
    frozen = model.get_parameter("0.weight")
    before = frozen.clone()
    step(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))
    assert step.curvature is not None
    infinite = [bool(c.isinf().all()) for c in step.curvature.estimate(4)]
    assert infinite == [True, True, False, False]
    assert all(t.n_nonzero for t in prior.quantize().quantized.shared[:3])
    zero_cheap_(prior, step.curvature.estimate(4), 1e9)
    assert torch.equal(frozen, before)
    assert prior.quantize().quantized.shared[2].n_nonzero == 0


# In training


@pytest.mark.parametrize(
    ("hard_from", "zeroing", "calls"), [(0.0, 0.5, 4), (0.5, 0.5, 2), (1.0, 0.5, 0), (0.0, 0.0, 0)]
)
@pytest.mark.parametrize(("scaling", "counted"), [("paper", 20), ("auto", 60_000)])
def test_after_every_hard_epoch_at_the_price_of_tau(
    hard_from: float, zeroing: float, calls: int, scaling: Any, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The price of a bit is zeroing * tau / N * log 2, by the tau of the epoch's last step. N is by the scaling."""
    prices: list[float] = []

    def noted(prior: ss.MixturePrior, curvatures: Any, price: float) -> None:
        prices.append(price)
        zero_cheap_(prior, curvatures, price)

    monkeypatch.setattr(rate, "zero_cheap_", noted)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    batches = [torch.randn(4, 2, generator=torch.Generator().manual_seed(k)) for k in range(5)]
    task = Task(model, batches, lambda m, x: (m(x)[:, 0] - x[:, 0]).square().mean(), lambda m: 0.0, 20)
    config = ss.RetrainConfig(epochs=4, scaling=scaling, tau=0.3, tau_warmup=0.5, hard_from=hard_from, zeroing=zeroing)
    history = retrain_(task, ss.MixturePrior(model, ss.PriorConfig(components=2)), config)
    assert prices == pytest.approx([zeroing * r.tau / counted * math.log(2) for r in history[5 - calls :]])


@pytest.mark.slow
def test_a_higher_price_leaves_fewer_weights() -> None:
    counts = []
    for zeroing in (0.0, 1.0, 100.0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
        batches = [torch.randn(16, 10, generator=torch.Generator().manual_seed(k)) for k in range(10)]
        task = Task(model, batches, lambda m, x: (m(x)[:, 0] - x[:, 0]).square().mean(), lambda m: 0.0, 160)
        config = ss.CompressConfig().override(epochs=4, scaling="paper", tau=0.02, zero_mixing=0.5, symmetries=False)
        config = dataclasses.replace(config, retrain=dataclasses.replace(config.retrain, zeroing=zeroing))
        counts.append(ss.compress(task, config, target=None).quantized.n_nonzero)
    assert counts[0] > counts[1] > counts[2]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_zeroing_with_either_optimizer(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the curvature of the task, inputs that matter keep their weights, and those that never vary lose theirs."""
    calls: list[list[Tensor]] = []

    def noted(prior: ss.MixturePrior, curvatures: Any, price: float) -> None:
        calls.append(curvatures)
        zero_cheap_(prior, curvatures, price)

    monkeypatch.setattr(rate, "zero_cheap_", noted)
    torch.manual_seed(0)
    model = nn.Linear(10, 4)
    on = (torch.arange(10) < 5).float()  # the other inputs are always 0
    batches = [on * torch.randn(16, 10, generator=torch.Generator().manual_seed(k)) for k in range(10)]
    task = Task(model, batches, lambda m, x: (m(x) - x[:, :4]).square().mean(), lambda m: 0.0, 160)
    prior = ss.MixturePrior(model, ss.PriorConfig(components=4, zero_mixing=0.5))
    assert prior.quantize().quantized.shared[0].dense()[:, 5:].count_nonzero() > 5
    config = ss.RetrainConfig(
        epochs=3, scaling="paper", tau=1e-3, tau_warmup=0.0, lr_weights=1e-2, hard_from=0.0, optimizer=optimizer
    )
    history = retrain_(task, prior, config)
    assert len(calls) == 3
    assert all(bool((c[0][:, :5] > 0).all()) and not c[0][:, 5:].any() for c in calls)
    weight = prior.quantize().quantized.shared[0].dense()
    assert weight[:, 5:].count_nonzero() == 0
    assert weight[:, :5].count_nonzero() > 3
    assert history[-1].task_loss < history[1].task_loss
