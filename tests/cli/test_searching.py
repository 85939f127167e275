from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest
import torch

from softshare.cli import main
from softshare.config import CompressConfig, Gamma, RetrainConfig
from softshare.result import Result
from softshare.zoo import experiments
from softshare.zoo.datasets import load_mnist


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


@pytest.fixture(autouse=True)
def _mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 examples of each part of MNIST, one batch, and a pre-training of one epoch."""
    train, validation, test = (split[torch.arange(256)] for split in load_mnist())
    monkeypatch.setattr(experiments, "load_mnist", lambda: (train, validation, test))
    short = RetrainConfig(epochs=1, lr_weights=2e-3)
    short_one = dataclasses.replace(experiments.EXPERIMENTS["lenet-300-100"], pretrain=short)
    monkeypatch.setitem(experiments.EXPERIMENTS, "lenet-300-100", short_one)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", None)


def results(folder: Path) -> list[Result]:
    return [Result.load(path) for path in sorted(folder.glob("*/result.json"))]


def test_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["tune", "lenet-300-100", "--out", tmp_path / "s", "--epochs", 1, "--width", 0.02, "--error-bound", 100]
    args.append("--no-symmetries")  # most of the time would be theirs, and most of the rest the figures'
    monkeypatch.setattr("softshare.tune.study_folder.can_draw", lambda: False)
    assert run(*args, "--trials", 1, "--device", "cpu") == 0
    out, err = capsys.readouterr()
    assert "The front of 1 trials" in out
    assert "trial 0: error" in err
    monkeypatch.setattr("softshare.zoo.experiments.pretrain_", lambda *_: pytest.fail("it was pre-trained twice"))
    assert run(*args, "--trials", 2, "--device", "cpu") == 0
    kept = results(tmp_path / "s" / "trials")
    assert [(r.experiment, r.method, r.dataset) for r in kept] == [
        ("lenet-300-100", "softshare", "MNIST, validation")
    ] * 2
    for result in kept:
        assert result.config["task"]["label_smoothing"] == 0.05
        assert (result.config["prior"]["width"], result.config["retrain"]["epochs"]) == (0.02, 1)  # held
    assert len({str(r.config) for r in kept}) == 2
    capsys.readouterr()
    assert run("verify", tmp_path / "s" / "front") == 0  # bytes and test errors as measured anew
    assert "could not be measured" not in capsys.readouterr().out


def test_the_papers_settings(tmp_path: Path) -> None:
    held = ["--epochs", 1, "--free-precision-prior", "alpha=9,beta=2"]
    args = ["tune", "lenet-300-100", "--config", "paper", "--out", tmp_path / "s", *held, "--error-bound", 100]
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


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        (["tune", "lenet-300-100", "--sampler", "grid"], "Invalid value for '--sampler'"),
        (["tune", "lenet-300-100", "--trials", 0], "trials: expected at least 1"),
        (["tune", "lenet-9"], "expected one of lenet-300-100"),
        (["tune", "lenet-300-100", "--storage", "nowhere"], "the study's storage: "),  # before anything is trained
        (["tune", "lenet-300-100", "--width", "0"], "width: expected a number above 0"),
    ],
)
def test_refusals(
    args: list[object], naming: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("softshare.zoo.experiments.pretrain_", lambda *_: pytest.fail("it was pre-trained"))
    assert run(*args) == 2
    message = capsys.readouterr().err
    assert naming in message
    assert "Traceback" not in message


def test_the_help(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = io.StringIO()
    monkeypatch.setattr("sys.stdout", capture)
    assert run("tune", "--help") == 0
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capture.getvalue()).split())
    for flag in ("--trials", "--sampler", "--error-bound", "--storage", "--study", "--weights", "--config", "--tau"):
        assert flag in text
