"""Tasks that fail or measure no number: the run stops, and says which function it was, and where."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.errors import ConfigError, DivergedError, NotANumberError, TaskError
from softshare.route import compress

CONFIG = ss.CompressConfig().override(components=3, epochs=3)
Batch = tuple[Tensor, Tensor]


def data() -> list[Batch]:
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 2
    points = torch.randn(64, 4, generator=g) + 2 * labels[:, None]
    return list(zip(points.split(16), labels.split(16), strict=True))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def error(model: nn.Module) -> float:
    return 100 * sum(int((model(x).argmax(1) != y).sum()) for x, y in data()) / 64


def make_task(**changes: Any) -> ss.Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    fields: dict[str, Any] = {"train": data(), "loss": loss, "evaluate": error, "noise": lambda model: 1.0}
    return ss.Task(model, **fields | changes)


class From:
    """A function that does something else from its n-th call in training mode, or of all, on."""

    def __init__(self, n: int, function: Callable[..., Any], then: Callable[[], Any], training: bool = False) -> None:
        self.left, self.function, self.then, self.training = n, function, then, training

    def __call__(self, model: nn.Module, *batch: Any) -> Any:
        self.left -= model.training or not self.training
        return self.then() if self.left <= 0 else self.function(model, *batch)


def fails() -> Any:
    raise KeyError("label")


def interrupts() -> Any:
    raise KeyboardInterrupt


class Train:
    """Batches that fail in a pass: the first passes are the count of examples and the look before training."""

    def __init__(self, fails_in: int, then: Callable[[], Any] = fails) -> None:
        self.fails_in, self.then = fails_in, then

    def __iter__(self) -> Iterator[Batch]:
        self.fails_in -= 1
        for k, batch in enumerate(data()):
            if self.fails_in < 0 and k == 2:
                self.then()
            yield batch

    def __len__(self) -> int:
        return 4


# Failures


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate": From(1, error, fails)}, r"Task\.evaluate failed in the look before training: KeyError: 'label'"),
        ({"evaluate": From(5, error, fails)}, r"Task\.evaluate failed in epoch 2: KeyError: 'label'"),
        ({"noise": lambda model: fails()}, r"Task\.noise failed in the look before training: KeyError: 'label'"),
        ({"loss": From(7, loss, fails, True)}, r"Task\.loss failed in epoch 2, batch 3: KeyError: 'label'"),
        ({"train": Train(0)}, r"Task\.train failed in batch 3: KeyError: 'label'"),
        ({"train": Train(3)}, r"Task\.train failed in epoch 2, batch 3: KeyError: 'label'"),
    ],
)
def test_a_failure_names_the_function_the_epoch_and_the_batch(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=f"^{message}$") as caught:
        ss.compress(make_task(**changes), CONFIG, target=None)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_loss_of_outputs_and_targets_says_what_to_call() -> None:
    """`Task.loss` gets the network and a batch. A loss of torch is refused at once, and another says what it gets."""
    for own in (nn.CrossEntropyLoss(), F.cross_entropy):
        with pytest.raises(ConfigError, match=r"For a loss of outputs and targets, use Task\.from_loaders"):
            make_task(loss=own)

    def twice(outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * F.cross_entropy(outputs, targets)

    with pytest.raises(TaskError, match=r"must be Tensor, not Sequential\. It is called with the network and a batch$"):
        ss.compress(make_task(loss=twice), CONFIG, target=None)


def test_a_failure_of_the_outputs() -> None:
    task = make_task(outputs=From(3, lambda model, batch: model(batch[0]), fails, training=True))
    with pytest.raises(TaskError, match=r"^Task\.outputs failed in epoch 1, batch 3: KeyError: 'label'$"):
        ss.compress(task, CONFIG.override(distill=0.5), target=None)


def test_a_failure_of_the_test() -> None:
    task = make_task(test=lambda model: fails())
    compressed = compress(task, CONFIG, target=None)
    with pytest.raises(TaskError, match=r"^Task\.test failed in the final measurement: KeyError: 'label'$"):
        ss.measure(task, compressed, CONFIG)


def test_a_failure_in_a_later_run_of_a_search() -> None:
    config = CONFIG.override(steps=80)
    with pytest.raises(TaskError, match=r"^Task\.loss failed in run 2, look \d+, batch \d: KeyError: 'label'$"):
        ss.compress(make_task(loss=From(82, loss, fails, True)), config, target=ss.MaxError(0.0))


class Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        fails()


def test_a_failure_of_the_gradient() -> None:
    task = make_task(loss=lambda model, batch: Gradient.apply(loss(model, batch)))  # type: ignore[no-untyped-call]
    with pytest.raises(TaskError, match=r"^the gradient of Task\.loss failed in epoch 1, batch 1: KeyError: 'label'$"):
        ss.compress(task, CONFIG, target=None)


class OddError(BaseException):
    """A user's own, which is no Exception."""


def exits() -> Any:
    raise SystemExit(0)


def is_odd() -> Any:
    raise OddError("odd")


@pytest.mark.parametrize(
    ("then", "what"),
    [
        (exits, r" called sys\.exit\(0\) in {where}\. Remove the call"),
        (is_odd, r" failed in {where}: OddError: odd"),
    ],
)
def test_an_exit_is_a_failure_too(then: Callable[[], Any], what: str) -> None:
    """An exit status of the user's code would say that the run has ended well."""
    for name, function, where in (("loss", loss, "epoch 2, batch 3"), ("evaluate", error, "epoch 2")):
        task = make_task(**{name: From(7 if name == "loss" else 5, function, then, name == "loss")})
        with pytest.raises(TaskError, match=rf"^Task\.{name}{what.format(where=where)}$"):
            ss.compress(task, CONFIG, target=None)
    with pytest.raises(TaskError, match=rf"^Task\.train{what.format(where='epoch 2, batch 3')}$"):
        ss.compress(make_task(train=Train(3, then)), CONFIG, target=None)


@pytest.mark.parametrize("name", ["loss", "evaluate"])
def test_an_interrupt_passes_through(name: str) -> None:
    function: Callable[..., Any] = loss if name == "loss" else error
    with pytest.raises(KeyboardInterrupt):
        ss.compress(make_task(**{name: From(2, function, interrupts, name == "loss")}), CONFIG, target=None)


class BadMetric:
    """As those of torchmetrics, and fails in one of its methods."""

    higher_is_better = False

    def __init__(self, method: str) -> None:
        setattr(self, method, lambda *_: fails())

    def reset(self) -> None: ...

    def update(self, output: Tensor, target: Tensor) -> None: ...

    def compute(self) -> float:
        return 1.0


@pytest.mark.parametrize("method", ["update", "compute"])
def test_a_failure_of_a_metric_of_loaders(method: str) -> None:
    metric: Any = {"good": "loss", "mine": BadMetric(method)}
    task = ss.Task.from_loaders(make_task().model, data(), data(), nn.CrossEntropyLoss(), metric)
    where = "" if method == "compute" else ", batch 1 of val_loader"
    with pytest.raises(TaskError, match=rf"^metric 'mine' failed in the look before training{where}: KeyError"):
        ss.compress(task, CONFIG, target=None)


def test_failures_of_the_parts_of_loaders() -> None:
    model = make_task().model

    def of(train: Any = None, val: Any = None, loss_fn: Any = None, metric: Any = None) -> ss.Task:
        loss_fn = loss_fn or nn.CrossEntropyLoss()
        return ss.Task.from_loaders(model, train or data(), val or data(), loss_fn, metric, higher_is_better=None)

    with pytest.raises(TaskError, match=r"^the model failed in batch 1 of val_loader: RuntimeError: mat1"):
        of(val=[(torch.ones(2, 3), torch.zeros(2))])
    with pytest.raises(TaskError, match=r"^val_loader failed in the look before training, batch 3: KeyError"):
        ss.compress(of(val=Train(1)), CONFIG, target=None)
    with pytest.raises(TaskError, match=r"^the loss function failed in epoch 1, batch 1: KeyError: 'label'$"):
        ss.compress(of(loss_fn=lambda output, target: fails(), metric="error"), CONFIG, target=None)


# Values of another kind


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": From(7, loss, lambda: 1.0, True)}, r"Task\.loss in epoch 2, batch 3: expected the mean .* got float"),
        ({"loss": From(7, loss, lambda: torch.ones(3), True)}, r"Task\.loss in epoch 2, batch 3: .* got shape \(3,\)"),
        ({"evaluate": From(5, error, lambda: None)}, r"Task\.evaluate in epoch 2: expected a number, .* got NoneType"),
        (
            {"evaluate": From(5, error, lambda: {"error": "low"})},
            r"Task\.evaluate in epoch 2: expected a number, .* got str for 'error'",
        ),
        (
            {"evaluate": From(5, error, lambda: {"loss": 1.0})},
            r"Task\.evaluate in epoch 2: expected the metric 'error', got a dict with loss\. Name .*",
        ),
        ({"noise": lambda model: None}, r"Task\.noise in the look before training: expected a number, got NoneType"),
    ],
)
def test_a_value_of_another_kind_names_the_function_the_epoch_and_the_batch(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        ss.compress(make_task(**changes), CONFIG, target=None)


def test_a_loss_of_another_kind_beside_distillation() -> None:
    """The sum with the divergence is a tensor, so it hid a loss without a gradient."""
    task = make_task(loss=From(3, loss, lambda: 1.0, True), outputs=lambda model, batch: model(batch[0]))
    with pytest.raises(ConfigError, match=r"^Task\.loss in epoch 1, batch 3: expected the mean .* got float$"):
        ss.compress(task, CONFIG.override(distill=0.5), target=None)


def test_a_value_of_another_kind_in_the_end() -> None:
    task = make_task(test=lambda model: "low")
    compressed = compress(task, CONFIG, target=None)
    with pytest.raises(ConfigError, match=r"^Task\.test in the final measurement: expected a number, .* got str$"):
        ss.measure(task, compressed, CONFIG)
    broken = make_task(loss=lambda model, batch: 1.0)
    with pytest.raises(ConfigError, match=r"^Task\.loss in the final measurement, batch 1: expected .* got float$"):
        ss.measure(broken, compressed, CONFIG)


def test_a_value_of_another_kind_from_the_parts_of_loaders() -> None:
    def of(loss_fn: Any, metric: Any) -> ss.Task:
        return ss.Task.from_loaders(make_task().model, data(), data(), loss_fn, metric, higher_is_better=None)

    metric: Any = {"loss": "loss", "mine": BadMetric("none")}
    metric["mine"].compute = lambda: torch.ones(2)
    with pytest.raises(ConfigError, match=r"^metric 'mine' in the look before training: expected one number, got a te"):
        ss.compress(of(nn.CrossEntropyLoss(), metric), CONFIG, target=None)

    def each(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction="none")

    with pytest.raises(ConfigError, match=r"^the loss function in epoch 1, batch 1: expected the mean .* Use r"):
        ss.compress(of(each, "error"), CONFIG, target=None)


# Numbers that are none


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("other", [False, True])
def test_no_number_at_the_start(value: float, other: bool) -> None:
    found = {"error": 1.0, "loss": value} if other else {"error": value}
    name = "loss" if other else "error"
    message = rf"^Task\.evaluate returned {value} for the {name} of the network; .* in the look before training$"
    with pytest.raises(NotANumberError, match=message):
        ss.compress(make_task(evaluate=lambda model: found), CONFIG, target=None)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_number_at_a_look(value: float) -> None:
    task = make_task(evaluate=From(5, error, lambda: {"error": value}))
    with pytest.raises(DivergedError, match=rf"in epoch 2: Task\.evaluate returned {value} for the error of") as caught:
        ss.compress(task, CONFIG, target=None)
    assert str(caught.value).count("epoch 2") == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("found", ["error", "loss"])
def test_no_number_in_the_end(value: float, found: str) -> None:
    task = make_task(test=lambda model: {"error": 1.0} | {found: value})
    compressed = compress(task, CONFIG, target=None)
    with pytest.raises(NotANumberError, match=rf"^Task\.test returned {value} for the {found} .* final measurement$"):
        ss.measure(task, compressed, CONFIG)


def test_what_is_no_number_may_stand_beside_the_metric() -> None:
    task = make_task(test=lambda model: {"error": 1.0, "note": "nan", "none": None, "curve": torch.zeros(3)})
    result = ss.measure(task, ss.compress(task, CONFIG, target=None), CONFIG)
    assert result.others is None


# JSON


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def constant(value: float) -> Callable[[nn.Module, Any], Tensor]:
    return lambda model, batch: torch.tensor(value)


def test_a_result_is_json_whatever_the_loss_is(tmp_path: Path) -> None:
    """The training loss of the final network is only looked at in `measure`: it may be infinite."""
    task = make_task()
    compressed = ss.compress(task, CONFIG, target=None)
    for value in (math.nan, math.inf):
        broken = dataclasses.replace(task, loss=constant(value))
        result = ss.measure(broken, compressed, CONFIG)
        assert result.error_bits == math.inf
        result.save(tmp_path / "result.json")
        assert strict((tmp_path / "result.json").read_text())["error_bits"] is None
        assert ss.Result.load(tmp_path / "result.json") == result


def test_every_part_of_a_result_is_json(tmp_path: Path) -> None:
    task = make_task()
    result = ss.measure(task, ss.compress(task, CONFIG, target=None), CONFIG)
    odd = dataclasses.replace(
        result,
        complexity_bytes=math.inf,
        noise=math.nan,
        outcome={"limit": math.inf, "reached": math.nan},
        others={"loss": [math.nan, 1.0]},
        config={**result.config, "mine": {"a": (-math.inf, 2)}},
    )
    assert (odd.complexity_bytes, odd.noise, odd.others) == (None, None, {"loss": [None, 1.0]})
    odd.save(tmp_path / "result.json")
    strict((tmp_path / "result.json").read_text())
    assert ss.Result.load(tmp_path / "result.json") == odd
    with pytest.raises(ss.SoftShareError, match="error_after: expected a finite number, got nan"):
        dataclasses.replace(result, error_after=math.nan)
