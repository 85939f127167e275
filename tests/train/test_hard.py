"""The hard phase: forward and backward on quantized weights, which train the weights behind them."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from kernels import needs_gpu
from softshare.errors import TaskError
from softshare.task import Task
from softshare.train.captured import CapturedStep
from softshare.train.hard import add_mean_gradients_, quantized
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.replayed import WARM_UP
from softshare.train.retrain import retrain_
from softshare.train.step import Step
from softshare.train.zeroing import zero_cheap_

Batch = tuple[Tensor, Tensor]
EACH = ss.PriorConfig(components=3, zero_mixing=0.6)
ONE = dataclasses.replace(EACH, mixtures="global")
each_prior = pytest.mark.parametrize("config", [EACH, ONE], ids=["layer", "global"])
HARD = ss.RetrainConfig(
    epochs=2,
    scaling="paper",
    tau=0.3,
    tau_warmup=0.0,
    lr_weights=1e-2,
    schedule="constant",
    hard_from=0.0,
    zeroing=0.0,
)


class Net(nn.Module):
    """A convolution in channels-last memory, a batch norm, an empty layer, and a weight that is used twice."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.norm = nn.BatchNorm2d(4)
            self.none = nn.Linear(4, 1, bias=False)
            self.none.weight = nn.Parameter(torch.empty(0, 4))
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.head = nn.Linear(4, 3)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        out: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return out


def images(n: int = 12, seed: int = 0, dtype: torch.dtype = torch.float32) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 5, 5, generator=g).to(dtype), torch.randint(3, (n,), generator=g)


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def error(model: nn.Module) -> float:
    """In place of an error in percent: a number that depends on every weight."""
    assert not model.training
    with torch.no_grad():
        return 100 * float(cross_entropy(model, images(200, seed=9, dtype=next(model.parameters()).dtype)))


def make_task(model: nn.Module | None = None, n: int = 3, dtype: torch.dtype = torch.float32, **changes: Any) -> Task:
    batches = [images(seed=k, dtype=dtype) for k in range(n)]
    return dataclasses.replace(Task(model or Net(dtype), batches, cross_entropy, error, 12 * n), **changes)


def most_responsible(prior: ss.MixturePrior) -> dict[str, tuple[Tensor, Tensor]]:
    """For each shared tensor, the components of its weights and their means, by the definition in float64."""
    found = {}
    for k, part in enumerate(prior.parts):
        zero = torch.sigmoid(prior.zero_logit[k].double())
        mixing = torch.cat([zero[None], (1 - zero) * prior.mixing_logits[k].double().softmax(0)])
        mean = torch.cat([torch.zeros(1).double(), prior.means[k].double()])
        var = prior.log_vars[k].double().exp()
        for s in part.shared:
            w = s.tensor.detach().double()
            density = mixing.log() - 0.5 * var.log() - 0.5 * (w[..., None] - mean) ** 2 / var
            index = density.argmax(-1).detach()
            found[s.name] = index, mean[index].detach()
    return found


def spread(prior: ss.MixturePrior) -> ss.MixturePrior:
    """The prior with its parameters moved from the start, and all different."""
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in prior.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=g).to(p))
    return prior


# The network within


@each_prior
def test_within_each_weight_is_the_mean_of_its_component(config: ss.PriorConfig) -> None:
    model = Net()
    prior = spread(ss.MixturePrior(model, config))
    expected, before = most_responsible(prior), copy.deepcopy(model.state_dict())
    with quantized(prior) as assigned:
        during = copy.deepcopy(model.state_dict())
        strides = model.conv.weight.stride()
    for s, components in zip(prior.view.shared, assigned, strict=True):
        index, values = expected[s.name]
        assert torch.equal(components.long(), index)
        torch.testing.assert_close(during[s.name].double(), values, rtol=1e-6, atol=0)
        assert s.tensor.numel() == 0 or not torch.equal(during[s.name], before[s.name])
    assert strides == before["conv.weight"].stride()
    assert torch.equal(during["second.weight"], during["first.weight"])
    for name in (n for n in before if n.startswith("norm")):
        assert torch.equal(during[name], before[name])
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_after_an_error_the_weights_are_restored() -> None:
    model = Net()
    prior = ss.MixturePrior(model, EACH)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyboardInterrupt), quantized(prior):
        raise KeyboardInterrupt
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())

    def fails(model: nn.Module, batch: Batch) -> Tensor:
        assert not torch.equal(model.state_dict()["head.weight"], before["head.weight"])
        raise RuntimeError("out of memory")

    with pytest.raises(TaskError, match="out of memory"):
        retrain_(make_task(model, loss=fails), prior, HARD)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


# Gradients of the means


def with_gradients(config: ss.PriorConfig, dtype: torch.dtype = torch.float32) -> tuple[ss.MixturePrior, list[Tensor]]:
    """A prior and the weights' components, after forward and backward of the quantized network."""
    model = Net(dtype)
    prior = spread(ss.MixturePrior(model, config))
    with quantized(prior) as assigned:
        cross_entropy(model, images(dtype=dtype)).backward()
    return prior, assigned


@pytest.mark.parametrize(
    ("config", "dtype", "existing"),
    [
        (EACH, torch.float32, False),
        (ONE, torch.float32, True),
        (ONE, torch.float64, False),
        (EACH, torch.bfloat16, True),
    ],
)
def test_the_gradient_of_a_mean_is_the_sum_over_its_weights(
    config: ss.PriorConfig, dtype: torch.dtype, existing: bool
) -> None:
    prior, assigned = with_gradients(config, dtype)
    if existing:
        prior.means.grad = torch.full_like(prior.means, 0.25)
    add_mean_gradients_(prior, assigned)
    components = iter(assigned)
    expected = [[0.25 * existing] * 4 for _ in prior.parts]
    for sums, part in zip(expected, prior.parts, strict=True):
        for w in part.tensors:
            grad = [0.0] * w.numel() if w.grad is None else w.grad.double().flatten().tolist()
            for j, value in zip(next(components).flatten().tolist(), grad, strict=True):
                sums[j] += value
    assert prior.means.grad is not None
    assert prior.means.grad.dtype == prior.means.dtype
    torch.testing.assert_close(prior.means.grad.double(), torch.tensor(expected).double()[:, 1:], rtol=1e-5, atol=1e-7)


@each_prior
def test_the_gradient_of_a_mean_is_autograds_through_a_gather(config: ss.PriorConfig) -> None:
    """The network's weights are `mean[index]`, by torch.func."""
    prior, assigned = with_gradients(config, torch.float64)
    add_mean_gradients_(prior, assigned)
    model, means = Net(torch.float64), prior.means.detach().clone().requires_grad_()
    padded, components, values = F.pad(means, (1, 0)), iter(assigned), {}
    for k, part in enumerate(prior.parts):
        for s in part.shared:
            values[s.name] = padded[k][next(components).long()]
    logits = torch.func.functional_call(model, values, (images(dtype=torch.float64)[0],), tie_weights=True)
    F.cross_entropy(logits.float(), images()[1]).backward()
    assert prior.means.grad is not None
    torch.testing.assert_close(prior.means.grad, means.grad, rtol=1e-6, atol=1e-9)


def test_frozen_means_get_no_gradient() -> None:
    prior, assigned = with_gradients(EACH)
    prior.means.requires_grad_(False)
    add_mean_gradients_(prior, assigned)
    assert prior.means.grad is None


# A step


@each_prior
def test_a_hard_step_is_the_one_written_by_hand(config: ss.PriorConfig) -> None:
    """Task gradients at the quantized weights go to weights and means. The prior's, at the weights, are added. Adam."""
    task = make_task(dtype=torch.float64)
    prior = spread(ss.MixturePrior(task.model, config))
    model = copy.deepcopy(task.model)
    hand = spread(ss.MixturePrior(model, config))
    step = Step(task, prior, HARD)
    step.hard = True
    groups = [{"params": list(model.parameters()), "lr": 1e-2}, *hand.param_groups()]
    optimizer = torch.optim.Adam(groups)
    for k, tau in enumerate((0.3, 0.2, 0.5)):
        step.set(tau, 1.0)
        task_loss, loss = step(images(seed=k, dtype=torch.float64))

        own = [p.detach().clone() for p in model.parameters()]
        chosen = most_responsible(hand)
        with torch.no_grad():
            for s in hand.view.shared:
                s.tensor.copy_(chosen[s.name][1])
        optimizer.zero_grad()
        expected_task = cross_entropy(model, images(seed=k, dtype=torch.float64))
        expected_task.backward()
        with torch.no_grad():
            for p, value in zip(model.parameters(), own, strict=True):
                p.copy_(value)
        pull = torch.zeros_like(hand.means)
        for k_part, part in enumerate(hand.parts):
            for s in part.shared:
                index = chosen[s.name][0]
                for j in range(3):
                    if s.tensor.grad is not None:
                        pull[k_part, j] += s.tensor.grad[index == j + 1].sum()
        expected = hand.loss(tau, 36)
        expected.backward()
        assert hand.means.grad is not None
        hand.means.grad += pull
        optimizer.step()

        torch.testing.assert_close(task_loss, expected_task.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(loss, (expected_task + expected).detach(), rtol=1e-5, atol=1e-6)
    ours, theirs = ({**m.state_dict(), **p.state_dict()} for m, p in ((task.model, prior), (model, hand)))
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-7, atol=1e-9)


def test_without_a_prior_there_is_no_hard_phase() -> None:
    states = []
    for hard_from in (0.0, 1.0):
        task = make_task()
        retrain_(task, None, dataclasses.replace(HARD, hard_from=hard_from))
        states.append(task.model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(states[0].values(), states[1].values(), strict=True))


# A run


class Watch(Hook):
    """The error of the quantized network after each epoch, by the definition, and that of the network behind it."""

    def __init__(self, task: Task, prior: ss.MixturePrior) -> None:
        self.task, self.prior = task, prior
        self.errors: list[tuple[float, float]] = []

    def on_epoch(self, record: EpochRecord) -> None:
        hard = copy.deepcopy(self.task.model)
        state = hard.state_dict()
        for name, (_, values) in most_responsible(self.prior).items():
            state[name].copy_(values)
        self.errors.append((error(hard), error(self.task.model)))


@pytest.mark.parametrize(("config", "zeroing"), [(EACH, 1.0), (ONE, 0.0)])
def test_the_history_of_hard_epochs_is_of_the_quantized_network(config: ss.PriorConfig, zeroing: float) -> None:
    """From the third of six epochs on. Before, it is of the network that is not quantized."""
    task = make_task()
    prior = ss.MixturePrior(task.model, config)
    watch = Watch(task, prior)
    changed = dataclasses.replace(HARD, epochs=6, hard_from=1 / 3, zeroing=zeroing, tau=0.05)
    history = retrain_(task, prior, changed, [watch])
    hard, soft = zip(*watch.errors, strict=True)
    assert [r.validation_error for r in history] == pytest.approx([*soft[:3], *hard[3:]], rel=1e-6)
    assert all(abs(a - b) > 1e-3 for a, b in watch.errors)


@pytest.mark.parametrize("zeroing", [0.0, 1.0])
def test_after_a_hard_run_quantizing_loses_nothing(zeroing: float) -> None:
    """If nothing merges, the last record's error, density and bits are those of the file."""
    config = ss.CompressConfig().override(
        epochs=4, tau=0.05, zeroing=zeroing, merge_threshold=0.0, symmetries=False, codebook_dtype="float32"
    )
    task = make_task()
    compressed = ss.compress(task, config, target=None)
    fresh = Net().eval()
    fresh.load_state_dict(compressed.state_dict())
    last = compressed.history[-1]
    assert error(fresh) == pytest.approx(last.validation_error, rel=1e-6)
    shares = {t.name: t.n_nonzero / max(1, t.indices.numel()) for t in compressed.quantized.shared}
    assert last.density == pytest.approx(shares, abs=1e-6)
    used: dict[int, set[int]] = {}
    for t in compressed.quantized.shared:
        used.setdefault(id(compressed.mixtures[t.name]), set()).update(t.indices.tolist())
    assert last.components_alive == sum(len(values) for values in used.values())
    result = ss.measure(task, compressed, config)
    assert result.error_after == pytest.approx(last.validation_error, rel=1e-6)
    assert result.complexity_bytes == pytest.approx(last.complexity_bits / 8, rel=1e-5)


def test_a_merge_moves_no_weight_of_a_hard_run_to_another_component() -> None:
    """Two components merge, and each has half the mixing of the zero component. Before, the zero component is most
    responsible up to 1/2 + log 2, and afterwards up to 1/2.
    """
    layer = nn.Linear(3, 1, bias=False)
    prior = ss.MixturePrior(layer, ss.PriorConfig(components=2, zero_mixing=0.5))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.4, 0.8, 2.0]]))
        prior.means.copy_(torch.tensor([[1.0, 1.02]]))
        prior.log_vars.zero_()
    hard, soft = prior.quantize(hard=True), prior.quantize()
    for compressed, expected in ((hard, [0.0, 0.0, 1.01]), (soft, [0.0, 1.01, 1.01])):
        assert compressed.quantized.shared[0].dense().flatten().tolist() == pytest.approx(expected)
        assert len(compressed.mixtures["weight"]) == 2


def test_what_merges_after_a_hard_run_keeps_its_components() -> None:
    config = ss.CompressConfig().override(
        epochs=4,
        scaling="paper",
        tau=0.001,
        zeroing=0.03,
        components=12,
        zero_mixing=0.5,
        merge_threshold=0.3,
        symmetries=False,
    )
    compressed = ss.compress(make_task(), config, target=None)
    last, quantized = compressed.history[-1], compressed.quantized
    shares = {t.name: t.n_nonzero / max(1, t.indices.numel()) for t in quantized.shared}
    assert last.density == pytest.approx(shares, abs=1e-6)
    assert 8 < quantized.n_components < last.components_alive  # 8: a zero and a value in each of four mixtures


def test_weights_and_means_move_in_the_hard_phase_even_with_tau_0() -> None:
    """With tau 0 the means have only the task's gradient, and the log-variances have none."""
    task = make_task()
    prior = ss.MixturePrior(task.model, EACH)
    before = copy.deepcopy({**task.model.state_dict(), **prior.state_dict()})
    retrain_(task, prior, dataclasses.replace(HARD, tau=0.0))
    after = {**task.model.state_dict(), **prior.state_dict()}
    assert not torch.equal(after["head.weight"], before["head.weight"])
    assert not torch.equal(after["means"], before["means"])
    assert torch.equal(after["log_vars"], before["log_vars"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_train(dtype: torch.dtype) -> None:
    task = make_task(dtype=dtype)
    prior = ss.MixturePrior(task.model, EACH)
    history = retrain_(task, prior, dataclasses.replace(HARD, zeroing=0.3))
    assert all(math.isfinite(r.prior_loss) for r in history)
    assert all(p.dtype == dtype and bool(p.isfinite().all()) for p in task.model.parameters())


@each_prior
def test_gradients_of_two_hard_steps_add_up(config: ss.PriorConfig) -> None:
    together, apart = make_task(), make_task()
    priors = [spread(ss.MixturePrior(t.model, config)) for t in (together, apart)]
    batches = [images(seed=k) for k in (1, 2)]
    with ss.hard_step(priors[0]):
        torch.stack([together.loss(together.model, batch) for batch in batches]).sum().backward()
    for batch in batches:
        with ss.hard_step(priors[1]):
            apart.loss(apart.model, batch).backward()
    torch.testing.assert_close(priors[1].means.grad, priors[0].means.grad)
    for one, other in zip(apart.model.parameters(), together.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@needs_gpu
@each_prior
def test_a_captured_hard_step_is_the_uncaptured_one(config: ss.PriorConfig) -> None:
    states = []
    for kind in (Step, CapturedStep):
        task = Task(Net().cuda(), [], cross_entropy, lambda m: 1.0, 36)
        prior = spread(ss.MixturePrior(task.model, config))
        step = kind(task, prior, dataclasses.replace(HARD, lr_weights=1e-3))
        step.hard = True
        for k in range(WARM_UP + 4):
            step.set(0.3, 1.0)
            x, y = images(seed=k)
            step((x.cuda(), y.cuda()))
        states.append({**task.model.state_dict(), **prior.state_dict()})
    for name, value in states[1].items():
        torch.testing.assert_close(value, states[0][name], rtol=1e-5, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_captured_hard_step_notes_the_same_curvature(optimizer: Any) -> None:
    """Batches have two shapes, each with its graph. The same weights are then zeroed."""
    states, curvatures = [], []
    for kind in (Step, CapturedStep):
        task = Task(Net().cuda(), [], cross_entropy, lambda m: 1.0, 36)
        prior = spread(ss.MixturePrior(task.model, dataclasses.replace(EACH, lr_log_vars=1e-5)))  # low enough for SGD
        step = kind(task, prior, dataclasses.replace(HARD, lr_weights=1e-3, zeroing=0.3, optimizer=optimizer))
        step.hard = True
        for k in range(2 * WARM_UP + 8):
            step.set(0.3, 1.0)
            x, y = images(seed=k)
            n = len(x) if k % 2 else len(x) // 2
            step((x[:n].cuda(), y[:n].cuda()))
        assert step.curvature is not None
        assert not isinstance(step, CapturedStep) or len(step._graphs) == 2
        curvatures.append(step.curvature.estimate(36))
        before = prior.quantize().quantized.n_nonzero
        zero_cheap_(prior, curvatures[-1], 1e-3)
        assert 0 < prior.quantize().quantized.n_nonzero < before
        states.append({**task.model.state_dict(), **prior.state_dict()})
    assert any(bool((c > 0).any()) for c in curvatures[0])
    for ours, truth in zip(curvatures[1], curvatures[0], strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-3, atol=1e-6)
    for name, value in states[1].items():
        torch.testing.assert_close(value, states[0][name], rtol=1e-4, atol=1e-5)
