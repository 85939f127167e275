"""Read a run's folder for its report. Any file may be missing, for example while the run is under way."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from softshare._util.files import read_bytes
from softshare._util.run_folder import FRAMES, HISTORY, MODEL, RESULT
from softshare._util.schema import from_plain
from softshare.codec import inspect
from softshare.codec.info import FileInfo
from softshare.config import MergeConfig, RetrainConfig
from softshare.errors import ConfigError, FormatError
from softshare.network.checkpoint import SafetensorsFile
from softshare.report.frames import Frames
from softshare.result import Result
from softshare.task import Metric


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
            raise ConfigError(f"expected the folder of a run, with {HISTORY} or {RESULT} in it, got {folder}")
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
        return SafetensorsFile(self.folder / file) if (self.folder / file).exists() else {}

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

    @property
    def merging(self) -> MergeConfig:
        """The settings of the run; the defaults until it has a result."""
        own = self.result.config.get("merge", {}) if self.result else {}
        return MergeConfig(own.get("merge_threshold", MergeConfig().merge_threshold))

    @property
    def hard(self) -> bool:
        """Whether weights keep the component that they had before merging."""
        own = self.result.config.get("retrain", {}) if self.result else {}
        return bool(own.get("hard_from", RetrainConfig().hard_from) < 1)


def _history(path: Path) -> tuple[dict[str, float], ...]:
    rows = csv.DictReader(io.StringIO(read_bytes(path).decode(errors="replace"), newline=""))
    try:
        return tuple({name: float(value) for name, value in row.items()} for row in rows)
    except (TypeError, ValueError) as problem:
        raise FormatError(f"{path}: expected rows of numbers ({problem})") from None
