"""Targets: one run each, on a user's task and on the LeNets, judged by the resulting file."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.errors import ConfigError
from softshare.zoo.datasets import Batches, load_mnist
from softshare.zoo.experiments import error_percent, make_task, pretrain_

# tau is relative to the number of examples, which are few here
CONFIG = ss.CompressConfig().override(epochs=10, tau=0.003, zero_mixing=0.9)
LENET = ss.CompressConfig().override(epochs=5, tau=0.001)
LENETS = {"lenet-300-100": LENET, "lenet-5-caffe": LENET.override(symmetries=False)}  # symmetries of LeNet-5 take long


def no_test(model: nn.Module) -> float:
    raise AssertionError("a target must be met without the test set")


def mean_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def fitted(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for batch in batches:
        optimizer.zero_grad()
        mean_loss(model, batch).backward()
        optimizer.step()
    return model.eval()


@functools.cache
def users_task() -> ss.Task:
    """A convolution with batch norm and two linear layers, trained to recognize stripes in noise."""
    g = torch.Generator().manual_seed(0)
    images, labels = 0.8 * torch.randn(768, 1, 8, 8, generator=g), torch.arange(768) % 3
    images[labels == 1, :, 3:5, :] += 1
    images[labels == 2, :, :, 3:5] += 1
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU(), nn.Linear(32, 3)
    )
    batches = list(zip(images[:512].split(32), labels[:512].split(32), strict=True))
    return ss.Task(
        model=fitted(model, batches * 5),
        train=batches,
        loss=mean_loss,
        evaluate=lambda model: 100 * (model(images[512:]).argmax(1) != labels[512:]).float().mean().item(),
        n_examples=512,
        test=no_test,
    )


@functools.cache
def separable_task() -> ss.Task:
    """A perceptron trained to separate two classes, which it does without error."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 20, generator=g)
    y = (x[:, :2].sum(1) > 0).long()
    x[:, :2] += y[:, None] - 0.5
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    batches = list(zip(x[:768].split(64), y[:768].split(64), strict=True))
    return ss.Task(
        model=fitted(model, batches * 20),
        train=batches,
        loss=mean_loss,
        evaluate=lambda model: 100 * (model(x[768:]).argmax(1) != y[768:]).float().mean().item(),
        n_examples=768,
        test=no_test,
    )


@functools.cache
def lenet_task(name: str) -> ss.Task:
    """One of the paper's networks, trained briefly on a few hundred images."""
    train, validation = (split[torch.arange(n)] for split, n in zip(load_mnist(), (500, 300), strict=False))
    task = dataclasses.replace(
        make_task(name),
        train=Batches(train, 20),
        evaluate=lambda model: error_percent(model, validation),
        n_examples=len(train),
        test=no_test,
    )
    pretrain_(task, ss.RetrainConfig(epochs=6, lr_weights=1e-3))
    return task


def error_of(task: ss.Task, compressed: ss.Compressed, folder: Path) -> float:
    """The error of the file, loaded into a copy of the model."""
    model = copy.deepcopy(task.model)
    compressed.save(folder / "model.sws")
    ss.load_into_(model, folder / "model.sws")
    with torch.no_grad():
        return float(task.evaluate(model.eval()))


def error_before(task: ss.Task) -> float:
    with torch.no_grad():
        return float(task.evaluate(copy.deepcopy(task.model).eval()))


# On a user's task


@pytest.mark.slow
@pytest.mark.parametrize("n_bytes", [700, 1500])
def test_max_bytes_on_a_users_task(n_bytes: int, tmp_path: Path) -> None:
    task = users_task()
    before = copy.deepcopy(task.model.state_dict())
    compressed = ss.compress(task, CONFIG, target=ss.MaxBytes(n_bytes))
    assert 0.98 * n_bytes <= compressed.save(tmp_path / "model.sws") <= n_bytes
    assert compressed.outcome == ss.Outcome(ss.MaxBytes(n_bytes), n_bytes, len(compressed.to_bytes()))
    assert compressed.outcome.met
    assert error_of(task, compressed, tmp_path) <= error_before(task) + 1
    assert all(torch.equal(t, before[name]) for name, t in task.model.state_dict().items())  # worked on a copy


@pytest.mark.slow
def test_max_error_on_a_users_task(tmp_path: Path) -> None:
    task, limits = users_task(), (3.0, 6.0)
    sizes = []
    for limit in limits:
        compressed = ss.compress(task, CONFIG, target=ss.MaxError(limit))
        assert compressed.outcome is not None
        assert compressed.outcome.met
        assert compressed.outcome.reached == error_of(task, compressed, tmp_path) <= limit
        sizes.append(len(compressed.to_bytes()))
    assert sizes[1] < sizes[0]  # more error, fewer bytes


@pytest.mark.slow
def test_max_error_increase_is_relative_to_the_error_before() -> None:
    task = users_task()
    relative = ss.compress(task, CONFIG, target=ss.MaxErrorIncrease(0.5))
    absolute = ss.compress(task, CONFIG, target=ss.MaxError(error_before(task) + 0.5))
    assert relative.outcome is not None
    assert relative.outcome.met
    assert relative.outcome.limit == error_before(task) + 0.5
    assert relative.to_bytes() == absolute.to_bytes()  # the same seed gives the same file


@pytest.mark.slow
def test_a_budget_larger_than_the_network_ever_gets_is_met() -> None:
    task = users_task()
    compressed = ss.compress(task, CONFIG.override(epochs=3), target=ss.MaxBytes(50_000))
    assert compressed.outcome is not None
    assert compressed.outcome.met
    assert len(compressed.to_bytes()) > len(ss.compress(task, CONFIG.override(epochs=3)).to_bytes())


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"codec": "han", "names": "none"},
        {"symmetries": False, "mixtures": "global", "components": 8},
        {"mixing_prior": ss.Beta(90, 10)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_max_bytes_counts_the_file_as_it_is_written(changes: dict[str, Any]) -> None:
    config = CONFIG.override(epochs=6, **changes)
    compressed = ss.compress(users_task(), config, target=ss.MaxBytes(1100))
    assert 0.98 * 1100 <= len(compressed.to_bytes()) <= 1100


@pytest.mark.slow
def test_what_cannot_be_met_gives_the_nearest_and_says_so(tmp_path: Path) -> None:
    task = users_task()
    compressed = ss.compress(task, CONFIG, target=ss.MaxError(0.0))
    assert compressed.outcome is not None
    assert not compressed.outcome.met
    assert compressed.outcome.reached == error_of(task, compressed, tmp_path)
    assert compressed.outcome.reached <= min(r.validation_error for r in compressed.history if r.epoch > 2)  # hard
    assert str(compressed.outcome).startswith("target not met: at most 0% validation error allowed, the nearest ")


def test_a_target_is_reported_even_if_training_never_steered() -> None:
    config = CONFIG.override(epochs=1, hard_from=0.99)
    compressed = ss.compress(users_task(), config, target=ss.MaxBytes(600))
    assert compressed.outcome is not None
    assert not compressed.outcome.met
    assert compressed.outcome.reached == len(compressed.to_bytes()) > 600


@pytest.mark.slow
@pytest.mark.parametrize("target", [ss.MaxError(3.0), ss.MaxBytes(1200)], ids=repr)
def test_with_few_examples_the_defaults_do_not_make_the_network_collapse(target: ss.Target, tmp_path: Path) -> None:
    """Without a target they do: the default tau is for many more examples."""
    task, config = separable_task(), ss.CompressConfig().override(epochs=8)
    assert error_of(task, ss.compress(task, config), tmp_path) > 40
    compressed = ss.compress(task, config, target=target)
    assert compressed.outcome is not None
    assert compressed.outcome.met
    assert error_of(task, compressed, tmp_path) <= 3


# On the paper's networks


@pytest.mark.slow
def test_max_bytes_on_lenet_5(tmp_path: Path) -> None:
    compressed = ss.compress(lenet_task("lenet-5-caffe"), LENETS["lenet-5-caffe"], target=ss.MaxBytes(9000))
    assert 0.98 * 9000 <= compressed.save(tmp_path / "model.sws") <= 9000


@pytest.mark.slow
def test_max_error_on_lenet_300_100(tmp_path: Path) -> None:
    task = lenet_task("lenet-300-100")
    compressed = ss.compress(task, LENETS["lenet-300-100"], target=ss.MaxErrorIncrease(8.0))
    assert compressed.outcome is not None
    assert compressed.outcome.met
    assert error_of(task, compressed, tmp_path) <= error_before(task) + 8


# What is refused, and what is recorded


@pytest.mark.parametrize(
    ("make", "value"),
    [
        *((ss.MaxBytes, value) for value in (0, 1e4, True)),
        *((ss.MaxError, value) for value in (-0.1, math.nan, "2")),
        *((ss.MaxErrorIncrease, value) for value in (math.inf, False)),
    ],
)
def test_bad_targets(make: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{make.__name__}: expected .*, got {value!r}"):
        make(value)


def test_targets_that_no_run_can_meet_are_refused_before_training() -> None:
    task = users_task()
    with pytest.raises(ConfigError, match=r"at least \d+ bytes, the size of the file with every shared .* 0, got 9"):
        ss.compress(task, CONFIG, target=ss.MaxBytes(9))
    for changes in ({"hard_from": 1.0}, {"zeroing": 0.0}):
        with pytest.raises(ConfigError, match="expected hard_from below 1 and zeroing above 0"):
            ss.compress(task, CONFIG.override(**changes), target=ss.MaxError(2))
    with pytest.raises(ConfigError, match="expected MaxBytes, MaxError or MaxErrorIncrease, got 2"):
        ss.compress(task, CONFIG, target=2)  # type: ignore[arg-type]


def test_the_result_records_the_target(tmp_path: Path) -> None:
    task, config = dataclasses.replace(users_task(), test=None), CONFIG.override(epochs=1)
    result = ss.measure(task, ss.compress(task, config, target=ss.MaxBytes(1200)), config)
    assert ss.CompressConfig.from_dict(result.config) == config
    assert result.outcome == {"target": {"max_bytes": 1200}, "limit": 1200, "reached": result.file_bytes, "met": True}
    result.save(tmp_path / "result.json")
    assert ss.Result.load(tmp_path / "result.json") == result
    plain = ss.measure(task, ss.compress(task, config), config)
    assert plain.outcome is None
