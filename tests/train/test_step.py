"""One training step: gradients added in place, what it refuses, and its capture into a CUDA graph."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_unflatten

import softshare as ss
from kernels import distance, each_backend, needs_gpu
from softshare.errors import ConfigError
from softshare.prior import prior as prior_module
from softshare.task import Task
from softshare.train.captured import CapturedStep, _flatten
from softshare.train.replayed import WARM_UP
from softshare.train.retrain import retrain_
from softshare.train.step import Step

Batch = tuple[Tensor, Tensor]
PRIOR = ss.PriorConfig(
    mixtures="global",
    components=4,
    width=None,
    init_std=0.1,
    zero_precision_prior=ss.Gamma(5000, 2),
    free_precision_prior=ss.Gamma(250, 0.1),
    zero_mixing=0.8,
    mixing_prior=ss.Beta(40, 2),
    lr_log_vars=1e-2,
    method="exact",
)
STEP = ss.RetrainConfig(scaling="paper", lr_weights=1e-2)
SOFT = ss.RetrainConfig(scaling="paper", hard_from=1.0, zeroing=0.0)


class Net(nn.Module):
    """A convolution in channels-last memory, a batch norm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))
        return out


def images(n: int = 6, seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 5, 5, generator=g), torch.randint(3, (n,), generator=g)


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def gradients(model: nn.Module, prior: ss.MixturePrior) -> dict[str, Tensor]:
    named = [*model.named_parameters(), *prior.named_parameters()]
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def assert_same(ours: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert list(ours) == list(expected)
    errors = distance(list(ours.values()), [t.double() for t in expected.values()])
    assert {name: e for name, e in zip(ours, errors, strict=True) if e > tolerance} == {}


# Added in place


def on_gpu_or_cpu(backend: str) -> str:
    if backend == "triton" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return "cuda" if backend == "triton" else "cpu"


@each_backend
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_adding_in_place_leaves_what_backward_does(backend: Any, existing: bool, frozen: bool) -> None:
    """With a frozen shared weight too, which the rule puts under the prior and which has no gradient."""
    device = on_gpu_or_cpu(backend)
    rules = (ss.Rule("*", share=True),) if frozen else ()
    results, losses = [], []
    for in_place in (False, True):
        model = Net().to(device)
        model.head.weight.requires_grad_(not frozen)
        prior = ss.MixturePrior(model, dataclasses.replace(PRIOR, backend=backend, rules=rules)).to(device)
        if existing:
            for p in (*model.parameters(), *prior.parameters()):
                p.grad = torch.full_like(p, 0.25) if p.requires_grad else None
        if in_place:
            losses.append(prior.add_gradients_(0.3, 10))
        else:
            losses.append(prior.loss(0.3, 10))
            losses[0].backward()
        assert not frozen or model.head.weight.grad is None
        results.append(gradients(model, prior))
    assert_same(results[1], results[0], 1e-6)
    torch.testing.assert_close(losses[1], losses[0].detach(), rtol=1e-6, atol=0)
    assert not losses[1].requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_adding_in_place_to_gradients_of_other_dtypes(dtype: torch.dtype) -> None:
    results = []
    for in_place in (False, True):
        model = nn.Linear(5, 4).to(dtype)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape))
        prior = ss.MixturePrior(model, PRIOR)
        prior.add_gradients_(0.3, 10) if in_place else prior.loss(0.3, 10).backward()
        results.append(gradients(model, prior))
    assert_same(results[1], results[0], 8 * torch.finfo(dtype).eps)


def test_a_frozen_prior_still_pulls_the_weights() -> None:
    results = []
    for in_place in (False, True):
        model = Net()
        prior = ss.MixturePrior(model, PRIOR)
        prior.requires_grad_(False)
        prior.add_gradients_(0.3, 10) if in_place else prior.loss(0.3, 10).backward()
        results.append(gradients(model, prior))
    assert_same(results[1], results[0], 1e-6)
    assert not {"means", "log_vars"} & set(results[1])


def test_the_arguments_are_checked_as_those_of_the_loss() -> None:
    prior = ss.MixturePrior(Net(), PRIOR)
    with pytest.raises(ConfigError, match="tau: expected"):
        prior.add_gradients_(-1.0, 10)
    with pytest.raises(ConfigError, match="n_examples: expected"):
        prior.add_gradients_(0.1, 0)


@contextmanager
def compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # raised within torch.compile of torch 2.11
def test_under_torch_compile_and_autocast_gradients_are_the_same() -> None:
    """The prior reads the parameters themselves, in full precision, whatever runs the network."""
    results = []
    with compiled():
        for in_place in (False, True):
            model = Net()
            run = torch.compile(model, backend="eager")
            prior = ss.MixturePrior(run, PRIOR)  # type: ignore[arg-type]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                task_loss = cross_entropy(run, images())  # type: ignore[arg-type]
                if not in_place:
                    (task_loss + prior.loss(0.3, 10)).backward()
                else:
                    task_loss.backward()
                    prior.add_gradients_(0.3, 10)
            results.append(gradients(model, prior))
    assert_same(results[1], results[0], 1e-6)
    plain = ss.MixturePrior(Net(), PRIOR)
    plain.add_gradients_(0.3, 10)
    own = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    assert_same({name: results[1][name] for name in own}, own, 1e-6)


@each_backend
def test_autocast_does_not_touch_the_prior(backend: Any) -> None:
    device = on_gpu_or_cpu(backend)
    results = []
    for enabled in (False, True):
        model = Net().to(device)
        prior = ss.MixturePrior(model, dataclasses.replace(PRIOR, backend=backend)).to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
            prior.add_gradients_(0.3, 10)
            prior.loss(0.3, 10).backward()
        results.append(gradients(model, prior))
    assert_same(results[1], results[0], 0.0)


# The step


def make_task(model: nn.Module, loss: Any = cross_entropy, train: Any = None) -> Task:
    return Task(model, [images()] * 3 if train is None else train, loss, lambda m: 1.0, 18)


def test_a_step_is_adam_on_the_task_loss_plus_the_priors() -> None:
    task = make_task(Net())
    prior = ss.MixturePrior(task.model, PRIOR)
    step = Step(task, prior, STEP)
    model = Net()
    other = ss.MixturePrior(model, PRIOR)
    groups = [{"params": list(model.parameters()), "lr": 1e-2}, *other.param_groups()]
    optimizer = torch.optim.Adam(groups)
    for k, (tau, decay) in enumerate([(0.0, 1.0), (0.3, 0.5), (0.5, 0.25)]):
        step.set(tau, decay)
        task_loss, loss = step(images(seed=k))
        for group, base in zip(optimizer.param_groups, (1e-2, 3e-4, 1e-2, 5e-4), strict=True):
            group["lr"] = base * decay
        optimizer.zero_grad()
        expected_task = cross_entropy(model, images(seed=k))
        expected = expected_task + other.loss(tau, 18)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(task_loss, expected_task.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
        assert not task_loss.requires_grad
        assert not loss.requires_grad
    ours, theirs = ({**m.state_dict(), **p.state_dict()} for m, p in ((task.model, prior), (model, other)))
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda loss: loss.expand(3), r"0-d tensor, got shape \(3,\)"),
        (lambda loss: loss[None], r"0-d tensor, got shape \(1,\)"),
        (lambda loss: 1.0, "0-d tensor, got float"),
        (lambda loss: loss * math.nan, "returned nan on the first batch"),
        (lambda loss: loss * math.inf, "returned inf on the first batch"),
    ],
)
def test_a_step_refuses_a_bad_loss_and_changes_no_parameter(result: Any, message: str) -> None:
    task = make_task(Net(), lambda model, batch: result(cross_entropy(model, batch)))
    prior = ss.MixturePrior(task.model, PRIOR)
    parameters = [*task.model.parameters(), *prior.parameters()]
    before = copy.deepcopy(parameters)
    with pytest.raises(ConfigError, match=message):
        Step(task, prior, STEP)(images())
    assert all(torch.equal(a, b) for a, b in zip(parameters, before, strict=True))
    assert all(p.grad is None for p in parameters)


def test_only_the_first_loss_is_looked_at() -> None:
    values = iter([1.0, math.nan])
    step = Step(make_task(Net(), lambda model, batch: next(values) * cross_entropy(model, batch)), None, STEP)
    step(images())
    assert math.isnan(float(step(images())[0]))


# Capture


def test_capture_needs_a_gpu_and_all_weights() -> None:
    task = make_task(Net())
    prior = ss.MixturePrior(task.model, PRIOR)
    for run in (
        lambda: CapturedStep(task, prior, STEP),
        lambda: retrain_(task, prior, ss.RetrainConfig(epochs=1, capture=True)),
        lambda: retrain_(task, None, ss.RetrainConfig(epochs=1, capture=True)),
    ):
        with pytest.raises(ConfigError, match="capture: the network must be on a CUDA GPU, but it is on cpu"):
            run()


def test_capture_refuses_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its check comes before anything is done on the GPU, so that a network said to be on one will do."""
    monkeypatch.setattr("softshare.train.captured._device", lambda task: torch.device("cuda"))
    task = make_task(Net())
    prior = ss.MixturePrior(task.model, dataclasses.replace(PRIOR, sample_one_in=2))
    with pytest.raises(ConfigError, match=r"capture: .*sample_one_in at 1"):
        CapturedStep(task, prior, STEP)


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Example:
    x: Any
    y: Any


class Further(Pair):
    """A named tuple of a user's own kind."""


class Named(dict[str, Any]):
    """A user's own dict."""


class Row(list[Any]):
    """And list."""


A, B, C = (torch.tensor(float(k)) for k in range(3))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (A, A + 1),
        ((A, B), (A + 1, B + 1)),
        ([A, (B, C)], [A + 1, (B + 1, C + 1)]),
        (Pair(A, [B]), Pair(A + 1, [B + 1])),
        (Further(A, B), Further(A + 1, B + 1)),
        (OrderedDict(x=A, y=B), OrderedDict(x=A + 1, y=B + 1)),
        (Named(x=A, y=Row([B])), Named(x=A + 1, y=Row([B + 1]))),
        ({"x": A, "y": {"z": B}}, {"x": A + 1, "y": {"z": B + 1}}),
        (Example(A, (B,)), Example(A + 1, (B + 1,))),
        ((), ()),
    ],
)
def test_every_tensor_of_a_batch_is_replaced_in_a_batch_of_the_same_form(batch: Any, expected: Any) -> None:
    before = copy.deepcopy(batch)
    for _ in range(2):  # the first time, torch may not know its containers
        tensors, form = _flatten(batch)
        replaced = tree_unflatten([t + 1 for t in tensors], form)
        assert replaced == expected
        assert type(replaced) is type(batch)
        assert batch == before
        assert [float(t) for t in tensors] == [0.0, 1.0, 2.0][: len(tensors)]


@pytest.mark.parametrize("odd", [3, "text", None, {1, 2}, Example])
def test_a_batch_of_something_else_cannot_be_captured(odd: Any) -> None:
    for batch in (odd, (A, odd), {"x": [odd]}, Pair(A, odd), Example(odd, A)):
        with pytest.raises(ConfigError, match=f"capture: .*holds a {type(odd).__name__}"):
            _flatten(batch)


# On a GPU


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 3)).cuda()


def points(n: int, seed: int) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 20, generator=g).cuda(), torch.randint(3, (n,), generator=g).cuda()


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def trained(
    capture: bool, method: Any, mixtures: Any = "global", **changes: Any
) -> tuple[dict[str, Tensor], list[float]]:
    """On batches of two shapes."""
    batches = [points(16 if k % 3 else 8, seed=k) for k in range(12)]
    task = Task(mlp(), batches, mean_loss, lambda m: 1.0, 160)
    prior = ss.MixturePrior(task.model, dataclasses.replace(PRIOR, method=method, mixtures=mixtures))
    config = dataclasses.replace(SOFT, epochs=4, tau=0.1, lr_weights=1e-3, capture=capture, **changes)
    history = retrain_(task, prior, config)
    return {**task.model.state_dict(), **prior.state_dict()}, [r.task_loss for r in history[1:]]


@needs_gpu
@pytest.mark.parametrize("method", ["exact", "table"])
def test_captured_training_gives_the_same_weights(method: str) -> None:
    (plain, losses), (captured, captured_losses) = (trained(capture, method) for capture in (False, True))
    assert captured_losses == pytest.approx(losses, rel=1e-5)
    for name, value in captured.items():
        torch.testing.assert_close(value, plain[name], rtol=1e-4, atol=1e-5)


@needs_gpu
@pytest.mark.parametrize("mixtures", ["global", "layer"])
@pytest.mark.parametrize("method", ["exact", "table"])
def test_captured_training_in_the_hard_phase_gives_the_same_weights(method: str, mixtures: str) -> None:
    """Soft in the first of four epochs; then another step is captured, and weights are zeroed between epochs."""
    (plain, losses), (captured, captured_losses) = (
        trained(capture, method, mixtures, hard_from=0.25, zeroing=0.3) for capture in (False, True)
    )
    assert captured_losses == pytest.approx(losses, rel=1e-4)
    for name, value in captured.items():
        torch.testing.assert_close(value, plain[name], rtol=1e-3, atol=1e-4)


@needs_gpu
@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("method", ["exact", "table"])
def test_a_step_never_waits_for_the_gpu(method: Any, hard: bool, capture: bool) -> None:
    task = Task(mlp(), [points(8, 0)], mean_loss, lambda m: 1.0, 8)
    prior = ss.MixturePrior(task.model, dataclasses.replace(PRIOR, method=method))
    config = ss.RetrainConfig(scaling="paper", lr_weights=1e-3)
    step = (CapturedStep if capture else Step)(task, prior, config)
    step.hard = hard
    batch = points(8, 1)
    for _ in range(WARM_UP + 2):
        step.set(0.1, 1.0)
        step(batch)
    with warnings.catch_warnings(action="ignore"):  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step.set(0.2, 0.5)
            step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize(
    "form", [lambda x, y: {"x": x, "y": y}, Pair, Example], ids=["dict", "named tuple", "dataclass"]
)
def test_batches_of_every_form_are_captured(form: Any) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = (batch[name] if isinstance(batch, dict) else getattr(batch, name) for name in "xy")
        return F.cross_entropy(model(x), y)

    losses = []
    for kind in (Step, CapturedStep):
        step = kind(Task(mlp(), [], loss, lambda m: 1.0, 8), None, ss.RetrainConfig(lr_weights=1e-3))
        losses.append([float(step(form(*points(8, seed)))[0]) for seed in range(WARM_UP + 3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@needs_gpu
def test_a_loss_that_waits_cannot_be_captured() -> None:
    def waits(model: nn.Module, batch: Batch) -> Tensor:
        loss = mean_loss(model, batch)
        return loss if float(loss.detach()) < 100 else 2 * loss

    task = Task(mlp(), [points(8, 0)] * (WARM_UP + 1), waits, lambda m: 1.0, 8)
    with pytest.raises(ConfigError, match=r"capture: Task\.loss cannot be captured"):
        retrain_(task, None, ss.RetrainConfig(epochs=1, capture=True))


@needs_gpu
def test_a_new_reach_needs_a_new_capture() -> None:
    task = Task(mlp(), [points(8, 0)], mean_loss, lambda m: 1.0, 8)
    prior = ss.MixturePrior(task.model, dataclasses.replace(PRIOR, method="table"))
    step = CapturedStep(task, prior, ss.RetrainConfig(scaling="paper", lr_weights=1e-3))
    for _ in range(WARM_UP + 2):
        step(points(8, 0))
    assert len(step._graphs) == 1
    with torch.no_grad():
        prior.view.tensors[0][0, 0] = 10.0
    prior.choose_method()
    step(points(8, 0))
    assert prior.reaches == [64.0]
    assert len(step._graphs) == 0


def test_steps_of_captured_training_do_not_look_but_epochs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured step may not make the GPU wait, so its prior is looked at between epochs."""
    monkeypatch.setattr(prior_module, "LOOK_EVERY", 1)
    monkeypatch.setattr(prior_module, "_capturing", lambda: True)
    task = make_task(Net())
    prior = ss.MixturePrior(task.model, PRIOR)
    looks: list[int] = []
    monkeypatch.setattr(ss.MixturePrior, "choose_method", lambda self: looks.append(self.steps))
    retrain_(task, prior, dataclasses.replace(SOFT, epochs=2))
    assert looks == [0, 3]


def test_batches_of_one_key_have_one_structure() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(2, 3)
    assert _flatten({"x": a, "y": b}).key == _flatten({"x": b, "y": a}).key
    different = [
        {"x": a, "y": b},
        {"y": a, "x": b},
        (a, b),
        [a, b],
        (a, b, a),
        (a, b[:1]),
        (a, b.double()),
        ((a, b),),
        Pair(a, b),
        Example(a, b),
    ]
    assert len({_flatten(batch).key for batch in different}) == len(different)
