"""What a run's folder holds, read for its report; any of it may be missing, as while the run is under way."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import safetensors
from torch import Tensor

from softshare.codec import inspect
from softshare.codec.info import FileInfo
from softshare.errors import ConfigError, FormatError
from softshare.evaluate import Result
from softshare.files import read_bytes
from softshare.report.frames import Frames
from softshare.runs import FRAMES, HISTORY, MODEL, RESULT


@dataclass(frozen=True, eq=False)
class Run:
    folder: Path
    history: tuple[dict[str, float], ...]  # a row of history.csv each
    frames: Frames | None
    result: Result | None
    info: FileInfo | None  # of model.sws

    @classmethod
    def load(cls, folder: Path) -> Run:
        if not any((folder / name).exists() for name in (HISTORY, RESULT)):
            raise ConfigError(f"expected the folder of a run, with {HISTORY} or {RESULT} in it, got {folder}")
        return cls(
            folder,
            _history(folder / HISTORY) if (folder / HISTORY).exists() else (),
            Frames.load(folder / FRAMES) if (folder / FRAMES).exists() else None,
            Result.load(folder / RESULT) if (folder / RESULT).exists() else None,
            inspect(folder / MODEL) if (folder / MODEL).exists() else None,
        )

    def tensors(self, file: str) -> dict[str, tuple[int, ...]]:
        """Name and shape of each tensor of a checkpoint of the run, none where there is no such."""
        path = self.folder / file
        if not path.exists():
            return {}
        with _opened(path) as checkpoint:
            return {name: tuple(checkpoint.get_slice(name).get_shape()) for name in checkpoint.keys()}  # noqa: SIM118

    def tensor(self, file: str, name: str) -> Tensor:
        with _opened(self.folder / file) as checkpoint:
            value: Tensor = checkpoint.get_tensor(name)
        return value


def _opened(path: Path) -> safetensors.safe_open:
    try:
        return safetensors.safe_open(path, framework="pt")
    except (safetensors.SafetensorError, OSError) as error:
        raise FormatError(f"{path} is not a safetensors file ({error})") from None


def _history(path: Path) -> tuple[dict[str, float], ...]:
    rows = csv.DictReader(io.StringIO(read_bytes(path).decode(errors="replace"), newline=""))
    try:
        return tuple({name: float(value) for name, value in row.items()} for row in rows)
    except (TypeError, ValueError) as problem:
        raise FormatError(f"{path}: expected rows of numbers ({problem})") from None
