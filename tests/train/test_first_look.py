"""The look at a task before it is trained: what it measures, what it refuses, and that it changes nothing."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.compressed import REVIVE, Compressed, dead_layers
from softshare.errors import ConfigError, ModelError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.train.first_look import FirstLook, in_nats, look
from softshare.train.noise import noise_of

Batch = tuple[Tensor, Tensor]
CONFIG = ss.CompressConfig().override(epochs=1)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_task(steps: int = 200) -> ss.Task:
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    y = (x[:, 0] > x[:, 1]).long()
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, (x, y)).backward()
        optimizer.step()

    def error(model: nn.Module) -> float:
        return 100 * float((model(x).argmax(1) != y).double().mean())

    return ss.Task(model, list(zip(x.split(64), y.split(64), strict=True)), loss, error, 256)


def test_an_accuracy_in_place_of_an_error_is_refused_and_nothing_is_changed() -> None:
    task = make_task()
    before = [p.detach().clone() for p in task.model.parameters()]
    accuracy = dataclasses.replace(task, evaluate=lambda model: 100 - task.judge(model))
    with pytest.raises(ConfigError, match=r"of which less is better.*100\.00% for .*all 0.*higher_is_better=True"):
        ss.compress(accuracy, CONFIG)
    assert all(torch.equal(p, own) for p, own in zip(task.model.parameters(), before, strict=True))
    assert ss.compress(task, CONFIG, target=None).history[0].validation_error == task.judge(task.model)


def test_an_error_that_is_called_an_accuracy_is_refused() -> None:
    task = dataclasses.replace(make_task(), metric=ss.Metric("accuracy", "%", True))
    with pytest.raises(ConfigError, match=r"of which more is better.*0\.00% for .*all 0.*higher_is_better=False"):
        ss.compress(task, CONFIG)


def test_an_evaluation_of_another_model_is_refused() -> None:
    """It would call every network as good as the one that it closes over, also one of zeros."""
    task = make_task()
    other = dataclasses.replace(task, evaluate=lambda _: task.judge(task.model))
    with pytest.raises(ConfigError, match=r"of the network that it is given.*calls neither.*0\.00% for both"):
        ss.compress(other, CONFIG)
    by_hand = dataclasses.replace(task, evaluate=lambda model: 0.0 * task.judge(model))
    ss.compress(by_hand, CONFIG, target=None)  # it says nothing, but of the right network


def test_a_network_that_is_not_trained_passes() -> None:
    task = make_task(0)
    ss.compress(dataclasses.replace(task, evaluate=lambda model: 100 - task.judge(model)), CONFIG, target=None)


def looked(task: ss.Task) -> FirstLook:
    return look(task, ss.MixturePrior(task.model), 0)


def test_the_look_by_hand() -> None:
    """The mean of the first 8 batches' losses, in evaluation mode, for the network and for one that says nothing."""
    task = make_task()
    x, y = (torch.cat(parts) for parts in zip(*task.train, strict=True))
    batches = list(zip(x.split(16), y.split(16), strict=True))
    found = looked(dataclasses.replace(task, train=batches))
    assert found.before == task.judge(task.model)
    share = (256 * found.before / 100 + 0.5) / 257
    assert found.noise == pytest.approx(100 * math.sqrt(share * (1 - share) / 256))
    assert found.loss == pytest.approx(float(loss(task.model, (x[:128], y[:128])).detach()), rel=1e-5)
    assert found.loss_of_zeros == pytest.approx(math.log(2), rel=1e-5)
    assert found.zeros == pytest.approx(100 * float((y != 0).double().mean()))


def test_the_look_leaves_the_network_and_the_random_state_alone() -> None:
    task = make_task()
    model = nn.Sequential(nn.BatchNorm1d(6), task.model, nn.Dropout(0.5)).train()
    task = dataclasses.replace(task, model=model)
    model.zero_grad()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    looked(task)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


def scaled(task: ss.Task, by: float) -> ss.Task:
    """With a loss, and a metric, in another unit."""
    return dataclasses.replace(
        task,
        loss=lambda m, b: by * loss(m, b),
        evaluate=lambda m: by * task.judge(m),
        noise=lambda m: by * noise_of(task, m, task.judge(m)),
    )


@pytest.mark.parametrize("by", [1e-4, 3.0, 1e4])
def test_the_unit_is_proportional_to_the_loss(by: float) -> None:
    task = make_task(30)
    first, other = looked(task), looked(scaled(task, by))
    assert other.unit(scaled(task, by), by * 2.0) == pytest.approx(by * first.unit(task, 2.0), rel=1e-5)


def test_the_unit_by_hand() -> None:
    """A network that gains 2 over zeros, of which a five-hundredth may be lost, counts as one on MNIST."""
    task = make_task(0)
    first = FirstLook(before=10.0, noise=1.0, zeros=60.0, loss=0.5, loss_of_zeros=2.5)
    nat = 2 / math.log(10)
    assert first.unit(task, 0.1) == pytest.approx(nat)
    assert first.unit(task, 5.0) == pytest.approx(nat)  # never more
    assert first.unit(task, 0.05) == pytest.approx(nat / 2)  # what must be more exact
    assert first.unit(task, 0.0) == pytest.approx(nat)  # unknown
    more = dataclasses.replace(task, metric=ss.Metric("score", "", True))
    upside_down = dataclasses.replace(first, before=60.0, zeros=10.0)
    assert upside_down.unit(more, 0.05) == pytest.approx(nat / 2)


@pytest.mark.parametrize(
    ("of_network", "of_zeros", "unit"),
    [(math.nan, math.nan, 1.0), (0.7, 0.7, 0.7 / math.log(10)), (3.0, 2.0, 3 / math.log(10)), (0.0, 0.0, 1.0)],
)
def test_the_unit_of_a_network_that_gains_nothing_is_the_size_of_its_loss(
    of_network: float, of_zeros: float, unit: float
) -> None:
    first = FirstLook(10.0, 1.0, 60.0, of_network, of_zeros)
    assert first.unit(make_task(0), 0.1) == pytest.approx(unit)


def test_the_unit_of_a_squared_error_is_that_of_its_targets() -> None:
    """Targets and outputs in other units, by 1000: the squared error is a million times larger, and so is its unit."""

    def unit(by: float) -> float:
        torch.manual_seed(0)
        x, model = torch.randn(128, 6), nn.Linear(6, 1)
        y = by * x[:, :1]
        with torch.no_grad():
            model.weight.copy_(by * (torch.eye(6)[:1] + 0.1))
            model.bias.mul_(by)

        def squared(model: nn.Module, batch: Batch) -> Tensor:
            return F.mse_loss(model(batch[0]), batch[1])

        task = ss.Task(model, [(x, y)], squared, lambda m: float(squared(m, (x, y))), metric=ss.Metric("mse", ""))
        first = looked(task)
        return first.unit(task, first.noise)

    assert unit(1000.0) == pytest.approx(1e6 * unit(1.0), rel=1e-4)


def test_the_task_in_nats() -> None:
    task = make_task(0)
    batch = next(iter(task.train))
    assert in_nats(task, 4.0).loss(task.model, batch).item() == pytest.approx(loss(task.model, batch).item() / 4)
    assert in_nats(task, 4.0).judge(task.model) == task.judge(task.model)


def test_the_look_changes_nothing_in_the_run() -> None:
    """Batches in an order that torch's random state decides: the same file, whether or not a batch was looked at."""
    task = make_task()
    files = []
    for _ in range(2):
        torch.manual_seed(5)
        files.append(ss.compress(task, CONFIG, target=None).to_bytes())
        torch.rand(3)
    assert files[0] == files[1]


def test_a_loss_of_another_model_is_refused() -> None:
    task, other = make_task(), make_task().model
    with pytest.raises(ModelError, match="no gradient for any shared weight"):
        ss.compress(dataclasses.replace(task, loss=lambda _, batch: loss(other, batch)), CONFIG)
    with pytest.raises(ModelError, match="no gradient for any shared weight"):
        ss.compress(dataclasses.replace(task, loss=lambda _, batch: batch[0].mean()), CONFIG)


@pytest.mark.filterwarnings("ignore:.*lost all weights")
@pytest.mark.parametrize(("length", "counted"), [({"epochs": 4}, "epoch"), ({"steps": 40}, "look")])
def test_a_layer_that_dies_is_named_with_the_epoch_or_look_from_which_it_is_zero(
    length: dict[str, Any], counted: str
) -> None:
    """The prior is so strong that every weight goes."""
    config = ss.CompressConfig().override(**length, tau=1e6, tau_warmup=0.0)
    compressed = ss.compress(make_task(), config, target=None)
    dead = [text for text in compressed.messages if "all zero" in text]
    zero = [
        next(record.epoch for record in compressed.history if not record.density[name])
        for name in ("0.weight", "2.weight")
    ]
    if zero[0] == zero[1]:
        assert dead == [f"0.weight, 2.weight are all zero since {counted} {zero[0]}: nothing passes through them."]
    else:
        assert dead == [
            f"{name} is all zero since {counted} {since}: nothing passes through it."
            for since, name in sorted(zip(zero, ("0.weight", "2.weight"), strict=True))  # the earliest first
        ]
    assert compressed.messages.count(REVIVE) == 1


def test_many_dead_layers_are_one_message() -> None:
    book = torch.tensor([0.0, 0.5])
    zeros = [QuantizedTensor(f"{k}.weight", (2, 2), torch.float32, torch.zeros(4).byte(), book) for k in range(1000)]
    compressed = Compressed(QuantizedWeights(tuple(zeros), {}, {}), {}, {})
    assert dead_layers(compressed) == ["{0-999}.weight x1000 are all zero: nothing passes through them."]
    one = dead_layers(compressed, spared=[t.name for t in zeros[1:]])
    assert one == ["0.weight is all zero: nothing passes through it."]


class Auxiliary(nn.Module):
    """With a second head in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head, self.second = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = torch.relu(self.hidden(x))
        return (self.head(h), self.second(h)) if self.training else self.head(h)


def two_heads(model: nn.Module, batch: Batch) -> Tensor:
    first, second = model(batch[0])
    return F.cross_entropy(first, batch[1]) + F.cross_entropy(second, batch[1])


def with_penalty(model: nn.Module, batch: Batch) -> Tensor:
    x = batch[0].clone().requires_grad_()
    value = loss(model, (x, batch[1]))
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    return value + 0.1 * gradient.square().sum(1).mean()


def no_zeros(model: nn.Module, batch: Batch) -> Tensor:
    if not model(batch[0]).any():
        raise ValueError("no logits")
    return loss(model, batch)


@pytest.mark.filterwarnings("ignore:.*lost all weights")
@pytest.mark.parametrize("own", [two_heads, with_penalty, no_zeros])
def test_a_task_that_cannot_be_asked_is_trained(own: Callable[[nn.Module, Batch], Tensor]) -> None:
    task = make_task(0)
    model = Auxiliary() if own is two_heads else make_task().model
    task = dataclasses.replace(task, model=model, loss=own)
    compressed = ss.compress(task, CONFIG.override(tau=1e-5), target=None)
    assert any("because the loss or the evaluation fails" in text for text in compressed.messages) == (own is two_heads)
    assert ss.measure(task, compressed, CONFIG.override(tau=1e-5)).error_bits > 0


# The number of examples


@pytest.mark.parametrize(
    ("n_examples", "expected"),
    [
        (256, ""),
        (128, ""),  # a few rows may be no examples
        (3072, ""),  # 6 numbers in each of 256 rows, out by 2
        (127, "expected about 256 to 1,536, by the size of the batches, got 127"),
        (3073, "expected about 256 to 1,536, by the size of the batches, got 3,073"),
    ],
)
def test_a_number_of_examples_that_the_batches_deny(n_examples: int, expected: str) -> None:
    """There are 4 batches of 64 rows with 6 numbers and a label."""
    doubts = looked(dataclasses.replace(make_task(), n_examples=n_examples)).doubts
    assert len(doubts) == bool(expected)
    assert all(text.startswith(f"Task.n_examples: {expected}") for text in doubts)


def test_more_batches_than_are_read_count() -> None:
    """Each time step of a sequence is a term. In a batch with the steps first, the labels count the sequences."""
    task = make_task()
    many = dataclasses.replace(task, train=[*task.train] * 10, n_examples=2560)
    assert looked(many).doubts == ()
    assert "got 2,560" in looked(dataclasses.replace(task, n_examples=2560, train=task.train[:1])).doubts[0]  # type: ignore[index]
    steps_first = dataclasses.replace(
        task,
        train=[(torch.zeros(50, 4, 6), torch.zeros(4, dtype=torch.long))] * 5,
        loss=lambda m, batch: F.cross_entropy(m(batch[0])[-1], batch[1]),
        n_examples=20,
    )
    assert looked(steps_first).doubts == ()


def test_batches_that_cannot_be_counted_raise_no_doubts() -> None:
    class Stream:
        def __iter__(self) -> Any:
            return iter(make_task().train)

    assert looked(dataclasses.replace(make_task(), train=Stream(), n_examples=1)).doubts == ()


def test_the_doubts_are_said_before_training() -> None:
    with pytest.warns(UserWarning, match=r"^Task.n_examples: expected about 256 to 1,536"):
        ss.compress(dataclasses.replace(make_task(), n_examples=9999), CONFIG.override(tau=1e-6), target=None)
