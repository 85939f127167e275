"""The log for TensorBoard, read back by TensorBoard."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from report_runs import compress
from softshare.errors import NotAvailableError
from softshare.integrations import TensorBoardLog
from softshare.report.run import Run
from softshare.task import Metric
from softshare.train.hooks import EpochRecord


def test_tensorboard_reads_the_history(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = Run.load(compress(tmp_path, "--tensorboard", tmp_path / "events"))
    read = EventAccumulator(str(tmp_path / "events"))
    read.Reload()
    names = [name for name in run.history[0] if name != "epoch"]
    assert set(names) <= set(read.Tags()["scalars"])
    for name in names:
        rows = [row for row in run.history if row[name] == row[name]]  # there is no task loss before the first step
        events = read.Scalars(name)
        assert [event.step for event in events] == [row["epoch"] for row in rows], name
        assert [event.value for event in events] == pytest.approx([row[name] for row in rows], rel=1e-6), name
    assert len(read.Scalars("task_loss")) == 4


def test_several_runs_are_one_log(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoardLog(tmp_path)
    for start in (0, 1):
        log.on_start(1, 1)
        for look in (start, start + 1):
            log.on_epoch(EpochRecord(look, 0.0, 0.0, math.nan, 0.0, 0.0, 10.0 * start + look, 0))
    log.on_end()
    assert len(list(tmp_path.iterdir())) == 1
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(e.step, e.value) for e in read.Scalars("validation_error")] == [(0, 0), (1, 1), (1, 11), (2, 12)]


def test_without_tensorboard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softshare.integrations.log.find_spec", lambda _: None)
    with pytest.raises(NotAvailableError, match=r"softshare\[tensorboard\]"):
        TensorBoardLog(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_curve_of_a_metric_has_its_name(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoardLog(tmp_path, Metric("accuracy", "%", True))
    log.on_start(1, 1)
    log.on_epoch(EpochRecord(0, 0.0, 0.0, math.nan, 0.0, 0.0, 97.5, 0))
    log.on_end()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert "validation_error" not in read.Tags()["scalars"]
    assert [event.value for event in read.Scalars("validation_accuracy")] == [97.5]
