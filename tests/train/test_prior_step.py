"""The prior's part of a step replayed from CUDA graphs: the same numbers as launched one by one.

Without a GPU, a recording of torch's operations stands in for a CUDA graph, in float64, which has no compiled kernels.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import softshare as ss
from kernels import HAS_GPU, needs_gpu
from softshare.errors import TaskError
from softshare.prior import prior as prior_module
from softshare.task import Task
from softshare.train import prior_step, replayed
from softshare.train.captured import CapturedStep
from softshare.train.prior_step import PriorStep, ReplayedPriorStep
from softshare.train.replayed import WARM_UP, Replayed
from softshare.train.step import Step

Batch = tuple[Tensor, Tensor]
NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")]
DEVICE, DTYPE = ("cuda", torch.float32) if HAS_GPU else ("cpu", torch.float64)
EACH = ss.PriorConfig(components=3, zero_mixing=0.6, width=None, init_std=0.2)
ONE = dataclasses.replace(EACH, mixtures="global")
LEARNED = dataclasses.replace(ONE, mixing_prior=ss.Beta(40, 2), free_precision_prior=ss.Gamma(250, 0.1))
STEP = ss.RetrainConfig(scaling="paper", lr_weights=1e-3, zeroing=0.3)


class Recording(TorchDispatchMode):
    """In place of a CUDA graph: the operations of torch and their tensors, to be repeated in the same memory.

    As in a graph, nothing of the Python code runs again, and its numbers stay what they were.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self._calls.append((function, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, out in self._calls:
            for own, new in zip(tree_leaves(out), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(own, Tensor) and own.data_ptr() != new.data_ptr():  # neither a view nor in place
                    own.copy_(new)


def record(function: Callable[[], Any], stream: object) -> tuple[Recording, Any]:
    """In place of `capture`. What the function has written is taken back, because a capture runs nothing."""
    written = _tensors_in(function)
    before = [t.clone() for t in written]
    with Recording() as recording:
        out = function()
    for t, old in zip(written, before, strict=True):
        t.copy_(old)
    return recording, out


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAS_GPU:
        monkeypatch.setattr(replayed, "run_aside", lambda function, stream: function())
        monkeypatch.setattr(replayed, "capture", record)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)


@torch.no_grad()
def _tensors_in(function: Any) -> list[Tensor]:
    """All that half a step reads and writes: weights, gradients, mixture, its Adam, curvature."""
    own: ReplayedPriorStep = function.__self__
    adam = [t for state in own._optimizer.state.values() for t in state.values()]
    curvature = [t for ts in own._curvature.state_dict().values() for t in ts] if own._curvature else []
    return [*(w.detach() for w in own._weights), *own._grads, *(p.detach() for p in own._prior.parameters())] + (
        adam + curvature
    )


class Net(nn.Module):
    """A convolution in channels-last memory, a batch norm, and a layer that only some batches use."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.norm = nn.BatchNorm2d(4)
            self.at_times = nn.Linear(4, 4)
            self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        out: Tensor = self.head(torch.tanh(self.at_times(x)) if len(x) > 8 else x)
        return out


def images(seed: int) -> Batch:
    g = torch.Generator().manual_seed(seed)
    n = 8 if seed % 3 == 2 else 12
    return torch.randn(n, 3, 5, 5, generator=g).to(DEVICE, DTYPE), torch.randint(3, (n,), generator=g).to(DEVICE)


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_step(
    replays: bool,
    monkeypatch: pytest.MonkeyPatch,
    config: ss.PriorConfig = EACH,
    train: ss.RetrainConfig = STEP,
    loss: Any = cross_entropy,
    model: nn.Module | None = None,
) -> Step:
    monkeypatch.setattr(ReplayedPriorStep, "fits", staticmethod(lambda prior: replays))
    model = (model or Net()).to(DEVICE, DTYPE)
    step = Step(Task(model, [], loss, lambda m: 1.0, 36), ss.MixturePrior(model, config), train)
    assert type(step._prior_step) is (ReplayedPriorStep if replays else PriorStep)
    return step


def state(step: Step) -> dict[str, Tensor]:
    assert step.prior is not None
    curvature = step.curvature.estimate(36) if step.curvature else []
    named = {**step.task.model.state_dict(), **step.prior.state_dict()}
    return copy.deepcopy(named | {f"curvature {k}": c for k, c in enumerate(curvature)})


def captured(step: Step) -> bool:
    assert isinstance(step._prior_step, ReplayedPriorStep)
    return step._prior_step._replayed_after._captured is not None


PHASES = [False] * (WARM_UP + 4) + [True] * (WARM_UP + 6) + [False] * 3 + [True] * 2  # whether each step is hard


def run(step: Step, phases: list[bool] = PHASES) -> list[float]:
    losses = []
    for k, hard in enumerate(phases):
        step.set(0.1 + 0.01 * k, 1 - 0.01 * k)
        step.hard = hard
        losses += [float(loss) for loss in step(images(k))]
    return losses


def _named(name: str) -> Callable[[str], str]:
    return lambda message: f"{name}: {message}"


def assert_same(ours: Step, theirs: Step) -> None:
    expected = state(theirs)
    for name, value in state(ours).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5, equal_nan=True, msg=_named(name))


@pytest.mark.parametrize("config", [EACH, ONE, LEARNED], ids=["layer", "global", "learned mixing"])
@pytest.mark.parametrize(
    "train", [STEP, dataclasses.replace(STEP, optimizer="sgd", zeroing=0.0)], ids=["adam", "sgd, no curvature"]
)
def test_replayed_training_is_the_plain_one(config: Any, train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a change to hard steps and back. In every third step, a layer has no gradient from the task."""
    plain, replayed = (make_step(replays, monkeypatch, config, train) for replays in (False, True))
    assert run(replayed) == pytest.approx(run(plain), rel=1e-4)
    assert_same(replayed, plain)
    run(replayed, [True] * (WARM_UP + 1))
    assert captured(replayed)


@pytest.mark.parametrize("method", ["exact", pytest.param("table", marks=NEEDS_GPU)])
def test_a_new_reach_is_seen(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method is chosen again every few steps, and a weight has left the table meanwhile."""
    monkeypatch.setattr(prior_module, "LOOK_EVERY", 5)
    steps = []
    for replays in (False, True):
        step = make_step(replays, monkeypatch, dataclasses.replace(ONE, method=method))
        run(step, [False] * (WARM_UP + 3))
        assert step.prior is not None
        with torch.no_grad():
            step.prior.view.tensors[0][0, 0, 0, 0] = 6.0
        run(step, [False] * 8)
        assert step.prior.reaches == [32.0 if method == "table" else None]
        steps.append(step)
    assert_same(steps[1], steps[0])


def test_a_frozen_weight_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule puts it under the prior. Unfrozen between steps, it has one."""
    steps: list[Step] = []
    for replays in (False, True):
        model = Net()
        model.head.weight.requires_grad_(False)
        step = make_step(
            replays, monkeypatch, dataclasses.replace(EACH, rules=(ss.Rule("*", share=True),)), model=model
        )
        run(step, [True] * (WARM_UP + 3))
        assert model.head.weight.grad is None
        model.head.weight.requires_grad_()
        run(step, [True] * (WARM_UP + 3))
        assert model.head.weight.grad is not None
        steps.append(step)
    assert_same(steps[1], steps[0])


def test_frozen_means_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step(True, monkeypatch)
    assert step.prior is not None
    step.prior.means.requires_grad_(False)
    before = state(step)
    run(step)
    after = state(step)
    assert torch.equal(after["means"], before["means"])
    assert not torch.equal(after["log_vars"], before["log_vars"])


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_after_an_error_of_the_loss_the_weights_are_restored(
    hard: bool, replays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = False

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        if fails:
            raise RuntimeError("out of memory")
        return cross_entropy(model, batch)

    step = make_step(replays, monkeypatch, loss=loss)
    run(step, [True] * (WARM_UP + 2) + [hard] * (WARM_UP + 2))
    fails, before = True, state(step)
    for _ in range(2):
        with pytest.raises(TaskError, match="out of memory"):
            step(images(0))
        assert all(torch.equal(value, before[name]) for name, value in state(step).items())
    fails = False
    step(images(0))
    assert not torch.equal(state(step)["head.weight"], before["head.weight"])


@pytest.mark.parametrize("hard", [False, True])
def test_weights_may_move(hard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some losses give a weight new memory, once or in every step."""
    steps = []
    for replays in (False, True):
        kept: list[Tensor] = []
        calls = iter(range(100))

        def moves(model: nn.Module, batch: Batch, kept: list[Tensor] = kept, calls: Any = calls) -> Tensor:
            weight, k = model.get_parameter("head.weight"), next(calls)
            if k == WARM_UP + 2 or k > 2 * WARM_UP + 6:
                kept.append(weight.data)  # else the memory might be given out again
                weight.data = weight.data.clone()
            return cross_entropy(model, batch)

        step = make_step(replays, monkeypatch, loss=moves)
        run(step, [hard] * (3 * WARM_UP + 10))
        assert kept
        steps.append(step)
    assert_same(steps[1], steps[0])


def test_gradients_stay_in_one_place_and_are_those_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, replayed = (make_step(replays, monkeypatch) for replays in (False, True))
    places = []
    for k in range(WARM_UP + 4):
        grads = []
        for step in (plain, replayed):
            step.set(0.3, 0.0)  # the weights stay
            step(images(k))
            assert step.prior is not None
            grads.append([w.grad for w in step.prior.view.tensors])
        places.append([g.data_ptr() for g in grads[1] if g is not None])
        for ours, expected in zip(grads[1], grads[0], strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    assert all(place == places[0] for place in places)


def test_what_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample, because each step draws another; a large network; a network on the CPU."""
    model = Net().to(DEVICE)
    sampled = ss.MixturePrior(model, dataclasses.replace(EACH, sample_one_in=2))
    prior = ss.MixturePrior(model, EACH)
    assert ReplayedPriorStep.fits(prior) == HAS_GPU
    assert not ReplayedPriorStep.fits(sampled)
    assert not ReplayedPriorStep.fits(ss.MixturePrior(Net(), EACH))
    monkeypatch.setattr(prior_step, "SMALL", prior.view.n_weights - 1)
    assert not ReplayedPriorStep.fits(prior)


@needs_gpu
def test_a_replay_does_what_the_function_does() -> None:
    x, calls = torch.zeros(3, device="cuda"), []

    def work() -> Tensor:
        calls.append(1)
        return 2 * x.add_(1)

    replayed = Replayed(work, torch.cuda.Stream())
    for k in range(1, WARM_UP + 4):
        assert replayed().tolist() == [2 * k] * 3
    assert len(calls) == WARM_UP + 1


@needs_gpu
def test_a_captured_step_has_no_graphs_of_its_own() -> None:
    model = Net().cuda()
    step = CapturedStep(Task(model, [], cross_entropy, lambda m: 1.0, 36), ss.MixturePrior(model, EACH), STEP)
    assert not isinstance(step._prior_step, ReplayedPriorStep)
