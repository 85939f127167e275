"""Several trainings in a row are one history."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.config import RetrainConfig
from softshare.errors import ConfigError
from softshare.task import Task
from softshare.train.hooks import EpochRecord, Hook, StopPhaseError
from softshare.train.phases import Phases


class Recorder(Hook):
    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails_at = fails_at

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self.calls.append(("start", epochs, steps_per_epoch))

    def on_step(self, epoch: int, step: int) -> None:
        self.calls.append(("step", epoch, step))
        if epoch == self.fails_at:
            raise KeyboardInterrupt

    def on_epoch(self, record: EpochRecord) -> None:
        self.calls.append(("epoch", record.epoch))

    def on_end(self) -> None:
        self.calls.append(("end",))


def make_task() -> Task:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return F.mse_loss(model(batch), batch[:, :1])

    return Task(nn.Linear(3, 1), list(x.split(4)), loss, lambda model: 1.0, 8)


def run(recorder: Recorder) -> Phases:
    with Phases(make_task(), 3, [recorder]) as phases:
        phases.run(RetrainConfig(epochs=1))
        phases.run(RetrainConfig(epochs=2))
    return phases


def test_hooks_see_one_history_with_a_record_at_the_start_of_each_phase() -> None:
    recorder = Recorder()
    assert [r.epoch for r in run(recorder).history] == [0, 1, 1, 2, 3]
    assert recorder.calls[0] == ("start", 3, 2)
    assert [call[1] for call in recorder.calls if call[0] == "epoch"] == [0, 1, 1, 2, 3]
    assert [call[1:] for call in recorder.calls if call[0] == "step"] == [(e, s) for e in (1, 2, 3) for s in (1, 2)]
    kinds = [call[0] for call in recorder.calls]
    assert (kinds.count("start"), kinds.count("end"), kinds[-1]) == (1, 1, "end")


@pytest.mark.parametrize("fails_at", [1, 3])
def test_hooks_hear_of_the_end_after_an_error_in_any_phase(fails_at: int) -> None:
    recorder = Recorder(fails_at)
    with pytest.raises(KeyboardInterrupt):
        run(recorder)
    assert [call[0] for call in recorder.calls].count("end") == 1
    assert recorder.calls[-1] == ("end",)


def test_hooks_hear_nothing_of_a_training_that_did_not_begin() -> None:
    recorder = Recorder()
    with (
        pytest.raises(ConfigError, match=r"capture: .* CUDA GPU"),
        Phases(make_task(), 1, [recorder]) as phases,
    ):
        phases.run(RetrainConfig(capture=True))
    assert recorder.calls == []


class Stops(Hook):
    def __init__(self, *at: int) -> None:
        self.at = at

    def on_epoch(self, record: EpochRecord) -> None:
        if record.epoch in self.at:
            raise StopPhaseError


@pytest.mark.parametrize("last", [True, False])
def test_a_hook_may_end_a_phase(last: bool) -> None:
    """The next one goes on from there. Hooks before it and after it have seen the record."""
    recorder = Recorder()
    with Phases(make_task(), 6, [recorder, Stops(2)] if last else [Stops(2), recorder]) as phases:
        phases.run(RetrainConfig(epochs=4))
        assert [r.epoch for r in phases.history] == [0, 1, 2]
        phases.hooks = [recorder]
        phases.run(RetrainConfig(epochs=2))
    assert [r.epoch for r in phases.history] == [0, 1, 2, 2, 3, 4]
    assert [call[1] for call in recorder.calls if call[0] == "epoch"] == [0, 1, 2, 2, 3, 4]
    assert [call[0] for call in recorder.calls].count("end") == 1


def test_without_a_number_of_epochs_each_run_starts_anew_for_the_hooks() -> None:
    recorder = Recorder()
    with Phases(make_task(), None, [recorder]) as phases:
        phases.run(RetrainConfig(epochs=1))
        phases.run(RetrainConfig(steps=4))
        phases.on_return(3)
    assert [call for call in recorder.calls if call[0] == "start"] == [("start", 1, 2), ("start", 4, 1)]
    assert [call[1] for call in recorder.calls if call[0] == "epoch"] == [0, 1, 1, 2, 3, 4, 5]
    assert recorder.calls[-1] == ("end",)


def in_unit(task: Task, unit: float) -> Task:
    return dataclasses.replace(task, loss=lambda model, batch: task.loss(model, batch) / unit)


def test_the_history_has_the_loss_in_the_users_unit() -> None:
    histories = []
    for unit in (1.0, 8.0):
        torch.manual_seed(0)
        with Phases(in_unit(make_task(), unit), 2, [], unit) as phases:
            phases.run(RetrainConfig(epochs=2, lr_weights=1e-12))
        histories.append([r.task_loss for r in phases.history[1:]])
    assert histories[1] == pytest.approx(histories[0], rel=1e-6)
