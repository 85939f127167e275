"""The progress of work that has several stages: a bar with the time left for each of them, if someone looks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

SECONDS = 5.0  # from one line to the next, where there is no bar


def shows_progress(console: Console) -> bool:
    """Whether someone is likely to look: in a terminal or in a notebook."""
    return console.is_terminal or console.is_jupyter


def has_bars(console: Console) -> bool:
    """A bar in a notebook is a widget."""
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


class Stages:
    """Without a console, nothing is shown."""

    def __init__(self, console: Console | None = None) -> None:
        self.title = ""  # before the names of all stages
        self._console = console
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def start(
        self,
        name: str,
        unit: str,  # of the parts, in the plural
        sizes: Sequence[float],  # of the parts: they share the time as their sizes do
    ) -> None:
        if self._console is None:
            return
        self._name, self._unit, self._n, self._total = self.title + name, unit, len(sizes), sum(sizes)
        self._parts, self._done = 0, 0.0
        self._started = self._said = time.monotonic()
        if has_bars(self._console):
            if self._progress is None:
                self._progress = _bar(self._console)
                self._progress.start()
            else:
                self._progress.refresh()
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(self._text(), total=self._total)

    def done(self, size: float = 1.0) -> None:
        """One part more."""
        if self._console is None:
            return
        self._parts, self._done = min(self._parts + 1, self._n), self._done + size
        now = time.monotonic()
        if self._progress:
            self._progress.update(self._task, description=self._text(), completed=min(self._done, self._total))
        elif self._done and now - self._said >= SECONDS:
            self._said = now
            left = (now - self._started) * max(0.0, self._total / self._done - 1)
            self._console.print(f"{self._text()}, {left:.0f} s left", markup=False, highlight=False, soft_wrap=True)

    def end(self) -> None:
        if self._progress:
            self._progress.refresh()  # rich leaves this out in a notebook
            self._progress.stop()
            self._progress = None

    def _text(self) -> str:
        return f"{self._name}  {self._parts} of {self._n} {self._unit}"


def _bar(console: Console) -> Progress:
    """One for all stages, because in a notebook each would be a widget. There the last one stays."""
    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    left = TimeRemainingColumn(table_column=Column(no_wrap=True))
    columns = (text, BarColumn(), left)
    # What is printed stays on stdout. And colorama, which numba loads, keeps the stdout that it finds until the end.
    return Progress(*columns, console=console, transient=not console.is_jupyter, redirect_stdout=False)


QUIET = Stages()


@contextmanager
def stages(quiet: bool) -> Iterator[Stages]:
    """On the error stream, in a terminal or a notebook."""
    console = Console(stderr=True, emoji=False)
    shown = QUIET if quiet or not shows_progress(console) else Stages(console)
    try:
        yield shown
    finally:
        shown.end()
