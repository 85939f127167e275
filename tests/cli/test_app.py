"""The program itself: its commands, its help, its version and its exit statuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer.main

import softshare
from cli_runs import run
from softshare.cli import app, main
from softshare.cli.app import COMMANDS

NAMES = [command.__name__ for command in COMMANDS]
PROGRAM: Any = typer.main.get_command(app)


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", None)


def test_the_commands() -> None:
    assert NAMES == [
        "demo",
        "init",
        "compress",
        "quantize",
        "tune",
        "config",
        "pretrain",
        "inspect",
        "decompress",
        "evaluate",
        "export",
        "report",
        "verify",
        "reproduce",
        "results",
    ]


def test_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        assert run(name, "--help") == 0
        text = capsys.readouterr().out
        usage, _, described = text.strip().partition("\n")
        assert f" {name} [OPTIONS]" in usage
        assert len(described.strip().splitlines()[0]) > 20  # says what it does
        assert all(len(line) <= 80 for line in text.splitlines())
        assert not re.search("<bool>|<list|range>", text)  # a flag takes no value, and a value has a plain name
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert re.findall(r"│ (\w+) +[A-Z]", text.partition("Commands")[2]) == NAMES
    assert "<bool>" not in text
    assert run("-h") == 0
    assert capsys.readouterr().out == text


def test_the_first_panel_of_compress_has_at_most_twelve_options() -> None:
    """The other settings are in panels by stage."""
    command = PROGRAM.commands["compress"]
    panels = [p.rich_help_panel for p in command.params if p.param_type_name == "option"]
    assert panels.count(None) + 1 <= 12  # and --help
    others = [panel for panel in dict.fromkeys(panels) if panel]
    assert others == ["Target", "Network and data", "Watching", "Prior", "Retraining", "Merging", "Simplifying", "File"]


def test_every_help_is_a_sentence() -> None:
    for name, command in PROGRAM.commands.items():
        for parameter in command.params:
            text = parameter.help.partition(" [default")[0]
            assert re.match(r"[A-Z].*\.$", text), (name, parameter.name)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--version", "-V"):
        assert run(flag) == 0
        assert capsys.readouterr().out == f"softshare {softshare.__version__}\n"


def test_help_is_quick_because_it_imports_nothing_large() -> None:
    """In a process of its own, because other tests import them."""
    program = (
        "import sys\n"
        "from softshare.cli import main\n"
        f"for words in (['--help'], ['--version'], *([name, '-h'] for name in {NAMES!r})):\n"
        "    assert main(words) == 0, words\n"
        "print([m for m in ('torch', 'numpy', 'numba', 'matplotlib', 'scipy', 'optuna') if m in sys.modules])\n"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.splitlines()[-1] == "[]"


def test_shell_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "--install-completion" in capsys.readouterr().out
    program = "import sys; sys.argv = ['softshare']; from softshare.cli import main; sys.exit(main())"
    for words, completed in (("softshare comp", "compress"), ("softshare compress --max-b", "--max-bytes")):
        asked = {"_SOFTSHARE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-c", program]
        child = subprocess.run(command, capture_output=True, text=True, env=os.environ | asked, check=True)
        assert child.stdout.split() == [completed]


def test_an_unknown_command_and_none_end_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("shrink") == 2
    assert "shrink" in capsys.readouterr().err
    assert run() == 2
    assert "compress" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_python_m_softshare_is_the_same_program(capsys: pytest.CaptureFixture[str]) -> None:
    forcing = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS")  # they colour what is not a terminal
    environment = {name: value for name, value in os.environ.items() if name not in forcing} | {"OMP_NUM_THREADS": "1"}
    for args, status in ((["--help"], 0), (["inspect", "missing.sws"], 2)):
        command = [sys.executable, "-m", "softshare", *args]
        child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert child.returncode == run(*args) == status
        here = capsys.readouterr()
        assert child.stdout.strip().splitlines()[1:] == here.out.strip().splitlines()[1:]  # all but the usage line
        assert child.stderr == here.err


def test_messages_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Not as emoji: a name may hold colons."""
    assert main(["inspect", "nothing:fire:here.sws"]) == 2
    assert "nothing:fire:here.sws" in capsys.readouterr().err
