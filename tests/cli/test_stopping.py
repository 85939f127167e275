"""Ctrl-C and SIGTERM: one line that says what was kept and how to go on, and the exit status of the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import typer

from cli_runs import copied, run, write_task
from softshare._util.words import AGAIN
from softshare.cli.stopping import AGAIN_TO_GO_ON, RESUME, interrupts, stopping
from softshare.train.hooks import EpochRecord
from softshare.train.resume import Checkpoint
from terminals import Terminal


class Stop:
    """Called in place of anything, it sends a signal to this process."""

    def __init__(self, number: int) -> None:
        self.number, self.status = number, 128 + number

    def __call__(self, *_: object, **__: object) -> Any:
        os.kill(os.getpid(), self.number)
        raise AssertionError("the signal was not heard")


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def stop(request: pytest.FixtureRequest) -> Stop:
    return Stop(request.param)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line."""
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("softshare: ")]
    return line.removeprefix("softshare: ")


def test_nothing_happens_without_a_signal() -> None:
    with stopping():
        pass
    with pytest.raises(ValueError, match="other"), stopping():
        raise ValueError("other")


def test_an_error_that_comes_of_a_signal_is_a_signal(stop: Stop, capsys: pytest.CaptureFixture[str]) -> None:
    """As an interrupted import of numpy becomes a RecursionError."""
    before = signal.getsignal(stop.number)

    def load() -> None:
        try:
            stop()
        except KeyboardInterrupt:
            raise RecursionError from None

    with pytest.raises(typer.Exit) as end, stopping(), interrupts():
        load()
    assert end.value.exit_code == stop.status
    assert said(capsys) == f"stopped. Nothing new was kept. {AGAIN}"
    with pytest.raises(RecursionError), interrupts():
        raise RecursionError
    assert signal.getsignal(stop.number) is before


def test_a_terminal_has_written_ctrl_c_to_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns of it, so that a message there would be cut at the end of its line."""
    for number, before in ((signal.SIGINT, "\n"), (signal.SIGTERM, "")):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with pytest.raises(typer.Exit), stopping(), interrupts():
            Stop(number)()
        assert terminal.getvalue() == f"{before}softshare: stopped. Nothing new was kept. {AGAIN}\n"


@pytest.mark.parametrize("within", [interrupts, lambda: Checkpoint("never").guarding()], ids=["command", "training"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_sigterm_ends_a_fork_as_any_other(within: Callable[[], AbstractContextManager[None]]) -> None:
    """A pool ends its processes so, and waits for them. They have the handlers of this one."""
    ready, tell = os.pipe()
    with within():
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(30)
                os.write(tell, b"x")  # Python forgets the signals that come within the fork itself
                signal.pause()
            finally:
                os._exit(1)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


@pytest.mark.parametrize("module", ["typer", "softshare.cli.app", "softshare.cli.training"])
def test_a_signal_while_the_program_is_loaded(module: str, stop: Stop) -> None:
    """It comes in the middle of an import, where an exception could become any other."""
    code = (
        "import builtins, os, signal, sys\n"
        "real = builtins.__import__\n"
        "def slow(name, *rest, **named):\n"
        f"    if name == {module!r}:\n"
        f"        os.kill(os.getpid(), {stop.number:d})\n"
        "    return real(name, *rest, **named)\n"
        "builtins.__import__ = slow\n"
        "from softshare.__main__ import main\n"
        "sys.argv = ['softshare', '--version']\n"
        "sys.exit(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (stop.status, "")
    assert ended.stderr == f"softshare: stopped. Nothing new was kept. {AGAIN}\n"


# Commands that keep something


def test_a_second_interrupt_of_compress(
    stop: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one waits for the end of a step, and tests/cli/test_resume.py has it. The second does not wait."""
    spec, folder = write_task(tmp_path), tmp_path / "run"
    args = ("compress", spec, "--epochs", 2, "--no-limit", "--checkpoint-every", 0, "--out", folder)
    monkeypatch.setattr("softshare.cli.run_task.compress_task", stop)
    assert run(*args) == stop.status
    assert said(capsys) == f"stopped. Nothing new was kept. {AGAIN}"
    monkeypatch.undo()

    def late(hook: Any, record: EpochRecord) -> None:
        if record.epoch == 2:
            os.kill(os.getpid(), stop.number)  # waits for the end of the step
            stop()

    with monkeypatch.context() as patch:
        patch.setattr("softshare.train.progress.CsvLog.on_epoch", late)
        assert run(*args, "--overwrite") == stop.status
    kept = tmp_path / ".run.unfinished" / "retraining.run"
    assert said(capsys) == f"stopped. The run is kept in {kept}, as it was when that was written. {RESUME}"
    assert run(*args, "--resume") == 0
    assert not folder.with_name(".run.unfinished").exists()


def test_compress_in_its_final_measurement(
    stop: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("softshare.cli.run_task.measure", stop)
    assert run("compress", write_task(tmp_path), "--epochs", 1, "--no-limit", "--out", tmp_path / "run") == stop.status
    model = tmp_path / ".run.unfinished" / "model.sws"
    assert model.exists()
    assert said(capsys) == (
        f"stopped. The compressed network is in {model}, but it was not measured. Give the same command with --resume "
        "to go on"
    )
    monkeypatch.undo()
    again = ("--epochs", 1, "--no-limit", "--out", tmp_path / "run", "--resume")
    assert run("compress", write_task(tmp_path), *again) == 0
    assert (tmp_path / "run" / "result.json").exists()


def test_the_demo_has_no_resume(
    stop: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It resumes by itself."""
    folder = tmp_path / ".demo.unfinished"

    def pretrain(*_: object, **__: object) -> None:
        (folder / "pretraining.run").write_bytes(b"")
        stop()

    monkeypatch.setattr("softshare.cli.run_task.pretrain_into", pretrain)
    assert run("demo", "--out", tmp_path / "demo") == stop.status
    text = said(capsys)
    assert str(folder / "pretraining.run") in text
    assert text.endswith(AGAIN_TO_GO_ON)


def test_pretrain(
    stop: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("softshare.cli.run_task.pretrain_into", stop)
    assert run("pretrain", "lenet-300-100", "--out", tmp_path / "run") == stop.status
    assert said(capsys) == f"stopped. Nothing new was kept. {AGAIN}"


def test_tune(stop: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="needs optuna: pip install 'softshare[tune]'")
    monkeypatch.setattr("softshare.tune.search.tune", stop)
    assert run("tune", write_task(tmp_path), "--out", tmp_path / "study") == stop.status
    assert said(capsys) == (
        f"stopped. Finished trials are kept in {tmp_path / 'study'}. Give the same command again to go on"
    )


def test_reproduce(
    stop: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def results(*_: object, **__: object) -> Iterator[Any]:
        yield from ()
        stop()

    monkeypatch.setattr("softshare.paper.reproduce.reproduce", results)
    assert run("reproduce", "lenet-300-100", "--out", tmp_path) == stop.status
    assert said(capsys) == f"stopped. Finished results are kept in {tmp_path}. Give the same command again to go on"


# Commands that only read, or write at their end


def test_verify_says_how_far_it_came(
    stop: Stop, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from softshare.paper import verify

    copied(finished, tmp_path)
    (tmp_path / "run").rename(tmp_path / "a")
    copied(finished, tmp_path)
    plain = verify.verify

    def one(*args: Any) -> Iterator[verify.Check]:
        yield next(iter(plain(*args)))
        stop()

    monkeypatch.setattr(verify, "verify", one)
    assert run("verify", tmp_path, "--task", f"{finished.parent / 'net.py'}:task") == stop.status
    assert said(capsys) == f"stopped. 1 of 2 runs were checked, and 1 agree with their results. {AGAIN}"


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("quantize", "softshare.datafree.compress_weights.compress_weights"),
        ("inspect", "softshare.codec.inspect"),
        ("decompress", "softshare.codec.load"),
        ("export", "softshare.export.export_sparse"),
        ("evaluate", "softshare.result.final_error"),
        ("report", "softshare.report.write.write_report"),
    ],
)
def test_other_commands(
    command: str,
    function: str,
    stop: Stop,
    copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments: dict[str, list[object]] = {
        "quantize": [copy / "pretrained.safetensors"],
        "inspect": [copy / "model.sws"],
        "decompress": [copy / "model.sws", copy.parent / "back.safetensors"],
        "evaluate": [copy, "--trust"],
        "export": [copy / "model.sws", "--sparse", copy.parent / "sparse.pt"],
        "report": [copy],
    }
    monkeypatch.setattr(function, stop)
    assert run(command, *arguments[command]) == stop.status
    assert said(capsys) == f"stopped. Nothing new was kept. {AGAIN}"
