"""Read a run's folder for its report. Any file may be missing, for example while the run is under way."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from softshare._util.files import read_bytes
from softshare._util.run_folder import FRAMES, HISTORY, MODEL, RESULT, finished_folder
from softshare._util.schema import from_plain, require
from softshare.codec import inspect
from softshare.codec.info import FileInfo
from softshare.config import MergeConfig, RetrainConfig
from softshare.errors import ConfigError, FormatError, SoftShareError
from softshare.network.readers.safetensors_file import open_safetensors
from softshare.report.course import hard_spans, is_hard
from softshare.report.frames import Frames
from softshare.result import Result
from softshare.task import Metric

MAX_ROWS = 100_000  # of a history
MAX_EPOCH = 1e12
_COLUMNS = (
    "epoch",
    "validation_error",
    "task_loss",
    "prior_loss",
    "complexity_bits",
    "components_alive",
    "tau",
)


@dataclass(frozen=True, eq=False)
class Run:
    folder: Path
    history: tuple[dict[str, float], ...]  # the rows of history.csv
    frames: Frames | None
    result: Result | None
    info: FileInfo | None  # of model.sws

    @classmethod
    def load(cls, folder: Path) -> Run:
        if not any((folder / name).exists() for name in (HISTORY, RESULT)):
            absent = "" if folder.exists() else ", which does not exist"
            raise ConfigError(f"expected the folder of a run, with {HISTORY} or {RESULT} in it, got {folder}{absent}")
        history = _history(folder / HISTORY) if (folder / HISTORY).exists() else ()
        if not history and not (folder / RESULT).exists():
            raise ConfigError(f"{folder / HISTORY} has no epoch yet; try again after the first one")
        return cls(
            folder,
            history,
            Frames.load(folder / FRAMES) if (folder / FRAMES).exists() else None,
            Result.load(folder / RESULT) if (folder / RESULT).exists() else None,
            inspect(folder / MODEL) if (folder / MODEL).exists() else None,
        )

    def checkpoint(self, file: str) -> Mapping[str, Tensor]:
        """A checkpoint of the run; empty if the file is missing. Each tensor is read on access."""
        return open_safetensors(self.folder / file) if (self.folder / file).exists() else {}

    @property
    def metric(self) -> Metric:
        """What the network is judged by, from the result or the film. Older runs do not say: the error in percent."""
        if self.result or not self.frames:
            return self.result.metric if self.result else Metric()
        return from_plain(Metric, self.frames.about.get("metric", {}), "the film's metric")

    @property
    def counted(self) -> str:
        """What the history counts: epochs, or looks at a run whose length is in steps."""
        if self.frames:
            return str(self.frames.about.get("counted", "epoch"))
        retrain = self.result.config.get("retrain", {}) if self.result else {}
        return "look" if retrain.get("steps") and retrain.get("epochs") is None else "epoch"

    @functools.cached_property
    def is_hard(self) -> list[bool]:
        """Whether each row of the history is of the hard phase."""
        return is_hard(self.history, self.result.config.get("retrain", {}) if self.result else {})

    @property
    def knows_phases(self) -> bool:
        """An older run says by its settings, which it has with a result."""
        return self.result is not None or bool(self.history and "hard" in self.history[0])

    @functools.cached_property
    def hard_spans(self) -> tuple[tuple[float, float], ...]:
        """From which epoch to which the network ran on quantized weights."""
        return tuple(hard_spans(self.history, self.is_hard))

    @property
    def name(self) -> str:
        """What was compressed. Until there is a result, the name of the folder."""
        return self.result.experiment if self.result else finished_folder(self.folder.resolve()).name

    @property
    def merging(self) -> MergeConfig:
        """The settings of the run; the defaults until it has a result."""
        own = self.result.config.get("merge", {}) if self.result else {}
        return from_plain(MergeConfig, {k: v for k, v in own.items() if k == "merge_threshold"}, "result.config.merge")

    @property
    def hard(self) -> bool:
        """Whether weights keep the component that they had before merging."""
        own = self.result.config.get("retrain", {}) if self.result else {}
        hard_from = own.get("hard_from", RetrainConfig().hard_from)
        require(isinstance(hard_from, int | float), "result.config.retrain.hard_from", "a number", hard_from)
        return bool(hard_from < 1)


def _history(path: Path) -> tuple[dict[str, float], ...]:
    lines = csv.DictReader(io.StringIO(read_bytes(path).decode(errors="replace"), newline=""))
    try:
        rows = tuple({name: float(value) for name, value in row.items()} for row in lines)
    except (TypeError, ValueError, csv.Error) as problem:
        raise FormatError(f"{path}: expected rows of numbers ({problem})") from None
    if len(rows) > MAX_ROWS:
        raise FormatError(f"{path}: expected at most {MAX_ROWS:,} rows, got {len(rows):,}")
    absent = [name for name in _COLUMNS if rows and name not in rows[0]]
    if absent:
        raise FormatError(f"{path}: expected the columns {', '.join(_COLUMNS)}, but {', '.join(absent)} is missing")
    if not all(math.isfinite(row["epoch"]) and abs(row["epoch"]) < MAX_EPOCH for row in rows):
        raise FormatError(f"{path}: expected epochs, got a number that is none")
    return rows


@contextlib.contextmanager
def drawn_from(folder: Path) -> Iterator[None]:
    """Figures and numbers that no run writes, though each file has its form, end in an error of the folder."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of matplotlib, about limits and glyphs
            yield
    except SoftShareError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as problem:
        raise FormatError(
            f"{folder}: expected the files of a run, but what they hold cannot be shown ({problem!r}). Compress again"
        ) from problem
