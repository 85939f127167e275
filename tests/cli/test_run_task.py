"""A run of the command line that goes wrong on its way: what took training to make is never lost."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from cli_runs import RUN_FILES, Refusals, contents, result_of, run, tiny_experiment, write_task, write_trained_task
from softshare._util import files
from softshare.errors import ConfigError
from softshare.report.frames import Frames

SPARE = ("frames.npz", "pretrained.safetensors")
FAST = ("--epochs", 1, "--no-limit")
DIVERGES = ("--epochs", 2, "--no-limit", "--lr-weights", 1e30)


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return tiny_experiment(tmp_path, monkeypatch)


def fail_writes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The disk is full for one kind of file."""
    write = files.write_atomic

    def full(path: Any, data: Any) -> int:
        if Path(path).name == name:
            raise ConfigError(f"cannot write {path}: {os.strerror(errno.ENOSPC)}")
        return write(path, data)

    for module in ("report.frames", "network.checkpoint", "codec.encoding", "result"):
        monkeypatch.setattr(f"softshare.{module}.write_atomic", full)


# An earlier run


def test_a_run_that_diverges_does_not_cost_the_earlier_one(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(copy)
    assert run("compress", write_task(copy.parent), *DIVERGES, "--overwrite", "--out", copy) == 2
    assert contents(copy) == before
    unfinished = copy.parent / ".run.unfinished"
    message = capsys.readouterr().err
    assert "diverged in epoch 1" in message
    assert f"The earlier run in {copy} is unchanged. What this run has trained is in {unfinished}" in message
    assert "last_good.safetensors" in os.listdir(unfinished)
    assert run("compress", write_task(copy.parent), *FAST, "--overwrite", "--out", copy) == 0
    assert sorted(os.listdir(copy)) == RUN_FILES
    assert sorted(p.name for p in copy.parent.iterdir()) == ["net.py", "run"]


def test_a_test_that_fails_does_not_cost_the_earlier_run(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_task(copy.parent, "def task():\n    return make_task(test=lambda model: 1 / 0)")
    before = contents(copy)
    assert run("compress", spec, *FAST, "--overwrite", "--out", copy) == 2
    assert contents(copy) == before
    assert str(copy.parent / ".run.unfinished") in capsys.readouterr().err.replace("\n", "")
    assert sorted(os.listdir(copy.parent / ".run.unfinished")) == sorted([*RUN_FILES, "retraining.run"])


def test_files_of_others_are_refused(copy: Path, tmp_path: Path, refused: Refusals) -> None:
    args = ["compress", write_task(tmp_path), *FAST, "--overwrite", "--out"]
    (tmp_path / "link").symlink_to(copy)
    refused(*args, tmp_path / "link", naming="found a symbolic link")
    (copy / "notes.txt").write_text("mine")
    refused(*args, copy, naming=f"{copy} holds notes.txt")
    (copy / "notes.txt").unlink()
    (copy / "history.csv").write_text("my own,table\n")
    refused(*args, copy, naming=f"{copy} holds history.csv")
    (copy / "history.csv").unlink()
    (tmp_path / ".run.unfinished").symlink_to(tmp_path / "link")
    refused(*args, copy, naming="found a symbolic link")
    refused("compress", write_task(tmp_path), *FAST, "--out", tmp_path, naming="which is no file of a run")


# Steps after the training


def test_a_test_that_fails_does_not_cost_the_network(tmp_path: Path) -> None:
    """The result is then measured on validation data, and says so."""
    spec = write_task(tmp_path, "def task():\n    return make_task(test=lambda model: 1 / 0, dataset='images')")
    assert run("compress", spec, *FAST, "--out", tmp_path / "run") == 2
    assert sorted(os.listdir(tmp_path / "run")) == RUN_FILES
    result = result_of(tmp_path / "run")
    assert result["dataset"] == "images, validation"
    assert result["file_bytes"] == (tmp_path / "run" / "model.sws").stat().st_size


def test_a_film_that_cannot_be_written_costs_a_message(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_writes(monkeypatch, "frames.npz")
    assert run("compress", experiment, *FAST, "--out", tmp_path / "run") == 0
    assert sorted(os.listdir(tmp_path / "run")) == [name for name in RUN_FILES if name != "frames.npz"]
    message = capsys.readouterr().err
    assert message.count("softshare: FrameLog failed (cannot write ") == 1  # not at each epoch
    assert "the film for the report failed" in message


def test_a_drawing_that_fails_costs_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("no such attribute")

    monkeypatch.setattr("softshare.cli.run_task.kept_filters", fail)
    assert run("compress", write_task(tmp_path), *FAST, "--out", tmp_path / "run") == 0
    assert sorted(os.listdir(tmp_path / "run")) == RUN_FILES
    assert "the film for the report failed (AttributeError: no such attribute)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.sws", "retrained.safetensors", "result.json"])
def test_a_full_disk_at_the_end_costs_only_what_does_not_fit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_writes(monkeypatch, name)
    assert run("compress", write_task(tmp_path), *FAST, "--out", tmp_path / "run") == 2
    assert "No space left on device" in capsys.readouterr().err
    left = set(RUN_FILES) - {name}
    assert left - set(SPARE) <= set(os.listdir(tmp_path / "run")) <= left


@pytest.mark.parametrize("least", [1, 2])
def test_on_a_full_disk_files_of_less_worth_make_room_for_the_network(
    least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, the first run into a folder would leave nothing: neither its checkpoint nor its network fits."""
    whole, unfinished = files.write_atomic, tmp_path / ".run.unfinished"

    def write(path: Path, data: bytes) -> int:
        kept = [name for name in SPARE if (unfinished / name).exists()]
        if Path(path).name in ("model.sws", "retrained.safetensors") and len(kept) > 2 - least:
            cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise ConfigError(f"cannot write {path}: {cause.strerror}") from cause
        return whole(path, data)

    for module in ("softshare.codec.encoding", "softshare.network.checkpoint"):
        monkeypatch.setattr(f"{module}.write_atomic", write)
    assert run("compress", write_task(tmp_path), *FAST, "--out", tmp_path / "run") == 0
    assert {"model.sws", "retrained.safetensors", "result.json"} <= set(os.listdir(tmp_path / "run"))
    said = capsys.readouterr().err.replace("\n", " ")
    assert [f"{name} was removed, to make room for the network" in said for name in SPARE] == [True, least == 2]


def test_an_error_in_retraining_does_not_cost_the_pre_training(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("softshare.cli.run_task.compress_task", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            run("compress", experiment, *FAST, "--out", tmp_path / "run")
    assert os.listdir(tmp_path / "run") == ["pretrained.safetensors"]
    before = (tmp_path / "run" / "pretrained.safetensors").read_bytes()
    assert run("compress", experiment, *FAST, "--out", tmp_path / "run") == 0  # from there
    assert (tmp_path / "run" / "pretrained.safetensors").read_bytes() == before


def test_pre_training_is_saved_before_it_is_tested(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such image")

    monkeypatch.setattr("softshare.result.final_error", fail)
    assert run("pretrain", experiment, "--out", tmp_path / "run") == 0
    assert os.listdir(tmp_path / "run") == ["pretrained.safetensors"]
    assert "the test failed (RuntimeError: no such image)" in capsys.readouterr().err


NORMED = """
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3, bias=False))
for k in (0, 3):
    {norm}(model[k])
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "norm", ["weight_norm", "spectral_norm", "parametrizations.weight_norm", "parametrizations.spectral_norm"]
)
def test_a_normed_network_has_a_run_and_a_report(norm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_task(tmp_path, NORMED.format(norm=norm))
    assert run("compress", spec, *FAST, "--out", tmp_path / "run") == 0
    assert "failed" not in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path / "run")) == RUN_FILES
    assert Frames.load(tmp_path / "run" / "frames.npz").merged.size
    assert run("report", tmp_path / "run") == 0
    assert (tmp_path / "run" / "report" / "index.html").is_file()


# Processes

SLOW = """
import time
from pathlib import Path

def task():
    def slow(model, batch):
        Path(__file__).with_name("training").touch()
        end = time.monotonic() + 30
        while Path(__file__).with_name("wait").exists() and time.monotonic() < end:
            time.sleep(0.01)
        return loss(model, batch)
    return make_task(loss=slow)
"""


def start(*args: object, **kwargs: Any) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "softshare", *map(str, args)]
    return subprocess.Popen(command, env=environment, text=True, **kwargs)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_two_runs_in_one_folder_and_one_that_is_killed(copy: Path, refused: Refusals) -> None:
    spec, before = write_task(copy.parent, SLOW), contents(copy)
    args = ["compress", spec, *FAST, "--overwrite", "--out", copy]
    (copy.parent / "wait").touch()
    first = start(*args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(copy.parent / "training")
        refused(*args, naming=[f"{copy} is being written by another run (process {first.pid} on ", "Wait until"])
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert contents(copy) == before
    (copy.parent / "wait").unlink()
    assert run(*args) == 0
    assert sorted(os.listdir(copy)) == RUN_FILES
    assert not [p for p in copy.parent.iterdir() if p.name.startswith(".")]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_below_the_output_costs_a_message(finished: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "softshare", "inspect", str(finished / "model.sws")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [f"softshare: cannot write to standard output: {os.strerror(errno.ENOSPC)}"]


@pytest.mark.slow
def test_a_closed_stream_does_not_end_the_training(tmp_path: Path) -> None:
    spec = write_task(tmp_path, SLOW)
    (tmp_path / "wait").touch()
    training = start(
        *("compress", spec, "--epochs", 20, "--no-limit", "--out", tmp_path / "run"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert training.stdout
    assert training.stderr
    wait_for(tmp_path / "training")
    training.stdout.close()
    training.stderr.close()
    (tmp_path / "wait").unlink()
    assert training.wait(timeout=120) == 0
    assert sorted(os.listdir(tmp_path / "run")) == RUN_FILES
    state = safetensors.torch.load_file(tmp_path / "run" / "retrained.safetensors")
    assert int(state["1.num_batches_tracked"]) == 20 * 4


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("head") is None, reason="needs the program head")
def test_output_that_is_cut_off_is_no_error(finished: Path) -> None:
    shown = start("inspect", finished / "model.sws", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert shown.stdout
    assert shown.stderr
    shown.stdout.close()
    assert shown.stderr.read() == ""
    shown.stderr.close()
    assert shown.wait() == 0


# The exit status


def test_a_broken_network_has_a_status_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where any loss is allowed. A loss that the user allowed is none of the command's business."""
    spec = write_trained_task(tmp_path)
    assert run("compress", spec, "--no-limit", "--steps", 200, "--out", tmp_path / "mild") == 0
    assert result_of(tmp_path / "mild")["outcome"]["broken"] is False
    assert run("compress", spec, "--no-limit", "--steps", 200, "--tau", 1e4, "--out", tmp_path / "broken") == 4
    assert result_of(tmp_path / "broken")["outcome"]["broken"] is True
    assert "The network is broken." in capsys.readouterr().out


def test_a_loss_on_the_test_data_has_a_status_of_its_own(tmp_path: Path) -> None:
    """The validation data see nothing of it."""
    spec = write_trained_task(tmp_path)
    (tmp_path / "trained.py").write_text(
        (tmp_path / "trained.py").read_text()
        + """

import dataclasses
make = task


def task():
    own = make()
    return dataclasses.replace(own, test=lambda m: 2.0 if m is own.model else 30.0, noise=lambda m: 1.0)
"""
    )
    assert run("compress", spec, "--steps", 40, "--out", tmp_path / "strict") == 4
    assert run("compress", spec, "--steps", 40, "--max-bytes", 5000, "--out", tmp_path / "small") == 0
