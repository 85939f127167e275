"""Hooks for `retrain_`: a progress bar with the time left, and a CSV log."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from softshare.errors import ConfigError
from softshare.train.hooks import EpochRecord, Hook


class ProgressBar(Hook):
    """A rich progress bar. If the output is not a terminal, it prints a line every tenth of the run."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.title, self.console = title, console or Console(stderr=True, emoji=False)
        self._progress: Progress | None = None

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self._epochs, self._steps, self._started = epochs, steps_per_epoch, time.monotonic()
        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._progress = Progress(*columns, console=self.console)
            total = epochs * (steps_per_epoch or 1)
            self._bar: TaskID = self._progress.add_task(self.title, total=total)
            self._progress.start()

    def on_step(self, epoch: int, step: int) -> None:
        if self._progress and self._steps and step <= self._steps:
            self._progress.update(self._bar, completed=(epoch - 1) * self._steps + step)

    def on_epoch(self, record: EpochRecord) -> None:
        text = f"{self.title}  error {record.validation_error:.2f}%"
        if record.density:
            text += f"  {record.complexity_bits / 8000:.1f} kB by the mixture  {record.components_alive} components"
        if self._progress:
            self._progress.update(self._bar, description=text, completed=record.epoch * (self._steps or 1))
        elif record.epoch > 0 and (record.epoch % -(-self._epochs // 10) == 0 or record.epoch == self._epochs):
            left = (time.monotonic() - self._started) / record.epoch * (self._epochs - record.epoch)
            line = f"{text}  epoch {record.epoch}/{self._epochs}, {left:.0f} s left"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def on_end(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None


class CsvLog(Hook):
    """One row per epoch, written at once. The densities of the shared tensors are the last columns."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None

    def on_epoch(self, record: EpochRecord) -> None:
        row = {**vars(record), **{f"density/{name}": value for name, value in record.density.items()}}
        del row["density"]
        try:
            if self._file is None:
                self._file = self.path.open("w", newline="")
                csv.writer(self._file).writerow(row)
            csv.writer(self._file).writerow(row.values())
            self._file.flush()
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror or error}") from error

    def on_end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
