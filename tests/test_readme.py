"""The README shows only what runs: its Python blocks are run in order, its commands exist, its first lines work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from softshare.cli import app, main
from softshare.codec import inspect

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_python_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python = blocks("python")
    assert len(python) >= 3
    namespace: dict[str, object] = {"__name__": "my_task"}
    for block in python:
        exec(compile(block, "README.md", "exec"), namespace)
    for file in ("model.sws", "own_loop.sws"):
        assert inspect(tmp_path / file).file_bytes == (tmp_path / file).stat().st_size


def test_make_task_of_the_readme_goes_through_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [b for b in blocks("python") if "def make_task" in b]
    (tmp_path / "my_task.py").write_text(block)
    assert main(["compress", "my_task.py:make_task", "--out", "runs/mine", "--epochs", "2"]) == 0
    assert main(["evaluate", "runs/mine"]) == 0


def test_commands_exist() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    lines = re.findall(r"^softshare (.*)", "\n".join(blocks("sh")), re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        name, *arguments = shlex.split(line, comments=True)
        commands[name].make_context(name, arguments)  # raises on an unknown option or a missing argument
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_two_make_commands_stand_at_the_top() -> None:
    top = README.split("\n## ")[0]
    assert "make demo" in top
    assert "make test" in top


@pytest.mark.parametrize(
    "document",
    [ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").glob("*.md")],
    ids=lambda p: p.name,
)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target
