"""Hooks for `retrain_`: a progress bar with the time left, and a CSV log."""

from __future__ import annotations

import csv
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from softshare._util.work_stages import has_bars
from softshare.task import Metric
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.spared import Say, warn


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e3:.1f} kB" if n_bytes < 999_950 else f"{n_bytes / 1e6:.1f} MB"


class ProgressBar(Hook):
    """A progress bar with the time left:

        softshare.compress(task, hooks=[softshare.ProgressBar("retrain", metric=task.metric)], quiet=True)

    Outside of a terminal it prints a line every tenth of the run. `compress` shows one by itself, unless it is quiet.

    Args:
        title: shown before the bar.
        console: of rich, to show it on; by default standard error.
        metric: of the task, with its name and unit; by default the error in percent.
    """

    def __init__(self, title: str, console: Console | None = None, metric: Metric | None = None) -> None:
        self.title, self.console = title, console or Console(stderr=True, emoji=False)
        self.metric = metric or Metric()
        self._progress: Progress | None = None
        self._runs = 0
        self._first: int | None = None  # number of the run's first record
        self._goes_on = False

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self.on_end()
        self._epochs, self._steps, self._started = epochs, steps_per_epoch, time.monotonic()
        if not self._goes_on:
            self._first, self._runs = None, self._runs + 1
        self._goes_on = False
        self._name = self.title + (f", run {self._runs}" if self._runs > 1 else "")
        if has_bars(self.console):
            count, left = Column(no_wrap=True), Column(no_wrap=True)  # where there is little room, the bar gives way
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(table_column=count),
                TimeRemainingColumn(table_column=left),
            )
            self._progress = Progress(*columns, console=self.console)
            total = epochs * (steps_per_epoch or 1)
            self._bar: TaskID = self._progress.add_task(self._name, total=total)
            self._progress.start()

    def on_step(self, epoch: int, step: int) -> None:
        if self._progress and self._steps and step <= self._steps:
            self._progress.update(self._bar, completed=(epoch - 1 - (self._first or 0)) * self._steps + step)

    def on_epoch(self, record: EpochRecord) -> None:
        self._first = record.epoch if self._first is None else self._first
        done = record.epoch - self._first
        text = f"{self._name}  {self.metric.name} {self.metric.text(record.validation_error)}"
        if record.density:
            text += f"  {_size(record.complexity_bits / 8)} uncoded"  # by the mixtures: the file has another size
        if self._progress:
            self._progress.update(self._bar, description=text, completed=done * (self._steps or 1))
        elif done > 0 and (done % -(-self._epochs // 10) == 0 or done == self._epochs):
            left = (time.monotonic() - self._started) / done * (self._epochs - done)
            line = f"{text}  {done}/{self._epochs}, {left:.0f} s left"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def state_dict(self) -> dict[str, Any]:
        return {"first": self._first, "runs": self._runs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._first, self._runs, self._goes_on = state["first"], state["runs"], True

    def on_end(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None


class CsvLog(Hook):
    """A CSV file with a row for each epoch or look, written at once:

        softshare.compress(task, hooks=[softshare.CsvLog("history.csv")])

    The densities of the shared tensors are the last columns. If the file cannot be written, there is one warning, and
    the run goes on. Each later row is tried with all before it: a full disk may be emptied.

    Args:
        path: of the file, which is replaced if it exists.
        say: gets the warning as a text; by default a Python warning.
    """

    def __init__(self, path: str | os.PathLike[str], say: Say = warn) -> None:
        self.path, self.say = Path(path), say
        self._is_said = False
        self._file: TextIO | None = None
        self._rows: list[list[Any]] = []  # the first has the names

    def on_epoch(self, record: EpochRecord) -> None:
        row = {**vars(record), "hard": int(record.hard)}
        del row["density"]
        row |= {f"density/{name}": value for name, value in record.density.items()}
        self._rows = self._rows or [list(row)]
        self._rows.append([row[name] for name in self._rows[0]])  # a run that goes on may have had fewer columns
        try:
            if self._file is None:
                self._file = self.path.open("w", newline="")
                csv.writer(self._file).writerows(self._rows)
            else:
                csv.writer(self._file).writerow(self._rows[-1])
            self._file.flush()
        except OSError as error:
            self._close()
            if not self._is_said:
                self._is_said = True
                self.say(f"cannot write {self.path}: {error.strerror or error}. The run goes on without it")

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what is in its buffer is in the rows too
                self._file.close()
            self._file = None

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = [list(row) for row in state["rows"]]

    def on_end(self) -> None:
        self._close()
        self._rows = []
