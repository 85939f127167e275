"""The README and docs/ show only what runs: Python blocks are run in order, commands and options exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from paths import ROOT
from softshare.cli import app, main
from softshare.codec import inspect

README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_python_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python = blocks("python")
    assert len(python) >= 3
    namespace: dict[str, object] = {"__name__": "my_task"}
    for block in python:
        exec(compile(block, "README.md", "exec"), namespace)
    for file in ("model.sws", "own_loop.sws"):
        assert inspect(tmp_path / file).file_bytes == (tmp_path / file).stat().st_size


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*'pin_memory' argument is set as true but no accelerator.*")
@pytest.mark.filterwarnings("ignore:.*number of training batches.*is smaller than the logging interval.*")
def test_callbacks_of_the_integrations_page_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks("python", (ROOT / "docs" / "integrations.md").read_text()):
        exec(compile(block, "integrations.md", "exec"), namespace)
    for file in ("lightning.sws", "bert.sws"):
        assert inspect(tmp_path / file).file_bytes == (tmp_path / file).stat().st_size


def test_make_task_of_the_readme_goes_through_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [b for b in blocks("python") if "def make_task" in b]
    (tmp_path / "my_task.py").write_text(block)
    assert main(["compress", "my_task.py:make_task", "--out", "runs/mine", "--epochs", "2"]) == 0
    assert main(["evaluate", "runs/mine"]) == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_exist(document: Path) -> None:
    text = document.read_text()
    lines = "\n".join(blocks("sh", text)).replace(" && ", "\n")
    for line in re.findall(r"^softshare (.*)", lines, re.MULTILINE):
        name, *arguments = shlex.split(line, comments=True)
        COMMANDS[name].make_context(name, arguments)  # raises on an unknown option or a missing argument
    assert set(re.findall(r"`softshare (\w+)", text)) <= set(COMMANDS)
    known = {o for c in COMMANDS.values() for p in c.params for o in (*p.opts, *p.secondary_opts)}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)) <= known | {"--help"}


def test_the_readme_shows_commands_and_make_targets() -> None:
    shown = "\n".join(blocks("sh"))
    assert set(re.findall(r"^softshare (\w+)", shown, re.MULTILINE)) == set(COMMANDS)
    targets = re.findall(r"^make (\w+)", shown, re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_two_make_commands_stand_at_the_top() -> None:
    top = README.split("\n## ")[0]
    assert "make demo" in top
    assert "make test" in top


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target
