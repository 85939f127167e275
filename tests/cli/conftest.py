"""What the tests of the command line share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cli_runs import Refusals, copied, finished_run


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every terminal. Python writes no folder of its own beside the user's files."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refusals:
    return Refusals(tmp_path, capsys)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the user's task. Not to be changed: see `copy`."""
    return finished_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return copied(finished, tmp_path)
