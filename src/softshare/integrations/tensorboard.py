"""TensorBoard: every number of the history as a scalar, and at the end the result, the settings and the file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softshare.integrations.log import Log, Numbers
from softshare.task import Metric


class TensorBoardLog(Log):
    """Writes event files to the folder, with a point per epoch or look, and copies the .sws file there."""

    package = "tensorboard"

    def __init__(self, folder: str | os.PathLike[str], metric: Metric | None = None) -> None:
        super().__init__(metric)
        self.folder = Path(folder)
        self._writer: Any = None

    def open_(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is None:  # a search has several runs
            self._writer = SummaryWriter(os.fspath(self.folder))

    def log(self, values: Numbers, epoch: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def finish(self, values: Numbers, sentence: str, settings: Mapping[str, Any], file: Path) -> None:
        self.log(values, self._epoch)
        self._writer.add_text("verdict", sentence, self._epoch)
        text = json.dumps(settings, indent=2)
        self._writer.add_text("settings", "\n".join(f"    {line}" for line in text.splitlines()), self._epoch)
        shutil.copy(file, self.folder)
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
