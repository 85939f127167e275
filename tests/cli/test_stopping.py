"""Ctrl-C: one line that says what was kept and how to go on, and the exit status of the signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_runs import copied, run, write_task
from softshare.cli.stopping import AGAIN, AGAIN_TO_GO_ON, RESUME, stopping
from softshare.train.hooks import EpochRecord

STOPPED = 128 + signal.SIGINT


def interrupt(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("softshare: ")]
    return line.removeprefix("softshare: ")


def test_nothing_happens_without_a_signal() -> None:
    with stopping():
        pass
    with pytest.raises(ValueError, match="other"), stopping():
        raise ValueError("other")


# Commands that keep something


def test_a_second_interrupt_of_compress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one waits for the end of a step, and tests/cli/test_resume.py has it. The second does not wait."""
    spec, folder = write_task(tmp_path), tmp_path / "run"
    args = ("compress", spec, "--epochs", 2, "--no-limit", "--checkpoint-every", 0, "--out", folder)
    monkeypatch.setattr("softshare.cli.run_task.compress_task", interrupt)
    assert run(*args) == STOPPED
    assert said(capsys) == f"stopped. Nothing new was kept. {AGAIN}"
    monkeypatch.undo()

    def late(hook: Any, record: EpochRecord) -> None:
        if record.epoch == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("softshare.train.progress.CsvLog.on_epoch", late)
        assert run(*args, "--overwrite") == STOPPED
    kept = tmp_path / ".run.unfinished" / "retraining.run"
    assert said(capsys) == f"stopped. The run is kept in {kept}, as it was when that was written. {RESUME}"
    assert run(*args, "--resume") == 0
    assert not folder.with_name(".run.unfinished").exists()


def test_compress_in_its_final_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("softshare.cli.run_task.measure", interrupt)
    assert run("compress", write_task(tmp_path), "--epochs", 1, "--no-limit", "--out", tmp_path / "run") == STOPPED
    model = tmp_path / ".run.unfinished" / "model.sws"
    assert model.exists()
    assert said(capsys) == (
        f"stopped. The compressed network is in {model}, but it was not measured. Move it away to keep it, or give the "
        "same command with --overwrite"
    )


def test_the_demo_has_no_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It resumes by itself."""
    folder = tmp_path / ".demo.unfinished"

    def pretrain(*_: object, **__: object) -> None:
        (folder / "pretraining.run").write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr("softshare.cli.run_task.pretrain_into", pretrain)
    assert run("demo", "--out", tmp_path / "demo") == STOPPED
    text = said(capsys)
    assert str(folder / "pretraining.run") in text
    assert text.endswith(AGAIN_TO_GO_ON)


def test_pretrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("softshare.cli.run_task.pretrain_into", interrupt)
    assert run("pretrain", "lenet-300-100", "--out", tmp_path / "run") == STOPPED
    assert said(capsys) == f"stopped. Nothing new was kept. {AGAIN}"


def test_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="needs optuna: pip install 'softshare[tune]'")
    monkeypatch.setattr("softshare.tune.search.tune", interrupt)
    assert run("tune", write_task(tmp_path), "--out", tmp_path / "study") == STOPPED
    assert said(capsys) == (
        f"stopped. Finished trials are kept in {tmp_path / 'study'}. Give the same command again to go on"
    )


def test_reproduce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def results(*_: object, **__: object) -> Iterator[Any]:
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr("softshare.paper.reproduce.reproduce", results)
    assert run("reproduce", "lenet-300-100", "--out", tmp_path) == STOPPED
    assert said(capsys) == f"stopped. Finished results are kept in {tmp_path}. Give the same command again to go on"


# Commands that only read, or write at their end


def test_verify_says_how_far_it_came(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from softshare.paper import verify

    copied(finished, tmp_path)
    (tmp_path / "run").rename(tmp_path / "a")
    copied(finished, tmp_path)
    plain = verify.verify

    def one(*args: Any) -> Iterator[verify.Check]:
        yield next(iter(plain(*args)))
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "verify", one)
    assert run("verify", tmp_path, "--task", f"{finished.parent / 'net.py'}:task") == STOPPED
    assert said(capsys) == f"stopped. 1 of 2 runs were checked, and 1 agree with their results. {AGAIN}"


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("quantize", "softshare.datafree.compress_weights.compress_weights"),
        ("inspect", "softshare.codec.inspect"),
        ("evaluate", "softshare.result.final_error"),
        ("report", "softshare.report.write.write_report"),
    ],
)
def test_other_commands(
    command: str, function: str, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: dict[str, list[object]] = {
        "quantize": [copy / "pretrained.safetensors"],
        "inspect": [copy / "model.sws"],
        "evaluate": [copy, "--trust"],
        "report": [copy],
    }
    monkeypatch.setattr(function, interrupt)
    assert run(command, *arguments[command]) == STOPPED
    assert said(capsys) == f"stopped. Nothing new was kept. {AGAIN}"
