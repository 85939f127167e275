"""Progress of work in stages: a bar on a terminal, a line now and then in a notebook, and nothing in a pipe."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from softshare._util import work_stages as module
from softshare._util.work_stages import QUIET, Stages, stages


def console(is_terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=is_terminal, width=80, color_system=None, legacy_windows=False), file


def shown(file: io.StringIO) -> list[str]:
    text = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", file.getvalue())
    return [line.rstrip() for line in re.split("[\r\n]", text) if line.strip()]


def test_a_bar_counts_parts_and_moves_by_their_size() -> None:
    con, file = console(is_terminal=True)
    found = Stages(con)
    found.title = "try 2: "
    found.start("quantize", "tensors", [10, 90])
    found.done(90)
    assert found._progress is not None
    assert found._progress.tasks[0].completed == 90
    found.done(10)
    found.end()
    assert shown(file)[0].startswith("try 2: quantize  0 of 2 tensors")
    assert shown(file)[-1].startswith("try 2: quantize  2 of 2 tensors")
    assert "0:00:00" in shown(file)[-1]
    assert file.getvalue().endswith("\x1b[2K")  # the bar is gone
    assert file.getvalue().count("\x1b[?25h") == 1


def test_all_stages_have_one_bar_and_more_parts_than_announced_do_no_harm() -> None:
    con, file = console(is_terminal=True)
    found = Stages(con)
    found.start("read", "tensors", [1])
    found.done(5)
    found.done(5)
    found.start("refine", "steps", [1] * 3)
    found.end()
    found.end()
    assert any(line.startswith("read  1 of 1 tensors") for line in shown(file))
    assert shown(file)[-1].startswith("refine  0 of 3 steps")
    assert file.getvalue().count("\x1b[?25l") == file.getvalue().count("\x1b[?25h") == 1


def test_where_there_is_no_bar_a_line_comes_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    con, file = console(is_terminal=False)
    now = iter([0.0, 3.0, 6.0, 8.0, 11.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    found = Stages(con)
    found.start("calibrate", "tensors", [1, 1, 1, 9])
    for size in (1, 1, 1, 9):
        found.done(size)
    assert shown(file) == ["calibrate  2 of 4 tensors, 30 s left", "calibrate  4 of 4 tensors, 0 s left"]


def test_a_pipe_and_an_argument_keep_it_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, _ = console(is_terminal=True)
    pipe, _ = console(is_terminal=False)
    for con, quiet, is_shown in ((terminal, False, True), (terminal, True, False), (pipe, False, False)):
        monkeypatch.setattr(module, "Console", lambda con=con, **_: con)
        with stages(quiet) as found:
            assert (found is not QUIET) == is_shown
    QUIET.start("nothing", "parts", [1])
    QUIET.done()


def test_the_bar_goes_when_the_work_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    con, file = console(is_terminal=True)
    monkeypatch.setattr(module, "Console", lambda **_: con)

    def fail() -> None:
        with stages(quiet=False) as found:
            found.start("refine", "steps", [1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert file.getvalue().count("\x1b[?25h") == 1
