"""A run that is stopped, anywhere, and goes on from its checkpoint ends as one that was never stopped."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import softshare as ss
from softshare.errors import ConfigError, FormatError, StoppedError, TaskError
from softshare.train.hooks import EpochRecord, Hook, StopPhaseError
from softshare.train.phases import Phases
from softshare.train.resume import Checkpoint
from softshare.train.retrain import retrain_

STEPS = ss.CompressConfig().override(steps=40, zero_mixing=0.9, symmetries=False)
EPOCHS = STEPS.override(epochs=4)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Draws from all three generators for each example."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        return self.x[k] + 0.1 * random.random() + 0.1 * np.random.rand() + 0.1 * torch.randn(()), self.y[k]


class OfItsOwn:
    """Draws from a generator that nobody else knows."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.chance = x, y, np.random.default_rng(0)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.from_numpy(self.chance.permutation(len(self.x))).split(16):
            yield self.x[rows], self.y[rows]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_task(loader: str = "shuffled") -> ss.Task:
    """Batch norm, dropout and a buffer that is not in the state dict: all must go on as they were."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    x = torch.randn(160, 6)
    y = (x[:, :2].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    model.register_buffer("unkept", torch.zeros(()), persistent=False)
    data: Dataset[Any] = Augmented(x[:128], y[:128]) if loader == "augmented" else TensorDataset(x[:128], y[:128])
    own = torch.Generator().manual_seed(5)
    options: dict[str, Any] = {"shuffle": True}
    if loader == "own generator":
        options["generator"] = own
    if loader == "sampler":
        options = {"sampler": RandomSampler(data, generator=own)}  # type: ignore[arg-type]
    return ss.Task(
        model,
        DataLoader(data, 16, **options) if loader != "of its own" else OfItsOwn(x[:128], y[:128]),
        lambda m, b: loss(m, b) + 0 * m.get_buffer("unkept").add_(1),
        lambda m: 100 * float((m(x[128:]).argmax(1) != y[128:]).double().mean()),
        n_examples=128,
    )


class StopAt(Checkpoint):
    """Stops after the n-th step of this sitting, as a kill would: what is written since the file is lost."""

    def __init__(self, path: Path, n: int, written_at: int | None = None) -> None:
        super().__init__(path, every=1e9)
        self.left, self.unwritten = n, 0 if written_at is None else n - written_at

    def tick(self, at_end: bool = False) -> None:
        self.left -= 1
        if self.left == self.unwritten:
            self.write()
        if self.left == 0:
            raise KeyboardInterrupt


def stopped_and_resumed(config: ss.CompressConfig, target: Any, path: Path, each: int, loader: str) -> ss.Compressed:
    """Stopped after each so many steps. Every sitting has a network and data of its own."""
    for _ in range(1000):
        try:
            return ss.compress(make_task(loader), config, target=target, checkpoint=StopAt(path, each))
        except KeyboardInterrupt:
            continue
    raise AssertionError("the run never ends")


def same(a: ss.Compressed, b: ss.Compressed) -> bool:
    records = [
        [{**vars(r), "seconds": 0, "task_loss": str(r.task_loss)} for r in compressed.history] for compressed in (a, b)
    ]
    return a.to_bytes() == b.to_bytes() and records[0] == records[1] and str(a.outcome) == str(b.outcome)


@pytest.mark.parametrize("loader", ["shuffled", "own generator", "sampler", "augmented"])
@pytest.mark.parametrize("config", [STEPS, EPOCHS], ids=["steps", "epochs"])
def test_a_run_that_is_stopped_again_and_again_ends_with_the_same_bytes(
    config: ss.CompressConfig, loader: str, tmp_path: Path
) -> None:
    whole = ss.compress(make_task(loader), config, target=None)
    assert same(stopped_and_resumed(config, None, tmp_path / "run", 7, loader), whole)


@pytest.mark.parametrize(("n", "differs"), [(5, False), (20, True)])
def test_batches_that_do_not_come_again_are_said(n: int, differs: bool, tmp_path: Path) -> None:
    """In the first pass of 8 they do: it draws from a generator that is new in either run."""
    with pytest.raises(KeyboardInterrupt):
        ss.compress(make_task("of its own"), STEPS, target=None, checkpoint=StopAt(tmp_path / "run", n))
    said: list[str] = []
    ss.compress(make_task("of its own"), STEPS, target=None, checkpoint=Checkpoint(tmp_path / "run", say=said.append))
    assert [text[:38] for text in said] == ["Task.train gave other batches than bef"] * differs


def test_what_fails_after_the_training_costs_no_training(tmp_path: Path) -> None:
    """The look after training fails. The next call trains no step, and ends with the same bytes."""

    class Counting(Hook):
        steps = 0

        def on_step(self, epoch: int, step: int) -> None:
            self.steps += 1

    whole, trained, rest = ss.compress(make_task(), STEPS, target=None), Counting(), Counting()
    task, looks = make_task(), list[int]()

    def fails(model: nn.Module) -> float:
        looks.append(trained.steps)
        if looks[-2:] == [STEPS.retrain.steps] * 2:  # the last look of the training was the one before
            raise OSError("no data")
        return float(task.evaluate(model))  # type: ignore[arg-type]

    failing = dataclasses.replace(make_task(), evaluate=fails)
    with pytest.raises(TaskError, match="the look after training"):
        ss.compress(failing, STEPS, [trained], target=None, checkpoint=Checkpoint(tmp_path / "run", every=1e9))
    assert same(ss.compress(task, STEPS, [rest], target=None, checkpoint=tmp_path / "run"), whole)
    assert (trained.steps, rest.steps) == (STEPS.retrain.steps, 0)


BY_SGD = EPOCHS.override(optimizer="sgd", lr_weights=0.02)


@functools.cache
def by_sgd() -> ss.Compressed:
    return ss.compress(make_task(), BY_SGD, target=None)


AT_ONCE = (1, 8, 9, 32)


@pytest.mark.parametrize("n", [n if n in AT_ONCE else pytest.param(n, marks=pytest.mark.slow) for n in range(1, 33)])
def test_a_run_may_be_stopped_after_any_step(n: int, tmp_path: Path) -> None:
    """The first step, the last of a pass, the last of a look before it is judged, the last of all."""
    with pytest.raises(KeyboardInterrupt):
        ss.compress(make_task(), BY_SGD, target=None, checkpoint=StopAt(tmp_path / "run", n))
    assert same(ss.compress(make_task(), BY_SGD, target=None, checkpoint=tmp_path / "run"), by_sgd())


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [ss.WithinNoise(), ss.MaxErrorIncrease(1.0), ss.MaxError(0.0), ss.MaxBytes(120), ss.MaxMacs(0.3)],
    ids=repr,
)
def test_a_search_that_is_stopped_goes_on_with_its_runs(target: Any, tmp_path: Path) -> None:
    whole = ss.compress(make_task(), STEPS, target=target)
    assert len(whole.history) > STEPS.retrain.looks + 1
    assert same(stopped_and_resumed(STEPS, target, tmp_path / "run", 33, "shuffled"), whole)


def test_what_came_after_the_last_write_is_done_again(tmp_path: Path) -> None:
    whole = ss.compress(make_task(), STEPS, target=None)
    with pytest.raises(KeyboardInterrupt):
        ss.compress(make_task(), STEPS, target=None, checkpoint=StopAt(tmp_path / "run", 30, written_at=11))
    assert same(ss.compress(make_task(), STEPS, target=None, checkpoint=tmp_path / "run"), whole)


def test_a_run_that_is_over_gives_the_same_again(tmp_path: Path) -> None:
    file = Checkpoint(tmp_path / "run", every=0)
    first = ss.compress(make_task(), STEPS, target=None, checkpoint=file)
    assert same(ss.compress(make_task(), STEPS, target=None, checkpoint=tmp_path / "run"), first)


def test_training_without_a_prior_goes_on_too(tmp_path: Path) -> None:
    config = ss.RetrainConfig(epochs=3)

    def trained(checkpoint: Checkpoint | None) -> dict[str, Tensor]:
        task = make_task()
        if checkpoint:
            checkpoint.begin("pre-training")
        retrain_(task, None, config, checkpoint=checkpoint)
        return copy.deepcopy(task.model.state_dict())

    whole = trained(None)
    with pytest.raises(KeyboardInterrupt):
        trained(StopAt(tmp_path / "run", 13))
    assert all(torch.equal(t, whole[name]) for name, t in trained(Checkpoint(tmp_path / "run")).items())


# What is refused, and signals


@pytest.mark.parametrize("changes", [{"tau": 0.01}, {"seed": 1}, {"components": 5}])
def test_a_checkpoint_of_another_run_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ss.compress(make_task(), STEPS, target=None, checkpoint=StopAt(tmp_path / "run", 3))
    with pytest.raises(ConfigError, match="is of another run"):
        ss.compress(make_task(), STEPS.override(**changes), target=None, checkpoint=tmp_path / "run")
    with pytest.raises(ConfigError, match="is of another run"):
        ss.compress(make_task(), STEPS, target=ss.MaxBytes(500), checkpoint=tmp_path / "run")
    other = make_task()
    with torch.no_grad():
        other.model.get_parameter("0.bias").add_(1e-6)
    with pytest.raises(ConfigError, match="is of another run"):
        ss.compress(other, STEPS, target=None, checkpoint=tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04" + bytes(100)])
def test_a_file_that_is_no_checkpoint_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(FormatError, match="is not the checkpoint of a run"):
        ss.compress(make_task(), STEPS, target=None, checkpoint=tmp_path / "run")


def test_a_checkpoint_never_runs_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'harmed'}",)

    torch.save({"version": 1, "key": "", "parts": Evil()}, tmp_path / "run")
    with pytest.raises(FormatError, match="is not the checkpoint of a run"):
        ss.compress(make_task(), STEPS, target=None, checkpoint=tmp_path / "run")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_a_step_and_keeps_the_run(number: signal.Signals, tmp_path: Path) -> None:
    class Signal(Hook):
        def on_step(self, epoch: int, step: int) -> None:
            if (epoch, step) == (3, 2):
                os.kill(os.getpid(), number)

    whole, before = ss.compress(make_task(), STEPS, target=None), signal.getsignal(number)
    with pytest.raises(StoppedError, match=f"stopped by {number.name}; the run is kept in") as caught:
        ss.compress(make_task(), STEPS, [Signal()], target=None, checkpoint=tmp_path / "run")
    assert caught.value.signal == number
    assert signal.getsignal(number) is before
    assert same(ss.compress(make_task(), STEPS, target=None, checkpoint=tmp_path / "run"), whole)


def test_a_signal_while_the_last_network_is_judged_is_not_lost(tmp_path: Path) -> None:
    class Signal(Hook):
        def on_epoch(self, record: EpochRecord) -> None:
            if record.epoch == STEPS.retrain.looks:
                os.kill(os.getpid(), signal.SIGTERM)

    whole = ss.compress(make_task(), STEPS, target=None)
    with pytest.raises(StoppedError):
        ss.compress(make_task(), STEPS, [Signal()], target=None, checkpoint=tmp_path / "run")
    assert same(ss.compress(make_task(), STEPS, target=None, checkpoint=tmp_path / "run"), whole)


class Stops(Hook):
    """Ends its training at a look, while a signal comes in one of the sittings."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_epoch(self, record: EpochRecord) -> None:
        if record.epoch == 2:
            if self.number:
                os.kill(os.getpid(), self.number)
            raise StopPhaseError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_look_that_ends_a_training(number: signal.Signals, tmp_path: Path) -> None:
    """The look was judged again, and the history had its record twice."""

    def trained(number: int, path: Path) -> tuple[list[int], dict[str, Tensor]]:
        task, checkpoint = make_task(), Checkpoint(path)
        checkpoint.begin("this")
        with Phases(task, None, [Stops(number)], checkpoint=checkpoint) as phases:
            phases.run(ss.RetrainConfig(epochs=4))
        return [record.epoch for record in phases.history], copy.deepcopy(task.model.state_dict())

    whole = trained(0, tmp_path / "whole")
    with pytest.raises(StoppedError):
        trained(number, tmp_path / "run")
    epochs, state = trained(0, tmp_path / "run")
    assert epochs == whole[0] == [0, 1, 2]
    assert all(torch.equal(t, whole[1][name]) for name, t in state.items())


def test_a_full_disk_costs_a_warning(tmp_path: Path) -> None:
    whole = ss.compress(make_task(), STEPS, target=None)
    missing = Checkpoint(tmp_path / "no folder" / "run", every=0)
    with pytest.warns(UserWarning, match="cannot write .*; the run goes on without a new checkpoint"):
        assert same(ss.compress(make_task(), STEPS, target=None, checkpoint=missing), whole)


def test_other_conditions_are_said(tmp_path: Path) -> None:
    """Another number of threads rounds differently, and the run ended in another file without a word."""
    path, threads = tmp_path / "run", torch.get_num_threads()
    first = Checkpoint(path)
    first.begin("this")
    first.write()
    said: list[str] = []
    Checkpoint(path, say=said.append).begin("this")
    assert said == []
    try:
        torch.set_num_threads(threads + 1)
        Checkpoint(path, say=said.append).begin("this")
    finally:
        torch.set_num_threads(threads)
    assert f"threads {threads} then, {threads + 1} now). The run goes on, but rounds differently" in said.pop()
    Checkpoint(path, say=said.append).begin("this", device="cuda")
    assert "device cpu then, cuda now" in said.pop()
    assert said == []


@pytest.mark.parametrize("every", [-1, "60", True, float("nan")])
def test_an_interval_must_be_seconds(every: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every: expected a number of seconds"):
        Checkpoint(tmp_path / "run", every)
