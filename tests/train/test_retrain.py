"""Retraining: the objective by hand, seeds, schedules, divergence, the history and the hooks."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from softshare.config import Beta, Dirichlet, Gamma, PriorConfig, RetrainConfig, Rule
from softshare.errors import ConfigError, DivergedError, TaskError
from softshare.prior.mixture import Mixture
from softshare.prior.prior import MixturePrior
from softshare.quantization.assignment import quantize
from softshare.task import Task
from softshare.train import step as step_module
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.retrain import CHECK_EVERY, retrain_

Batch = tuple[Tensor, Tensor]
PRIOR = PriorConfig(
    mixtures="global",
    components=4,
    width=None,
    init_std=None,
    zero_mixing=0.8,
    zero_precision_prior=Gamma(50, 0.5),
    free_precision_prior=Gamma(8, 0.25),
    lr_means=3e-3,
    lr_log_vars=2e-2,
    lr_mixing=5e-2,
)
SOFT = RetrainConfig(scaling="paper", hard_from=1.0, zeroing=0.0)
PLAIN = dataclasses.replace(SOFT, epochs=2, tau=0.1, tau_warmup=0.0, lr_weights=1e-2, schedule="constant")


def blobs(n: int = 24, dtype: torch.dtype = torch.float32) -> Batch:
    """Points from two Gaussian clouds in turn, one for each class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 2
    points = torch.randn(n, 2, generator=generator, dtype=torch.float64) + 4.0 * labels[:, None] - 2
    return points.to(dtype), labels


def batches(n: int, size: int, dtype: torch.dtype = torch.float32) -> list[Batch]:
    x, y = blobs(n, dtype)
    return list(zip(torch.split(x, size), torch.split(y, size), strict=True))


def net(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Sequential:
    """A network with batch-norm and dropout, which show mixed-up modes or states."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)
        return nn.Sequential(*layers).to(dtype)


def mlp(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype)


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def error_percent(model: nn.Module) -> float:
    x, y = blobs(100)
    x = x.to(next(model.parameters()).dtype)
    return float((model(x).argmax(1) != y).double().mean() * 100)


def make_task(model: nn.Module, train: Iterable[Any] | None = None, n_examples: int = 24, **changes: Any) -> Task:
    task = Task(model, batches(24, 8) if train is None else train, cross_entropy, error_percent, n_examples)
    return dataclasses.replace(task, **changes)


def states(task: Task, prior: MixturePrior | None) -> dict[str, Tensor]:
    state = {f"model.{k}": v for k, v in task.model.state_dict().items()}
    return copy.deepcopy(state | {f"prior.{k}": v for k, v in (prior.state_dict() if prior else {}).items()})


def assert_same_state(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert list(a) == list(b)
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def plain(history: Iterable[EpochRecord]) -> list[dict[str, Any]]:
    """Records without the clock, and with NaN as text, so that it equals itself."""
    rows = [{k: v for k, v in dataclasses.asdict(r).items() if k != "seconds"} for r in history]
    return [{k: "nan" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()} for row in rows]


class Recorder(Hook):
    """Records every call in order, and the states after every epoch."""

    def __init__(self, task: Task | None = None, prior: MixturePrior | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.task, self.prior = task, prior
        self.after: list[dict[str, Tensor]] = []
        self.mixtures: list[Mixture] = []

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self.calls.append(("start", epochs, steps_per_epoch))

    def on_step(self, epoch: int, step: int) -> None:
        self.calls.append(("step", epoch, step))

    def on_epoch(self, record: EpochRecord) -> None:
        self.calls.append(("epoch", record.epoch))
        if self.task:
            self.after.append(states(self.task, self.prior))
        if self.prior:
            self.mixtures.append(self.prior.mixture().detach())

    def on_end(self) -> None:
        self.calls.append(("end",))


@dataclasses.dataclass
class Step:
    lrs: list[float]
    grads: list[list[Tensor | None]]


def spied(run: Callable[[], object]) -> list[Step]:
    """The rates and gradients that the optimizer gets at every step of `run`."""
    seen: list[Step] = []

    def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        groups = optimizer.param_groups
        grads = [[None if p.grad is None else p.grad.clone() for p in g["params"]] for g in groups]
        seen.append(Step([g["lr"] for g in groups], grads))

    handle = register_optimizer_step_pre_hook(before_step)
    try:
        run()
    finally:
        handle.remove()
    return seen


# The objective, against a loop written by hand


class ByHand:
    """The mixture's parameters and -log p(w, theta), from the paper's formulas and torch.distributions alone."""

    def __init__(self, model: nn.Module, config: PriorConfig) -> None:
        self.config, self.weights = config, list(model.parameters())
        w = self.flat().detach()
        j = config.components
        self.means = torch.linspace(float(w.min()), float(w.max()), j, dtype=w.dtype).requires_grad_()
        spacing = float(w.max() - w.min()) / (j - 1)
        self.log_vars = torch.full((j + 1,), math.log(spacing**2), dtype=w.dtype, requires_grad=True)
        self.logits = torch.zeros(j, dtype=w.dtype, requires_grad=True)
        odds = config.zero_mixing / (1 - config.zero_mixing)
        self.zero_logit = torch.tensor(math.log(odds), dtype=w.dtype, requires_grad=config.mixing_prior is not None)

    def flat(self) -> Tensor:
        return torch.cat([p.reshape(-1) for p in self.weights])

    def neg_log_prior(self) -> Tensor:
        zero = torch.sigmoid(self.zero_logit)
        mixing = torch.cat([zero[None], (1 - zero) * torch.softmax(self.logits, 0)])
        mean, var = torch.cat([torch.zeros(1).to(self.means), self.means]), self.log_vars.exp()
        normals = distributions.Normal(mean, var.sqrt())
        density = distributions.MixtureSameFamily(distributions.Categorical(mixing), normals)
        loss = -log_prob(density, self.flat()).sum()
        for gamma, part in ((self.config.zero_precision_prior, var[:1]), (self.config.free_precision_prior, var[1:])):
            if gamma:
                truth = distributions.Gamma(torch.tensor(gamma.alpha).to(var), torch.tensor(gamma.beta).to(var))
                loss = loss - log_prob(truth, 1 / part).sum()
        match self.config.mixing_prior:
            case Beta(alpha, beta):
                hyper = distributions.Beta(torch.tensor(alpha).to(var), torch.tensor(beta).to(var))
                loss = loss - log_prob(hyper, zero)
            case Dirichlet(first, free):
                concentration = torch.full_like(mixing, free)
                concentration[0] = first
                loss = loss - log_prob(distributions.Dirichlet(concentration), mixing)
        return loss


def log_prob(distribution: distributions.Distribution, value: Tensor) -> Tensor:
    return distribution.log_prob(value)


@pytest.mark.parametrize(
    ("schedule", "mixing_prior"), [("constant", None), ("cosine", Beta(40, 2)), ("cosine", Dirichlet(40, 1.5))]
)
def test_training_is_the_loop_written_by_hand(schedule: Any, mixing_prior: Beta | Dirichlet | None) -> None:
    prior_config = dataclasses.replace(PRIOR, mixing_prior=mixing_prior)
    config = dataclasses.replace(SOFT, epochs=3, tau=0.7, tau_warmup=0.5, lr_weights=1e-2, schedule=schedule)
    train = batches(24, 10, torch.float64)  # 10, 10 and 4: a short last batch
    task = make_task(mlp(), train)
    prior = MixturePrior(task.model, prior_config)
    retrain_(task, prior, config)

    model = mlp()
    hand = ByHand(model, prior_config)
    groups = (
        (list(model.parameters()), 1e-2),
        ([hand.means], 3e-3),
        ([hand.log_vars], 2e-2),
        ([p for p in (hand.logits, hand.zero_logit) if p.requires_grad], 5e-2),
    )
    optimizer = torch.optim.Adam([{"params": p, "lr": lr} for p, lr in groups])
    for step in range(9):
        tau = 0.7 * min(1.0, (step / 9) / 0.5)
        for group, (_, lr) in zip(optimizer.param_groups, groups, strict=True):
            group["lr"] = lr * (0.5 * (1 + math.cos(math.pi * step / 9)) if schedule == "cosine" else 1)
        loss = cross_entropy(model, train[step % 3]) + tau / 24 * hand.neg_log_prior()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    ours = [*task.model.parameters(), prior.means[0], prior.log_vars[0], prior.mixing_logits[0], prior.zero_logit[0]]
    theirs = [*model.parameters(), hand.means, hand.log_vars, hand.logits, hand.zero_logit]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("size", "n_examples"), [(1, 24), (6, 48), (24, 24)])
def test_tau_means_the_same_for_every_batch_size(size: int, n_examples: int) -> None:
    """If the task's loss is 0, the gradient is tau / N times that of -log p, whatever the batch."""

    def nothing(model: nn.Module, batch: Batch) -> Tensor:
        return 0 * cross_entropy(model, batch)

    task = make_task(mlp(), batches(24, size, torch.float64), n_examples, loss=nothing)
    prior = MixturePrior(task.model, PRIOR)
    (first, *_) = spied(lambda: retrain_(task, prior, dataclasses.replace(PLAIN, tau=0.3, epochs=1)))

    hand = ByHand(mlp(), PRIOR)
    truth = torch.autograd.grad(hand.neg_log_prior(), [*hand.weights, hand.means, hand.log_vars, hand.logits])
    ours = [g for group in first.grads for g in group]
    for grad, expected in zip(ours, truth, strict=True):
        assert grad is not None
        torch.testing.assert_close(grad, 0.3 / n_examples * expected.view_as(grad), rtol=1e-9, atol=1e-12)


def test_plain_training_without_a_prior() -> None:
    train = batches(24, 8, torch.float64)
    task = make_task(mlp(), train)
    history = retrain_(task, None, PLAIN)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for batch in train * 2:
        optimizer.zero_grad()
        cross_entropy(model, batch).backward()
        optimizer.step()
    for a, b in zip(task.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for record in history:
        assert (record.prior_loss, record.complexity_bits, record.components_alive) == (0, 0, 0)
        assert record.density == {}


@pytest.mark.parametrize(("optimizer", "weight_decay"), [("adam", 0.1), ("sgd", 0.0), ("sgd", 0.1)])
def test_optimizers_and_weight_decay_are_torchs(optimizer: Any, weight_decay: float) -> None:
    """The decay is on the network's parameters, norms too, never on the mixture's. Adam always trains the mixture."""
    train = batches(24, 8, torch.float64)
    task = make_task(mlp(), train)
    prior = MixturePrior(task.model, PRIOR)
    retrain_(task, prior, dataclasses.replace(PLAIN, optimizer=optimizer, weight_decay=weight_decay))
    model = mlp()
    hand = MixturePrior(model, PRIOR)
    network = (
        torch.optim.Adam(model.parameters(), lr=1e-2)
        if optimizer == "adam"
        else torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
    )
    mixture = torch.optim.Adam(hand.param_groups())
    for batch in train * 2:
        network.zero_grad()
        mixture.zero_grad()
        half_squares = 0.5 * sum((p**2).sum() for p in model.parameters())
        (cross_entropy(model, batch) + hand.loss(0.1, 24) + weight_decay * half_squares).backward()
        network.step()
        mixture.step()
    ours, theirs = ([*m.parameters(), *p.parameters()] for m, p in ((task.model, prior), (model, hand)))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-8, atol=1e-10)


def test_sgd_by_hand() -> None:
    """Nesterov's momentum of 0.9: v <- 0.9 v + g; w <- w - lr (g + 0.9 v)."""
    train = batches(24, 8, torch.float64)
    task = make_task(mlp(), train)
    retrain_(task, None, dataclasses.replace(PLAIN, optimizer="sgd", weight_decay=0.1))
    model = mlp()
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    for batch in train * 2:
        gradients = torch.autograd.grad(cross_entropy(model, batch), list(model.parameters()))
        with torch.no_grad():
            for p, v, gradient in zip(model.parameters(), velocity, gradients, strict=True):
                g = gradient + 0.1 * p
                v.mul_(0.9).add_(g)
                p.sub_(1e-2 * (g + 0.9 * v))
    for a, b in zip(task.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_loss_and_description_fall() -> None:
    task = make_task(net(), batches(64, 16), 64)
    prior = MixturePrior(task.model, PRIOR)
    history = retrain_(task, prior, dataclasses.replace(PLAIN, epochs=20))
    assert history[-1].task_loss < 0.5 * history[1].task_loss
    assert history[-1].prior_loss < history[0].prior_loss
    assert history[-1].validation_error < 5


# Randomness


def shuffled_task() -> Task:
    """Shuffled data and dropout: two things that draw random numbers."""
    return make_task(net(), DataLoader(TensorDataset(*blobs()), batch_size=8, shuffle=True))


def trained(seed: int) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    task = shuffled_task()
    prior = MixturePrior(task.model, PRIOR)
    history = retrain_(task, prior, dataclasses.replace(PLAIN, seed=seed))
    return plain(history), states(task, prior)


def test_the_seed_decides_everything() -> None:
    """Bit by bit, whatever the global random state was before."""
    torch.manual_seed(100)
    history, state = trained(seed=3)
    torch.manual_seed(200)
    again, state_again = trained(seed=3)
    assert again == history
    assert_same_state(state, state_again)
    other, state_other = trained(seed=4)
    assert other[0] == history[0]
    assert other[1]["task_loss"] != history[1]["task_loss"]
    assert not torch.equal(state_other["model.0.weight"], state["model.0.weight"])


def test_the_global_random_state_is_restored() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trained(seed=3)
    assert torch.equal(torch.get_rng_state(), before)

    def fails(model: nn.Module, batch: Batch) -> Tensor:
        torch.rand(3)
        raise RuntimeError("out of memory")

    with pytest.raises(TaskError, match=r"Task\.loss failed in epoch 1, batch 1: RuntimeError: out of memory"):
        retrain_(make_task(net(), loss=fails), None, PLAIN)
    assert torch.equal(torch.get_rng_state(), before)


# Schedules


SET, ADD_GRADIENTS = step_module.Step.set, MixturePrior.add_scaled_gradients_


def taus_and_lrs(monkeypatch: pytest.MonkeyPatch, config: RetrainConfig, train: Any) -> tuple[list[float], list[Step]]:
    taus: list[float] = []

    def note_tau(self: step_module.Step, tau: float, decay: float) -> None:
        taus.append(tau)
        SET(self, tau, decay)

    def add_gradients(self: MixturePrior, scale: Tensor) -> Tensor:
        assert float(scale) == pytest.approx(taus[-1] / 24, rel=1e-7)
        return ADD_GRADIENTS(self, scale)

    monkeypatch.setattr(step_module.Step, "set", note_tau)
    monkeypatch.setattr(MixturePrior, "add_scaled_gradients_", add_gradients)
    task = make_task(net(), train)
    prior_config = dataclasses.replace(PRIOR, lr_means=1e-3, lr_log_vars=2e-3, lr_mixing=3e-3)
    history: list[EpochRecord] = []
    prior = MixturePrior(task.model, prior_config)
    steps = spied(lambda: history.extend(retrain_(task, prior, config)))
    n = len(taus) // config.looks
    assert [r.tau for r in history] == [0.0, *taus[n - 1 :: n]]  # of an epoch's last step
    return taus, steps


def test_tau_warms_up_linearly_and_rates_fall_by_a_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 4 epochs of 3 steps. Tau rises over the first half, which is 6 steps."""
    config = dataclasses.replace(SOFT, epochs=4, tau=0.12, tau_warmup=0.5, lr_weights=1e-2, schedule="cosine")
    taus, steps = taus_and_lrs(monkeypatch, config, batches(24, 8))
    assert taus == pytest.approx([0, 0.02, 0.04, 0.06, 0.08, 0.1] + [0.12] * 6, abs=1e-12)
    for k, step in enumerate(steps):
        share = (1 + math.cos(math.pi * k / 12)) / 2
        assert step.lrs == pytest.approx([1e-2 * share, 1e-3 * share, 2e-3 * share, 3e-3 * share], rel=1e-12)
    assert steps[0].lrs[0] == 1e-2
    assert steps[6].lrs[0] == pytest.approx(0.5e-2, rel=1e-12)
    assert 0 < steps[-1].lrs[0] < 0.02 * 1e-2


def test_constant_means_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    taus, steps = taus_and_lrs(monkeypatch, PLAIN, batches(24, 8))
    assert taus == [0.1] * 6
    assert [step.lrs for step in steps] == [[1e-2, 1e-3, 2e-3, 3e-3]] * 6


class NoLength:
    """Re-iterable, of unknown length."""

    def __init__(self, items: list[Batch]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.items)


class Stream(IterableDataset[Batch]):
    def __iter__(self) -> Iterator[Batch]:
        return iter(batches(24, 8))


def test_training_data_of_unknown_length() -> None:
    """The network has no dropout, because iterating a DataLoader draws a random number of its own."""
    with_length = make_task(mlp(torch.float32))
    retrain_(with_length, None, PLAIN)
    for train in (NoLength(batches(24, 8)), DataLoader(Stream(), batch_size=None)):
        task, recorder = make_task(mlp(torch.float32), train), Recorder()
        history = retrain_(task, None, PLAIN, [recorder])
        assert recorder.calls[0] == ("start", 2, None)
        assert len(history) == 3
        assert_same_state(states(task, None), states(with_length, None))


def test_schedules_are_exact_once_the_length_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first epoch, of unknown length, rates and tau move in one direction and stay within that epoch's share."""
    config = dataclasses.replace(SOFT, epochs=4, tau=0.12, tau_warmup=1.0, lr_weights=1e-2, schedule="cosine")
    taus, steps = taus_and_lrs(monkeypatch, config, batches(24, 8))
    unknown_taus, unknown_steps = taus_and_lrs(monkeypatch, config, NoLength(batches(24, 8)))
    assert unknown_taus[3:] == taus[3:]
    assert [s.lrs for s in unknown_steps[3:]] == [s.lrs for s in steps[3:]]
    assert unknown_taus[:4] == sorted(unknown_taus[:4])
    assert [s.lrs[0] for s in unknown_steps[:4]] == sorted((s.lrs[0] for s in unknown_steps[:4]), reverse=True)


# What a user may get wrong


@pytest.mark.parametrize(
    ("result", "came"),
    [
        (lambda loss: loss, r"shape \(8,\)"),
        (lambda loss: loss.mean(0, keepdim=True), r"shape \(1,\)"),
        (lambda loss: loss.mean().item(), "float"),
    ],
)
def test_a_loss_that_is_not_one_number_is_refused(result: Callable[[Tensor], Any], came: str) -> None:
    """Other programs would sum a vector in backward, and the task's weight would be its batch size times too large."""

    def loss(model: nn.Module, batch: Batch) -> Any:
        return result(F.cross_entropy(model(batch[0]), batch[1], reduction="none"))

    task = make_task(net(), loss=loss)
    before = states(task, None)
    with pytest.raises(ConfigError, match=rf"Task\.loss.*mean.*0-d.*{came}"):
        retrain_(task, MixturePrior(task.model, PRIOR), PLAIN)
    assert torch.equal(states(task, None)["model.0.weight"], before["model.0.weight"])


def test_no_training_data_is_refused() -> None:
    nothing: tuple[Iterable[Batch], ...] = ([], NoLength([]))
    for train in nothing:
        with pytest.raises(ConfigError, match=r"Task\.train: expected at least one batch, got none\."):
            retrain_(make_task(net(), train), None, PLAIN)


class Once:
    """Looks like data, but gives its batches only once."""

    def __init__(self) -> None:
        self.items = iter(batches(24, 8))

    def __iter__(self) -> Iterator[Batch]:
        return self.items


def test_data_that_is_used_up_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Task\.train: .* got none in pass 2.*each time it is iterated"):
        retrain_(make_task(net(), Once()), None, PLAIN)


# Divergence


class Bomb:
    """Cross-entropy, which `go_off` changes from the given call on."""

    def __init__(self, at: int, go_off: Callable[[nn.Module, Tensor], Tensor], last: int | None = None) -> None:
        self.at, self.go_off, self.last, self.calls = at, go_off, last or at, 0

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self.calls += 1
        loss = cross_entropy(model, batch)
        return self.go_off(model, loss) if self.at <= self.calls <= self.last else loss


def becomes(value: float) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda model, loss: loss * value


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_from_the_start_is_the_tasks_fault(value: float) -> None:
    task = make_task(net(), loss=Bomb(1, becomes(value)))
    with pytest.raises(ConfigError, match=f"Task.loss returned {value} on the first batch"):
        retrain_(task, None, PLAIN)


@pytest.mark.parametrize(
    ("value", "at", "epoch", "with_prior"),
    [(math.nan, 2, 1, True), (math.inf, 5, 2, False), (math.nan, 6, 2, True), (math.inf, 8, 3, True)],
)
def test_a_loss_that_is_not_finite_ends_training(value: float, at: int, epoch: int, with_prior: bool) -> None:
    """An epoch has 3 steps. Model (with buffers) and prior return to its start, and the error carries that state."""
    task = make_task(net(), loss=Bomb(at, becomes(value)))
    prior = MixturePrior(task.model, PRIOR) if with_prior else None
    recorder = Recorder(task, prior)
    with pytest.raises(DivergedError, match=rf"epoch {epoch}: the loss became (nan|inf)") as caught:
        retrain_(task, prior, dataclasses.replace(PLAIN, epochs=4), [recorder])
    good = recorder.after[epoch - 1]
    assert len(recorder.after) == epoch
    assert_same_state(states(task, prior), good)
    assert_same_state({f"model.{k}": v for k, v in caught.value.state.items()}, states(task, None))
    assert all(bool(t.isfinite().all()) for t in good.values())
    assert recorder.calls[-1] == ("end",)


def test_divergence_is_noticed_within_the_epoch() -> None:
    train = batches(24, 1) * 10
    task = make_task(mlp(torch.float32), train, 240, loss=Bomb(10, becomes(math.nan)))
    recorder = Recorder()
    with pytest.raises(DivergedError):
        retrain_(task, None, PLAIN, [recorder])
    assert sum(call[0] == "step" for call in recorder.calls) < CHECK_EVERY < len(train)


def test_the_state_in_the_error_is_a_copy() -> None:
    task = make_task(net(), loss=Bomb(5, becomes(math.nan)))
    with pytest.raises(DivergedError) as caught:
        retrain_(task, None, PLAIN)
    before = {k: v.clone() for k, v in caught.value.state.items()}
    with torch.no_grad():
        for p in task.model.parameters():
            p.add_(1)
    assert_same_state(caught.value.state, before)


def poisons(layer: int) -> Callable[[nn.Module, Tensor], Tensor]:
    """The loss is finite, but one layer's gradient is not: sqrt has slope inf at 0, and 0 * inf is NaN."""

    def go_off(model: nn.Module, loss: Tensor) -> Tensor:
        weight: Tensor = model[layer].weight  # type: ignore[index]
        return loss + torch.sqrt((0 * weight).sum())

    return go_off


@pytest.mark.parametrize(
    ("layer", "with_prior", "epochs"),
    [(0, True, 3), (1, True, 2), (0, False, 2)],
    ids=["shared", "kept", "no prior"],
)
def test_weights_that_break_in_the_last_step_of_an_epoch(layer: int, with_prior: bool, epochs: int) -> None:
    """No loss of that epoch shows it. Layer 1 is the batch-norm, whose weights the prior does not see."""
    task = make_task(net(), loss=Bomb(6, poisons(layer)))
    prior = MixturePrior(task.model, PRIOR) if with_prior else None
    recorder = Recorder(task, prior)
    with pytest.raises(DivergedError, match="epoch 2") as caught:
        retrain_(task, prior, dataclasses.replace(PLAIN, epochs=epochs), [recorder])
    assert len(recorder.after) == 2
    assert_same_state(states(task, prior), recorder.after[1])
    assert all(bool(t.isfinite().all()) for t in caught.value.state.values())


def test_a_prior_that_breaks_ends_training() -> None:
    """The learning rate of the log-variances sends them to where exp overflows."""
    task = make_task(net())
    prior = MixturePrior(
        task.model, dataclasses.replace(PRIOR, lr_log_vars=1e4, free_precision_prior=None, zero_precision_prior=None)
    )
    recorder = Recorder(task, prior)
    with pytest.raises(DivergedError):
        retrain_(task, prior, PLAIN, [recorder])
    assert_same_state(states(task, prior), recorder.after[-1])


# History


def test_history_against_brute_force() -> None:
    losses: list[float] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        value = cross_entropy(model, batch)
        losses.append(float(value.detach()))
        return value

    errors = iter([50.0, 40.0, 30.0, 20.0])
    task = make_task(net(), loss=loss, evaluate=lambda model: next(errors))
    config = dataclasses.replace(PRIOR, components=5, zero_mixing=0.5, rules=(Rule("4.bias", share=False),))
    prior = MixturePrior(task.model, config)
    recorder = Recorder(task, prior)
    history = retrain_(task, prior, dataclasses.replace(PLAIN, epochs=3), [recorder])

    assert [r.epoch for r in history] == [0, 1, 2, 3]
    assert [r.validation_error for r in history] == [50, 40, 30, 20]
    assert [r.tau for r in history] == [0.0, 0.1, 0.1, 0.1]
    assert math.isnan(history[0].task_loss)
    means = [sum(losses[k : k + 3]) / 3 for k in (0, 3, 6)]
    assert [r.task_loss for r in history[1:]] == pytest.approx(means, rel=1e-6)
    assert all(r.seconds >= 0 for r in history)

    names = ["0.weight", "0.bias", "4.weight"]
    densities = []
    for record, state, mixture in zip(history, recorder.after, recorder.mixtures, strict=True):
        normals = distributions.Normal(mixture.mean.double()[:, None], mixture.std.double()[:, None])
        mixing = mixture.mixing.double()
        chosen = {
            name: (mixing.log()[:, None] + log_prob(normals, state[f"model.{name}"].double().reshape(-1))).argmax(0)
            for name in names
        }
        together = torch.cat(list(chosen.values()))
        assert record.complexity_bits == pytest.approx(float(-mixing[together].log2().sum()), rel=1e-5)
        assert record.components_alive == len(set(together.tolist()))
        assert list(record.density) == names
        expected = {name: float((index != 0).double().mean()) for name, index in chosen.items()}
        assert record.density == pytest.approx(expected, abs=1e-6)
        w = torch.cat([state[f"model.{name}"].double().reshape(-1) for name in names])
        nll = -torch.logsumexp(mixing.log()[:, None] + log_prob(normals, w), 0).sum()
        precision = torch.exp(-mixture.log_var.double())
        for gamma, part in ((config.zero_precision_prior, precision[:1]), (config.free_precision_prior, precision[1:])):
            assert gamma is not None
            mode = (gamma.alpha - 1) / gamma.beta
            nll += (gamma.beta * (part - mode) - (gamma.alpha - 1) * (part / mode).log()).sum()
        assert record.prior_loss == pytest.approx(float(nll), rel=1e-5)
        densities.append(expected)
    assert densities[0] != densities[-1]  # something happened

    quantized = quantize(prior.view, dict.fromkeys(names, recorder.mixtures[-1]))
    nonzero = {t.name: float((t.dense() != 0).double().mean()) for t in quantized.shared}
    assert history[-1].density == pytest.approx(nonzero, abs=1e-6)


def test_record_0_is_the_start() -> None:
    task = make_task(net())
    prior = MixturePrior(task.model, PRIOR)
    start, error = states(task, prior), error_percent(copy.deepcopy(task.model).eval())
    loss = float(prior.neg_log_prior().detach())
    recorder = Recorder(task, prior)
    history = retrain_(task, prior, PLAIN, [recorder])
    assert_same_state(recorder.after[0], start)
    assert history[0].validation_error == error
    assert history[0].prior_loss == pytest.approx(loss, rel=1e-6)


# Hooks and modes


def test_hooks_are_called_in_order() -> None:
    first, second = Recorder(), Recorder()
    retrain_(make_task(net()), None, PLAIN, [first, second, Hook()])
    steps = {epoch: [("step", epoch, s) for s in (1, 2, 3)] for epoch in (1, 2)}
    expected = [("start", 2, 3), ("epoch", 0), *steps[1], ("epoch", 1), *steps[2], ("epoch", 2), ("end",)]
    assert first.calls == expected
    assert second.calls == expected


class Fails(Hook):
    def __init__(self, where: str) -> None:
        self.where = where

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self._fail("start")

    def on_step(self, epoch: int, step: int) -> None:
        self._fail("step")

    def on_epoch(self, record: EpochRecord) -> None:
        self._fail("epoch")

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["start", "step", "epoch"])
def test_hooks_hear_of_the_end_after_an_error_of_a_hook(where: str) -> None:
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        retrain_(make_task(net()), None, PLAIN, [recorder, Fails(where)])
    assert recorder.calls[-1] == ("end",)
    assert recorder.calls.count(("end",)) == 1


@pytest.mark.parametrize(("train", "loss"), [([], cross_entropy), (None, Bomb(1, becomes(math.nan)))])
def test_hooks_hear_of_the_end_after_an_error_of_the_task(train: list[Batch] | None, loss: Any) -> None:
    recorder = Recorder()
    with pytest.raises((ConfigError, DivergedError)):
        retrain_(make_task(net(), train, loss=loss), None, PLAIN, [recorder])
    assert recorder.calls[-1] == ("end",)


def test_modes() -> None:
    """Dropout and batch-norm are on in training and off in evaluation. Evaluation tracks no gradients."""
    seen: list[tuple[str, bool, bool]] = []

    def note(what: str, model: nn.Module) -> None:
        modes = {m.training for m in model.modules()}
        assert len(modes) == 1
        seen.append((what, modes.pop(), torch.is_grad_enabled()))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        note("loss", model)
        return cross_entropy(model, batch)

    def evaluate(model: nn.Module) -> float:
        note("evaluate", model)
        return 1.0

    for start in (net(), net().eval()):
        seen.clear()
        retrain_(make_task(start, loss=loss, evaluate=evaluate), None, PLAIN)
        training, evaluation = ("loss", True, True), ("evaluate", False, False)
        assert seen == [evaluation, *[training] * 3, evaluation, *[training] * 3, evaluation]


def test_evaluation_does_not_move_the_running_statistics() -> None:
    """The batch-norm counts only training batches."""
    task = make_task(net())
    retrain_(task, None, PLAIN)
    assert int(task.model.state_dict()["1.num_batches_tracked"]) == 6
