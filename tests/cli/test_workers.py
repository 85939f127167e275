"""`softshare tune --workers N`: which devices and words the other processes get, and that they share the study."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
import torch

import tuning
from cli_runs import run
from softshare.cli.workers import OWN, devices_of, words_without
from softshare.errors import ConfigError


@pytest.mark.parametrize(
    ("workers", "devices", "device", "gpus", "expected"),
    [
        (1, None, "auto", 4, ["auto"]),
        (3, None, "auto", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        (2, None, "auto", 0, ["auto", "auto"]),
        (2, None, "cpu", 2, ["cpu", "cpu"]),
        (4, "0,2", "auto", 4, ["cuda:0", "cuda:2", "cuda:0", "cuda:2"]),
        (2, "cpu", "auto", 0, ["cpu", "cpu"]),
    ],
)
def test_devices(
    workers: int, devices: str | None, device: str, gpus: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert devices_of(workers, devices, device) == expected


@pytest.mark.parametrize(("workers", "devices", "device"), [(0, None, "auto"), (2, "0,,1", "auto"), (2, "0", "cpu")])
def test_devices_that_cannot_be(workers: int, devices: str | None, device: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        devices_of(workers, devices, device)


def test_the_words_of_the_others() -> None:
    command = "softshare tune 'my task.py:f' --workers 4 --out=s --devices=0,1 --device cpu --trials 3"
    assert words_without(command, OWN) == ["tune", "my task.py:f", "--out=s", "--trials", "3"]


@pytest.mark.slow
def test_workers_share_a_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """None is lost, none is run twice, and one process writes the table."""
    args = ["tune", f"{tuning.__file__}:make_task", "--out", tmp_path / "s", "--trials", 6, "--epochs", 2]
    args += ["--backend", "torch", "--width", 0.15, "--error-bound", 100, "--workers", 2, "--devices", "cpu"]
    assert run(*args) == 0
    out, err = capfd.readouterr()
    assert out.count("The front of 6 trials") == 1
    assert err.count("trial ") >= 6
    storage = f"sqlite:///{tmp_path / 's' / 'study.db'}"
    trials = optuna.load_study(study_name=optuna.get_all_study_names(storage)[0], storage=storage).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 6
    assert len({str(trial.params) for trial in trials}) == 6


@pytest.mark.slow
def test_after_an_error_no_worker_goes_on(tmp_path: Path) -> None:
    args = ["tune", f"{tuning.__file__}:no_such_task", "--out", tmp_path / "s", "--workers", 2]
    assert run(*args) == 2
