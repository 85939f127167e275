"""`softshare verify` of a run, and what the other commands refuse. tests/paper has their tests with kept results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cli_runs import copied, finished_run, result_of, run


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("finished"))


def test_verify_a_run_of_a_users_task(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It agrees with its result, or the exit status is 1."""
    monkeypatch.chdir(tmp_path)
    copy, task = copied(finished, tmp_path), ("--task", f"{finished.parent / 'net.py'}:task")
    assert run("verify", "run", *task) == 0
    assert "1 of 1 agree with their results." in capsys.readouterr().out
    (copy / "result.json").write_text(json.dumps(result_of(copy) | {"n_nonzero": 1}))
    assert run("verify", ".", *task) == 1
    assert "0 of 1 agree with their results." in capsys.readouterr().out
    assert run("verify", ".", *task, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], [check["path"] for check in found["checks"]]) == (False, ["run"])
    assert run("verify", "run") == 1  # without the task there is no network to decode into
    assert run("verify", "missing") == 2


def test_the_interval_of_the_checkpoints_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def reproduce(*_: object, every: float, **__: object) -> list[object]:
        given.append(every)
        return []

    monkeypatch.setattr("softshare.paper.reproduce.reproduce", reproduce)
    for option in ([], ["--checkpoint-every", 7]):
        assert run("reproduce", "lenet-300-100", "--out", tmp_path, *option) == 0
    assert given == [60, 7]


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for args, message in (
        (["reproduce", "lenet-300-100", "--seeds", "0,one", "--out", tmp_path], "--seeds: expected whole numbers"),
        (["reproduce", "lenet-9", "--out", tmp_path], "lenet-9"),
        (["report", tmp_path / "missing"], str(tmp_path / "missing")),
        (["results", tmp_path / "missing"], str(tmp_path / "missing")),
    ):
        assert run(*args) == 2
        assert message in capsys.readouterr().err.replace("\n", "")
