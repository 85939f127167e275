"""Targets: on a user's task and on the LeNets, judged by the resulting file."""

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
from softshare.route import compress
from softshare.target.files import Files
from softshare.target.search import Search
from softshare.train.hooks import EpochRecord, Hook
from softshare.zoo.datasets import Batches, load_mnist
from softshare.zoo.experiments import error_percent, make_task, pretrain_

CONFIG = ss.CompressConfig().override(epochs=10)
LENET = ss.CompressConfig().override(epochs=5)
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
    return task.judge(model)


def error_before(task: ss.Task) -> float:
    return task.judge(copy.deepcopy(task.model))


# On a user's task


def test_by_default_the_network_is_as_good_as_before(tmp_path: Path) -> None:
    """The noise is that of 256 answers."""
    task, config = users_task(), CONFIG.override(epochs=4, symmetries=False)
    before = copy.deepcopy(task.model.state_dict())
    compressed = compress(task, config)
    outcome = compressed.outcome
    assert outcome is not None
    assert outcome.target == ss.WithinNoise()
    share = (256 * error_before(task) / 100 + 0.5) / 257
    assert outcome.noise == pytest.approx(100 * math.sqrt(share * (1 - share) / 256))
    assert outcome.limit == error_before(task) + outcome.noise
    assert (outcome.met, outcome.kept) == (True, True)
    assert outcome.after == error_of(task, compressed, tmp_path) <= outcome.limit
    assert outcome.n_bytes == len(compressed.to_bytes())
    assert all(torch.equal(t, before[name]) for name, t in task.model.state_dict().items())  # worked on a copy


@pytest.mark.parametrize("target", [ss.WithinNoise(), ss.MaxErrorIncrease(0.5)])
def test_only_a_limit_that_was_named_is_searched_by_luck(target: ss.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the default, the last network of each run counts, none is trimmed, and half of the noise is slack."""
    searches, trimmed = list[Search](), list[float]()
    init, trim = Search.__init__, Files.trim_to_metric

    def noted(self: Search, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        searches.append(self)

    def trimming(self: Files, quantized: Any, curvatures: Any, limit: float) -> Any:
        trimmed.append(limit)
        return trim(self, quantized, curvatures, limit)

    monkeypatch.setattr(Search, "__init__", noted)
    monkeypatch.setattr(Files, "trim_to_metric", trimming)
    task = users_task()
    outcome = compress(task, CONFIG.override(epochs=4, symmetries=False), target=target).outcome
    assert outcome is not None
    (search,) = searches
    by_default = target == ss.WithinNoise()
    assert search.last_alone == by_default
    assert search.slack == pytest.approx(0.5 * outcome.noise if by_default else 0)
    assert search.limit == pytest.approx(error_before(task) + (0.5 * outcome.noise if by_default else 0.5))
    assert bool(trimmed) != by_default


def test_without_a_target_the_network_is_trained_once(tmp_path: Path) -> None:
    task, config = users_task(), CONFIG.override(epochs=3)
    with pytest.warns(UserWarning, match=r"^epoch \d: 0.weight lost all weights"):
        compressed = compress(task, config, target=None)
    assert [r.epoch for r in compressed.history] == [0, 1, 2, 3]
    outcome = compressed.outcome
    assert outcome is not None
    assert (outcome.target, outcome.limit, outcome.met) == (None, math.inf, True)
    assert outcome.after == error_of(task, compressed, tmp_path)


def test_the_papers_settings_have_no_target() -> None:
    """They have no hard phase."""
    compressed = compress(users_task(), ss.CompressConfig.paper().override(epochs=1))
    assert compressed.outcome is not None
    assert compressed.outcome.target is None


def test_the_hooks_of_a_search_see_every_run_and_which_network_it_took() -> None:
    class Recorder(Hook):
        def __init__(self) -> None:
            self.calls: list[tuple[Any, ...]] = []

        def on_prior(self, prior: ss.MixturePrior | None) -> None:
            self.prior = prior

        def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
            self.calls.append(("start", epochs, steps_per_epoch))

        def on_epoch(self, record: EpochRecord) -> None:
            self.calls.append(("epoch", record.epoch))

        def on_return(self, epoch: int) -> None:
            self.calls.append(("return", epoch))

        def on_end(self) -> None:
            self.calls.append(("end",))

    recorder = Recorder()
    compressed = compress(separable_task(), CONFIG.override(epochs=4, symmetries=False), [recorder])
    kinds = [call[0] for call in recorder.calls]
    assert kinds.count("start") > 1
    assert {call for call in recorder.calls if call[0] == "start"} == {("start", 4, 12)}
    assert [call[1] for call in recorder.calls if call[0] == "epoch"] == [r.epoch for r in compressed.history]
    assert kinds[-2:] == ["return", "end"]
    assert 0 < recorder.calls[-2][1] <= compressed.history[-1].epoch
    assert recorder.prior is not None
    taken = recorder.prior.quantize(hard=True).quantized
    assert taken.n_nonzero >= compressed.quantized.n_nonzero > 0  # trimmed


@pytest.mark.slow
@pytest.mark.parametrize("n_bytes", [500, 700])
def test_max_bytes_on_a_users_task(n_bytes: int, tmp_path: Path) -> None:
    task = users_task()
    before = copy.deepcopy(task.model.state_dict())
    compressed = compress(task, CONFIG, target=ss.MaxBytes(n_bytes))
    assert 0.98 * n_bytes <= compressed.save(tmp_path / "model.sws") <= n_bytes
    outcome = compressed.outcome
    assert outcome is not None
    assert (outcome.limit, outcome.n_bytes, outcome.met) == (n_bytes, len(compressed.to_bytes()), True)
    assert outcome.after == error_of(task, compressed, tmp_path) <= error_before(task) + 1
    assert all(torch.equal(t, before[name]) for name, t in task.model.state_dict().items())  # worked on a copy


@pytest.mark.slow
def test_max_error_on_a_users_task(tmp_path: Path) -> None:
    task, sizes = users_task(), []
    for limit in (3.0, 6.0):
        compressed = compress(task, CONFIG, target=ss.MaxError(limit))
        assert compressed.outcome is not None
        assert compressed.outcome.met
        assert compressed.outcome.reached == error_of(task, compressed, tmp_path) <= limit
        sizes.append(len(compressed.to_bytes()))
    assert sizes[1] < sizes[0]  # more error, fewer bytes


@pytest.mark.slow
def test_max_error_increase_is_relative_to_the_error_before() -> None:
    task = users_task()
    relative = compress(task, CONFIG, target=ss.MaxErrorIncrease(0.5))
    absolute = compress(task, CONFIG, target=ss.MaxError(error_before(task) + 0.5))
    assert relative.outcome is not None
    assert relative.outcome.met
    assert relative.outcome.limit == error_before(task) + 0.5
    assert relative.to_bytes() == absolute.to_bytes()  # the same seed gives the same file


@pytest.mark.slow
def test_an_accuracy_and_an_error_give_the_same_file() -> None:
    task = users_task()
    accuracy = dataclasses.replace(
        task, evaluate=lambda m: 100 - task.judge(m), metric=ss.Metric("accuracy", "%", True)
    )
    config = CONFIG.override(epochs=5)
    by_error, by_accuracy = compress(task, config), compress(accuracy, config)
    assert by_error.to_bytes() == by_accuracy.to_bytes()
    assert by_accuracy.outcome is not None
    assert by_error.outcome is not None
    assert by_accuracy.outcome.kept
    assert by_accuracy.outcome.limit == pytest.approx(100 - by_error.outcome.limit)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*lost all weights:UserWarning")  # without a target
def test_a_budget_larger_than_the_network_ever_gets_is_met() -> None:
    task, config = users_task(), CONFIG.override(epochs=3)
    compressed = compress(task, config, target=ss.MaxBytes(50_000))
    assert compressed.outcome is not None
    assert compressed.outcome.met
    assert len(compressed.to_bytes()) > len(compress(task, config, target=None).to_bytes())


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
    config = CONFIG.override(epochs=6, tau=1e-3, zero_mixing=0.9, **changes)
    compressed = compress(users_task(), config, target=ss.MaxBytes(1100))
    assert 0.98 * 1100 <= len(compressed.to_bytes()) <= 1100


@pytest.mark.slow
def test_what_cannot_be_met_gives_the_nearest_and_says_so(tmp_path: Path) -> None:
    task = users_task()
    compressed = compress(task, CONFIG.override(epochs=5), target=ss.MaxError(0.0))
    assert compressed.outcome is not None
    assert not compressed.outcome.met
    assert compressed.outcome.reached == error_of(task, compressed, tmp_path) > 0
    assert str(compressed.outcome).startswith("target not met: at most 0.00% allowed, the nearest that was found has ")


def test_a_target_in_bytes_is_met_even_if_no_run_has_the_size(tmp_path: Path) -> None:
    """The file is cut to fit."""
    config = CONFIG.override(epochs=1, hard_from=0.99)
    compressed = compress(users_task(), config, target=ss.MaxBytes(600))
    assert compressed.outcome is not None
    assert compressed.outcome.met
    assert compressed.outcome.reached == compressed.save(tmp_path / "model.sws") <= 600


@pytest.mark.slow
@pytest.mark.parametrize("target", [ss.WithinNoise(), ss.MaxError(3.0), ss.MaxBytes(1200)], ids=repr)
def test_with_few_examples_the_defaults_do_not_make_the_network_collapse(target: ss.Target, tmp_path: Path) -> None:
    task, config = separable_task(), CONFIG.override(epochs=8)
    compressed = compress(task, config, target=target)
    assert compressed.outcome is not None
    assert compressed.outcome.met
    assert error_of(task, compressed, tmp_path) <= 3


# On the paper's networks


@pytest.mark.slow
def test_max_bytes_on_lenet_5(tmp_path: Path) -> None:
    compressed = compress(lenet_task("lenet-5-caffe"), LENETS["lenet-5-caffe"], target=ss.MaxBytes(9000))
    assert 0.98 * 9000 <= compressed.save(tmp_path / "model.sws") <= 9000


@pytest.mark.slow
def test_max_error_on_lenet_300_100(tmp_path: Path) -> None:
    task = lenet_task("lenet-300-100")
    compressed = compress(task, LENETS["lenet-300-100"], target=ss.MaxErrorIncrease(8.0))
    assert compressed.outcome is not None
    assert compressed.outcome.met
    assert error_of(task, compressed, tmp_path) <= error_before(task) + 8


# What is refused, and what is recorded


def test_targets_that_no_run_can_meet_are_refused_before_training() -> None:
    task = users_task()
    with pytest.raises(ConfigError, match=r"at least \d+ bytes, the size of the file with every shared .* 0, got 9"):
        compress(task, CONFIG, target=ss.MaxBytes(9))
    for config in (CONFIG.override(hard_from=1.0), CONFIG.override(zeroing=0.0)):
        with pytest.raises(ConfigError, match="expected hard_from below 1 and zeroing above 0"):
            compress(task, config, target=ss.MaxError(2))
    with pytest.raises(ConfigError, match="MaxBytes, MaxError, MaxErrorIncrease or MaxMacs, got 2"):
        compress(task, CONFIG, target=2)  # type: ignore[arg-type]


def test_the_result_records_the_target(tmp_path: Path) -> None:
    task, config = dataclasses.replace(users_task(), test=None), CONFIG.override(epochs=1)
    compressed = compress(task, config, target=ss.MaxBytes(1200))
    result = ss.measure(task, compressed, config)
    assert ss.CompressConfig.from_dict(result.config) == config
    assert compressed.outcome is not None
    assert result.outcome == compressed.outcome.to_dict()
    result.save(tmp_path / "result.json")
    assert ss.Result.load(tmp_path / "result.json") == result
