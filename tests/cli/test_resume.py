"""`--resume`: a command that was stopped goes on, and leaves what it would have left."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import random_kills
from random_kills import WRITTEN
from softshare._util.run_folder import unfinished_folder
from softshare.cli import main
from softshare.errors import StoppedError
from softshare.train.resume import Checkpoint

WORDS = "compress task.py:make_task --no-limit --steps 60 --out"
Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in a folder with a task, and stops it by a signal after a number of steps."""
    monkeypatch.chdir(tmp_path)
    random_kills.prepare(tmp_path / "made")
    (tmp_path / "task.py").write_text(random_kills.TASK)
    plain = Checkpoint.tick

    def command(words: str, stop_after: int = 0) -> int:
        left = stop_after

        def tick(self: Checkpoint, at_end: bool = False) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.write()
                raise StoppedError("stopped by SIGTERM; the run is kept", signal.SIGTERM)
            plain(self, at_end)

        monkeypatch.setattr(Checkpoint, "tick", tick)
        return main(words.split())

    return command


def test_a_command_that_was_stopped_goes_on(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{WORDS} whole") in WRITTEN
    assert run(f"{WORDS} out", stop_after=33) == 128 + signal.SIGTERM
    assert "Give the same command with --resume to go on" in capsys.readouterr().err
    assert not Path("out").exists()
    assert run(f"{WORDS} out --resume", stop_after=20) == 128 + signal.SIGTERM
    assert run(f"{WORDS} out --resume") in WRITTEN
    for name in ("model.sws", "retrained.safetensors", "pretrained.safetensors"):
        assert Path("out", name).read_bytes() == Path("whole", name).read_bytes()
    rows = [[r.split(",")[0] for r in Path(f, "history.csv").read_text().splitlines()] for f in ("out", "whole")]
    assert rows[0] == rows[1]  # the seconds differ
    assert not unfinished_folder(Path("out")).exists()


def test_a_run_that_was_stopped_is_not_thrown_away(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{WORDS} out", stop_after=9) == 128 + signal.SIGTERM
    assert run(f"{WORDS} out") == 2
    assert (
        "Give --resume to go on with it, or --overwrite to start from the beginning"
        in capsys.readouterr().err.replace("\n", " ")
    )
    assert run(f"{WORDS} out --resume --tau 0.5") == 2
    assert "is of another run" in capsys.readouterr().err
    assert (unfinished_folder(Path("out")) / "retraining.run").exists()
    assert run(f"{WORDS} out --overwrite") in WRITTEN


def test_a_finished_run_stays_until_the_one_that_goes_on_is_finished(run: Run) -> None:
    assert run(f"{WORDS} out") in WRITTEN
    before = Path("out/model.sws").read_bytes()
    assert run(f"{WORDS} out --overwrite --seed 1", stop_after=9) == 128 + signal.SIGTERM
    assert Path("out/model.sws").read_bytes() == before
    assert run(f"{WORDS} out --overwrite --seed 1 --resume") in WRITTEN
    assert Path("out/model.sws").read_bytes() != before


def test_with_nothing_to_go_on_with_a_run_starts(run: Run) -> None:
    assert run(f"{WORDS} out --resume") in WRITTEN


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compress --no-limit", "quantize"])
def test_killed_at_random_moments_nothing_is_lost(name: str, tmp_path: Path) -> None:
    """The short form of tests/random_kills.py."""
    tally = random_kills.tried(name, 3, tmp_path / "runs", random.Random(0))
    assert tally.kills.total() == 3
    assert (tally.ends > 0, tally.lost, tally.others) == (True, 0, 0)
