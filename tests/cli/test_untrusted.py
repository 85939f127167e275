"""Files and names from elsewhere: no code is run, nothing is obeyed by a terminal, and output is bounded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from by_hand import book, entry, name, sizes, sws
from cli_runs import Refusals, result_of, run, write_task
from softshare.cli import reading
from softshare.cli.console import console

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


def assert_harmless(text: str) -> None:
    assert "\x1b" not in text
    assert all(c.isprintable() or c == "\n" for c in text)


# Code


def test_evaluate_runs_no_code_that_a_result_names(copy: Path, tmp_path: Path, refused: Refusals) -> None:
    (tmp_path / "evil.py").write_text(
        f"import pathlib, sys\npathlib.Path({str(tmp_path / 'owned')!r}).touch()\nsys.exit(0)\n"
    )
    values = result_of(copy) | {"experiment": f"{tmp_path / 'evil.py'}:task"}
    (copy / "result.json").write_text(json.dumps(values))
    refused("evaluate", copy, naming=["evil.py:task", "--task", "--trust"])
    assert not (tmp_path / "owned").exists()
    assert run("evaluate", copy, "--trust") == 2
    assert (tmp_path / "owned").exists()


def test_trust_or_a_task(copy: Path, refused: Refusals) -> None:
    refused("evaluate", copy, "--trust", "--task", "lenet-300-100", naming="--task or --trust, got both")
    assert run("evaluate", copy, "--trust") == 0


EXITS = {
    "import": "import sys\nsys.exit(0)",
    "task": "def task():\n    raise SystemExit(7)",
    "measure": "def error(model):\n    raise SystemExit(0)",
}


@pytest.mark.parametrize(
    ("command", "when"), [*(("evaluate", when) for when in EXITS), ("verify", "import"), ("verify", "task")]
)
def test_a_task_does_not_set_the_exit_status(finished: Path, refused: Refusals, command: str, when: str) -> None:
    refused(command, finished, "--task", write_task(refused.folder, EXITS[when]), naming=" called sys.exit(")


def test_a_task_that_exits_does_not_agree(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", finished, "--task", write_task(tmp_path, EXITS["measure"])) == 1
    assert "Task.evaluate called sys.exit(0)" in " ".join(capsys.readouterr().out.split())


# Names


def test_names_of_a_file_are_shown_and_not_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The format has no control characters in names, but marks that reverse a line, and what rich would style."""
    data = sws([book(0.5)], [entry(0, None, name("a\u202eb[bold]c[/bold]:smile:"), sizes(2))])
    (tmp_path / "m.sws").write_bytes(data)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(reading, "out", console())
    assert run("inspect", tmp_path / "m.sws") == 0
    text = capsys.readouterr().out
    assert_harmless(text)
    assert "a\\u202eb[bold]c[/bold]:smile:" in text


def test_names_of_a_checkpoint_are_shown_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    safetensors.torch.save_file({f"{ESCAPES}.weight": torch.randn(4, 4)}, tmp_path / "m.safetensors")
    assert run("quantize", tmp_path / "m.safetensors") == 2
    found = capsys.readouterr()
    assert_harmless(found.out + found.err)
    assert found.err.count("\n") == 1


@pytest.mark.parametrize("command", ["evaluate", "verify"])
def test_texts_of_a_result_are_shown_and_not_obeyed(
    copy: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for field in ("experiment", "dataset", "method", "device"):
        values = result_of(copy) | {field: f"{ESCAPES}\nsoftshare: all is well"}
        (copy / "result.json").write_text(json.dumps(values))
        run(command, copy)
        found = capsys.readouterr()
        assert_harmless(found.out + found.err)
        assert "\nsoftshare: all" not in found.err


def test_a_message_has_a_bounded_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = {f"{'n' * 100}{k}": torch.randn(2, 2) for k in range(300)}
    safetensors.torch.save_file(many, tmp_path / "m.safetensors")
    assert run("quantize", tmp_path / "m.safetensors", "--rule", "keep:nothing") == 2
    assert len(capsys.readouterr().err) < 5000


# Sizes


def test_inspect_bounds_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """44 kB of header, whose names repeat 4,000 bytes each, made it print 100 MB in a minute and a half."""
    stem = "n" * 4000
    entries = [entry(0, None, name(stem), sizes(2))]
    entries += [entry(0, None, name(f"{k:x}", prefix=4000), sizes(2)) for k in range(3000)]
    (tmp_path / "m.sws").write_bytes(sws([book(0.5)], entries))
    assert (tmp_path / "m.sws").stat().st_size < 44_000
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(reading, "out", console())
    start = time.perf_counter()
    assert run("inspect", tmp_path / "m.sws") == 0
    text = capsys.readouterr().out
    assert len(text) < 3_000_000
    assert "2,001 more tensors" in text
    assert time.perf_counter() - start < 20
    assert run("inspect", "--json", tmp_path / "m.sws") == 0
    assert len(json.loads(capsys.readouterr().out)["tensors"]) == 3001


def test_more_tensors_than_a_file_holds_are_refused_before_fitting(
    tmp_path: Path, refused: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand small tensors were all fitted, for eight minutes, and then refused."""
    monkeypatch.setattr("softshare.codec.header.MAX_ENTRIES", 50)
    monkeypatch.setattr("softshare.network.checkpoint._checkpoint", None)
    many = {f"{k}.weight": torch.full((2, 2), k + 1.0) for k in range(51)}
    safetensors.torch.save_file(many, tmp_path / "m.safetensors")
    refused("quantize", tmp_path / "m.safetensors", naming="at most 50 tensors, as a file can hold, got 51")


# Forged runs

FORGED: dict[str, Callable[[Path], object]] = {
    "deep": lambda p: p.write_bytes(b"[" * 100_000),
    "a list": lambda p: p.write_text("[]"),
    "no keys": lambda p: p.write_text('{"schema": 1}'),
    "a large number": lambda p: _changed(p, n_weights=10**400),
    "no weights": lambda p: _changed(p, n_weights=0),
    "no bytes": lambda p: _changed(p, file_bytes=0),
    "others": lambda p: _changed(p, others={"loss": 5}),
    "a stage": lambda p: _changed(p, config={"merge": 5, "retrain": []}),
    "an outcome": lambda p: _changed(p, outcome={"target": [1], "kept": "yes"}),
    "a long name": lambda p: _changed(p, method="m" * 60_000),
    "a metric": lambda p: _changed(p, metric={"name": "", "unit": 4}),
}


def _changed(path: Path, **values: object) -> None:
    text = json.dumps(json.loads(path.read_text()) | {k: v for k, v in values.items() if k != "n_weights"})
    if "n_weights" in values:
        text = text[:-1] + f', "n_weights": {"1" + "0" * 400 if values["n_weights"] else 0}' + "}"
    path.write_text(text)


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_result_is_refused_by_every_command(copy: Path, refused: Refusals, forged: str) -> None:
    FORGED[forged](copy / "result.json")
    where = str(copy / "result.json")
    for args in (["evaluate", copy, "--trust"], ["report", copy], ["results", copy, "--root", copy]):
        message = refused(*args, naming=[where, "is not a result"])
        assert message.count("\n") == 1
    refused("compress", write_task(refused.folder), "--config", copy / "result.json", naming="is not a result")
    assert run("verify", copy) == 1


def test_the_name_of_an_experiment_is_no_path(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    values = result_of(copy) | {"experiment": "/../../owned", "method": "<script>x</script>|\n# title"}
    (copy / "result.json").write_text(json.dumps(values))
    assert run("results", copy, "--root", tmp_path) == 0
    assert sorted(p.name for p in (tmp_path / "docs").iterdir()) == ["results--..-..-owned.png", "results.md"]
    text = (tmp_path / "docs" / "results.md").read_text()
    assert "<script>" not in text
    assert "\n# title" not in text
