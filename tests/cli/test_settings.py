"""Settings that travel: `softshare config`, presets, `--config`, and runs that are repeated from their result."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from cli_runs import Refusals, finished_run, result_of, run, tiny_experiment, write_task
from paths import ROOT
from softshare.cli.settings import PRESETS, Settings, preset_config, read_settings, recorded_target
from softshare.cli.training import _recorded_pretraining
from softshare.config import CompressConfig
from softshare.config.text import HINTS, from_toml
from softshare.result import Result
from softshare.target.limits import MaxBytes, MaxError, MaxErrorIncrease, MaxMacs, Outcome, WithinNoise
from softshare.task import Metric
from softshare.zoo import experiments


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # no folder beside the user's files


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return tiny_experiment(tmp_path, monkeypatch)


def settings_of(folder: Path) -> CompressConfig:
    config = result_of(folder)["config"]
    return CompressConfig.from_dict({name: config[name] for name in config if name not in ("task", "pretrain")})


# softshare config


def test_config_prints_every_preset_as_toml(capsys: pytest.CaptureFixture[str]) -> None:
    for name in PRESETS:
        assert run("config", name) == 0
        found = from_toml(capsys.readouterr().out, name)
        assert list(found) == [setting for setting in HINTS if setting in found or setting != "steps"]
        assert ("steps" in found) == (found["epochs"] is None)  # one of them is the length
        assert CompressConfig().override(**found) == preset_config(name)
    assert PRESETS == ("default", "paper", "lenet-300-100", "lenet-5-caffe", "wrn-16-4", "mobile-100k")
    assert run("config") == 0
    assert CompressConfig().override(**from_toml(capsys.readouterr().out, "default")) == CompressConfig()
    assert preset_config("paper") == CompressConfig.paper()
    assert preset_config("wrn-16-4") == experiments.EXPERIMENTS["wrn-16-4"].compress


# --config


def test_options_override_set_and_set_overrides_the_file(tmp_path: Path) -> None:
    """What the file leaves out comes from the defaults."""
    (tmp_path / "my.toml").write_text("tau = 0.1\ncomponents = 3\nepochs = 1\n[retrain]\nlr_weights = 2e-3")
    args = ["--config", tmp_path / "my.toml", "--set", "tau=0.2", "--set", "lr_weights=0.004", "--lr-weights", "0.003"]
    assert run("compress", write_task(tmp_path), *args, "--no-limit", "--out", tmp_path / "run") == 0
    expected = CompressConfig().override(tau=0.2, components=3, epochs=1, lr_weights=3e-3)
    assert settings_of(tmp_path / "run") == expected
    assert result_of(tmp_path / "run")["method"] == "softshare"


def test_the_length_that_an_option_names_replaces_that_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every printed preset can be read, and its length changed in both ways."""
    for preset in ("default", "paper", "lenet-300-100"):
        assert run("config", preset) == 0
        (tmp_path / "my.toml").write_text(capsys.readouterr().out)
        settings, base = read_settings(str(tmp_path / "my.toml")), CompressConfig()
        assert settings.applied(base, {}) == preset_config(preset)
        assert settings.applied(base, {"epochs": 7}) == preset_config(preset).override(epochs=7)
        assert settings.applied(base, {"steps": 70}).retrain.looks == 10
        assert settings.applied(base, {"steps": 70}).retrain.epochs is None


def test_the_recorded_target(finished: Path) -> None:
    result = Result.load(finished / "result.json")
    for target in (None, WithinNoise(), MaxBytes(9), MaxError(2.5), MaxErrorIncrease(0.5), MaxMacs(0.5)):
        outcome = Outcome(target, Metric(), 1.0, 1.0, 0.1, 9.0, 8).to_dict()
        assert recorded_target(dataclasses.replace(result, outcome=json.loads(json.dumps(outcome)))) == target
    old = {"target": {"max_error": 2.5}, "limit": 2.5, "reached": 2.0, "met": True}
    assert recorded_target(dataclasses.replace(result, outcome=old)) == MaxError(2.5)
    assert recorded_target(dataclasses.replace(result, outcome=None)) is None


def test_what_cannot_be_read_is_refused(tmp_path: Path, refused: Refusals) -> None:
    task, out = write_task(tmp_path), ("--out", tmp_path / "run")
    (tmp_path / "bad.toml").write_text("tau = 'x'")
    (tmp_path / "image.toml").write_bytes(b"\x89PNG")
    (tmp_path / "other.json").write_text("{}")
    for source, naming in (
        ("papers", "expected a file or a preset (default, paper, lenet-300-100, lenet-5-caffe, wrn-16-4, mobile-100k)"),
        (tmp_path / "missing.toml", f"there is no file {tmp_path / 'missing.toml'}"),
        (tmp_path / "bad.toml", f"{tmp_path / 'bad.toml'}: tau: expected a number, got 'x'"),
        (tmp_path / "image.toml", f"{tmp_path / 'image.toml'} is not a TOML file"),
        (tmp_path / "other.json", f"{tmp_path / 'other.json'} is not a result"),
    ):
        refused("compress", task, "--config", source, *out, naming=naming)
    refused("config", "papers", naming="expected a preset (default, paper, ")


# A run, repeated


def test_a_users_run_is_repeated_to_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    """In another folder, from the task that the user names again. Options still change it."""
    task, config = write_task(tmp_path), ("--config", finished / "result.json")
    assert run("compress", task, *config, "--out", tmp_path / "again") == 0
    for file in ("model.sws", "retrained.safetensors"):
        assert (tmp_path / "again" / file).read_bytes() == (finished / file).read_bytes()
    assert result_of(tmp_path / "again")["config"] == result_of(finished)["config"]
    assert run("compress", task, *config, "--epochs", 1, "--out", tmp_path / "short") == 0
    assert settings_of(tmp_path / "short") == settings_of(finished).override(epochs=1)


def test_the_target_is_repeated_too(tmp_path: Path) -> None:
    task, options = write_task(tmp_path), ("--epochs", 2, "--zero-mixing", 0.5, "--max-error", 100)
    assert run("compress", task, *options, "--out", tmp_path / "run") == 0
    config = ("--config", tmp_path / "run" / "result.json")
    assert run("compress", task, *config, "--out", tmp_path / "again") == 0
    assert result_of(tmp_path / "again")["outcome"] == result_of(tmp_path / "run")["outcome"]
    assert (tmp_path / "again" / "model.sws").read_bytes() == (tmp_path / "run" / "model.sws").read_bytes()


def test_an_experiment_is_repeated_without_its_name(experiment: str, tmp_path: Path) -> None:
    """With its seed, its task options and its pre-training."""
    options = ("--epochs", 1, "--seed", 3, "--label-smoothing", 0.1, "--set", "components=3", "--no-limit")
    assert run("compress", experiment, *options, "--out", tmp_path / "run") == 0
    assert run("compress", "--config", tmp_path / "run" / "result.json", "--out", tmp_path / "again") == 0
    first, second = result_of(tmp_path / "run"), result_of(tmp_path / "again")
    assert first["config"]["task"]["label_smoothing"] == 0.1
    assert first["config"]["pretrain"]["seed"] == 3
    for field in ("experiment", "seed", "config", "error_before", "error_after"):
        assert second[field] == first[field]
    for file in ("pretrained.safetensors", "model.sws"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "run" / file).read_bytes()


def test_a_users_task_must_be_named_again(finished: Path, tmp_path: Path, refused: Refusals) -> None:
    """A result must not choose which Python file runs. The message is the command to type, and it works."""
    source = finished / "result.json"
    message = refused("compress", "--config", source, naming="which is not an experiment. Name the task: softshare")
    program, *command = shlex.split(message.partition("Name the task: ")[2])
    assert program == "softshare"
    assert command == ["compress", f"{finished.parent / 'net.py'}:task", "--config", str(source)]
    assert run(*command, "--out", tmp_path / "again", "--epochs", 1) == 0
    (tmp_path / "named.json").write_text(json.dumps({**result_of(finished), "experiment": "my network"}))
    refused("compress", "--config", tmp_path / "named.json", naming="compress FILE.py:make_task --config")


def test_another_pre_training_is_refused(
    experiment: str, finished: Path, tmp_path: Path, refused: Refusals, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that began from a file needs that file, whatever its name; one that was pre-trained needs no file."""
    task, weights = write_task(tmp_path), finished / "retrained.safetensors"
    first = tmp_path / "first"
    assert run("compress", task, "--weights", weights, "--epochs", 1, "--no-limit", "--out", first) == 0
    again = ["compress", task, "--config", first / "result.json", "--out", tmp_path / "again"]
    refused(*again, naming=["started from retrained.safetensors with SHA-256 ", "Give that file with --weights"])
    refused(*again, "--weights", finished / "pretrained.safetensors", naming="started from retrained.safetensors")
    (tmp_path / "copy.safetensors").write_bytes(weights.read_bytes())
    assert run(*again, "--weights", tmp_path / "copy.safetensors") == 0
    assert (tmp_path / "again" / "model.sws").read_bytes() == (first / "model.sws").read_bytes()

    assert run("compress", experiment, "--epochs", 1, "--no-limit", "--out", tmp_path / "run") == 0
    again = ["compress", "--config", tmp_path / "run" / "result.json", "--out", tmp_path / "other"]
    given = tmp_path / "run" / "pretrained.safetensors"
    refused(*again, "--weights", given, naming="pre-trained its network in another way than this run would")


def test_results_of_other_methods_are_refused(finished: Path, tmp_path: Path, refused: Refusals) -> None:
    values = result_of(finished)
    for changes, naming in (
        (
            {"config": {"version": 4, "sparsity": 0.9}},
            "expected settings of `softshare compress`: config: expected fields",
        ),
        (
            {"outcome": {"target": {"most": 3}}},
            'expected a target of `softshare compress` in the result, got {"most": 3}',
        ),
    ):
        (tmp_path / "result.json").write_text(json.dumps(dict[str, Any](values, **changes)))
        refused("compress", write_task(tmp_path), "--config", tmp_path / "result.json", naming=naming)


def test_a_run_with_another_task_seed_or_start_is_no_repeat() -> None:
    recorded = {"weights": "a.safetensors", "sha256": "0" * 64}
    kept = Result.load(next((ROOT / "results" / "lenet-300-100" / "softshare").glob("*/result.json")))
    settings = Settings(result=dataclasses.replace(kept, config={**kept.config, "pretrain": recorded}))
    assert _recorded_pretraining("lenet-300-100", settings, {}, False) == recorded
    assert _recorded_pretraining("lenet-300-100", settings, {"seed": 1}, False) is None
    assert _recorded_pretraining("lenet-300-100", settings, {}, True) is None
    assert _recorded_pretraining("my_task.py:make_task", settings, {}, False) is None
    assert _recorded_pretraining("lenet-300-100", Settings(), {}, False) is None
