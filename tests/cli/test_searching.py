"""`softshare tune`: a study of a task, its folder, and what is refused before anything is trained."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cli_runs import run, tiny_experiment, write_task
from softshare.cli.stopping import AGAIN_TO_GO_ON
from softshare.config import CompressConfig, Gamma, RetrainConfig
from softshare.result import Result
from softshare.zoo import experiments
from softshare.zoo.datasets import load_mnist


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr("softshare.tune.study_folder.can_draw", lambda: False)  # figures take most of the time


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> str:
    """256 examples of each part of MNIST, one batch, and a pre-training of one epoch."""
    train, validation, test = (split[torch.arange(256)] for split in load_mnist())
    monkeypatch.setattr(experiments, "load_mnist", lambda: (train, validation, test))
    short = RetrainConfig(epochs=1, lr_weights=2e-3)
    short_one = dataclasses.replace(experiments.EXPERIMENTS["lenet-300-100"], pretrain=short)
    monkeypatch.setitem(experiments.EXPERIMENTS, "lenet-300-100", short_one)
    return "lenet-300-100"


def results(folder: Path) -> list[Result]:
    return [Result.load(path) for path in sorted(folder.glob("*/result.json"))]


@pytest.mark.slow
def test_a_study_of_a_users_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings from a file, from --set and from options are held, and the others are searched."""
    (tmp_path / "my.toml").write_text("width = 0.02\ncomponents = 3")
    held = ["--config", tmp_path / "my.toml", "--set", "tau=0.1", "--epochs", 1]
    args = ["tune", write_task(tmp_path), "--out", tmp_path / "s", *held, "--error-bound", 100, "--no-symmetries"]
    assert run(*args, "--trials", 2) == 0
    out, err = capsys.readouterr()
    assert "The front of 2 trials" in out
    assert "trials were pruned. All trials are in" in out.replace("\n", " ")
    assert "trial 0: error" in err
    header = (tmp_path / "s" / "summary.csv").read_text().splitlines()[0].split(",")
    assert "lr_means" in header
    assert not {"width", "components", "tau", "epochs"} & set(header)
    kept = results(tmp_path / "s" / "trials")
    assert len({str(result.config) for result in kept}) == 2
    for result in kept:
        config = CompressConfig.from_dict(result.config)
        assert (config.prior.width, config.prior.components, config.retrain.tau) == (0.02, 3, 0.1)


@pytest.mark.slow
def test_an_experiment(
    mnist: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["tune", mnist, "--out", tmp_path / "s", "--epochs", 1, "--width", 0.02, "--error-bound", 100]
    args.append("--no-symmetries")  # these would take most of the time
    assert run(*args, "--trials", 1, "--device", "cpu") == 0
    monkeypatch.setattr("softshare.zoo.experiments.pretrain_", lambda *_: pytest.fail("it was pre-trained twice"))
    assert run(*args, "--trials", 2, "--device", "cpu") == 0
    kept = results(tmp_path / "s" / "trials")
    assert [(r.experiment, r.method, r.dataset) for r in kept] == [(mnist, "softshare", "MNIST, validation")] * 2
    for result in kept:
        assert result.config["task"]["label_smoothing"] == 0.05
        assert (result.config["prior"]["width"], result.config["retrain"]["epochs"]) == (0.02, 1)  # held
    capsys.readouterr()
    assert run("verify", tmp_path / "s" / "front") == 0  # it measures the same bytes and test errors
    assert "could not be measured" not in capsys.readouterr().out


def test_a_pre_training_that_was_stopped_goes_on(
    mnist: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began anew. The trials must start from the network of a study that was never stopped."""
    long = dataclasses.replace(experiments.EXPERIMENTS[mnist].pretrain, epochs=4)
    monkeypatch.setitem(
        experiments.EXPERIMENTS, mnist, dataclasses.replace(experiments.EXPERIMENTS[mnist], pretrain=long)
    )
    monkeypatch.setattr("softshare.tune.search._Search.run", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    seen: list[tuple[int, int]] = []

    def begun(name: str, stops_at: tuple[int, int] = (0, 0)) -> int:
        def on_step(hook: object, epoch: int, step: int) -> None:
            seen.append((epoch, step))
            if (epoch, step) == stops_at:
                os.kill(os.getpid(), signal.SIGTERM)

        seen.clear()
        with monkeypatch.context() as patch:
            patch.setattr("softshare.train.progress.ProgressBar.on_step", on_step)
            assert run("tune", mnist, "--out", tmp_path / name, "--device", "cpu") == 128 + signal.SIGTERM
        return len(seen)

    whole, file, checkpoint = begun("whole"), "pretrained.safetensors", tmp_path / "s" / "pretraining.run"
    first = begun("s", (3, 1))
    assert f"the run is kept in {checkpoint}. {AGAIN_TO_GO_ON}" in capsys.readouterr().err
    assert checkpoint.exists()
    assert first + begun("s") == whole
    assert not checkpoint.exists()
    assert (tmp_path / "s" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@pytest.mark.slow
def test_the_papers_settings(mnist: str, tmp_path: Path) -> None:
    held = ["--epochs", 1, "--free-precision-prior", "alpha=9,beta=2"]
    args = ["tune", mnist, "--config", "paper", "--out", tmp_path / "s", *held, "--error-bound", 100]
    assert run(*args, "--trials", 2, "--device", "cpu", "--sampler", "tpe") == 0
    header = (tmp_path / "s" / "summary.csv").read_text().splitlines()[0].split(",")
    assert {"mixing_prior.free", "zero_precision_prior.std", "init_std"} <= set(header)
    assert not {"width", "hard_from", "zeroing", "epochs", "free_precision_prior.std"} & set(header)
    kept = results(tmp_path / "s" / "trials")
    assert len(kept) == 2
    for result in kept:
        assert result.method == "paper"
        assert "task" not in result.config  # labels are not smoothed
        config = CompressConfig.from_dict(result.config)
        assert config.prior.free_precision_prior == Gamma(9, 2)
        assert config.prior.width is None


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them come before the pre-training."""
    experiment = tiny_experiment(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("softshare.zoo.experiments.pretrain_", lambda *_: pytest.fail("it was pre-trained"))
    for args, naming in (
        ([experiment, "--sampler", "grid"], "Invalid value for '--sampler'"),
        ([experiment, "--trials", 0], "trials: expected at least 1"),
        (["lenet-9"], "expected one of lenet-300-100"),
        ([experiment, "--storage", "nowhere"], "the study's storage: "),
        ([experiment, "--width", "0"], "width: expected a number above 0"),
        ([experiment, "--config", "papers"], "--config: expected a file or a preset"),
    ):
        assert run("tune", *args) == 2
        message = capsys.readouterr().err
        assert naming in message
        assert "Traceback" not in message


def changed(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as base:
            base.execute(statement)

    return change


def other_program(path: Path) -> None:
    path.unlink()
    changed("CREATE TABLE studies (mine TEXT)")(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("not a database"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "flipped": lambda path: path.write_bytes(bytes(b ^ 255 for b in path.read_bytes())),
    "of another program": other_program,
    "one objective": changed("DELETE FROM study_directions WHERE objective = 1"),
    "settings that are no JSON": changed("UPDATE study_user_attributes SET value_json = '{'"),
    "an unknown state": changed("UPDATE trials SET state = 'ASLEEP'"),
    "a figure that is a text": changed('UPDATE trial_user_attributes SET value_json = \'{"file_bytes": "x"}\''),
    "another version": changed("UPDATE alembic_version SET version_num = 'v99'"),
}


@pytest.mark.slow
def test_a_damaged_storage_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, whether the database or Optuna finds it out."""
    args = ["tune", write_task(tmp_path), "--out", tmp_path / "s", "--epochs", 1, "--trials", 1, "--error-bound", 100]
    assert run(*args) == 0
    path = tmp_path / "s" / "study.db"
    whole = path.read_bytes()
    for name, damage in DAMAGES.items():
        path.write_bytes(whole)
        damage(path)
        capsys.readouterr()
        assert run(*args) == 2, name
        (message,) = [line for line in capsys.readouterr().err.splitlines() if "pre-trained weights" not in line]
        assert message.startswith("softshare: the study's storage: "), name
        assert len(message) < 400, name
