"""TensorBoard: every number of the history as a scalar."""

from __future__ import annotations

import importlib.util
import math
import os
from typing import Any

from softshare.errors import NotAvailableError
from softshare.task import Metric
from softshare.train.hooks import EpochRecord, Hook


class TensorBoardLog(Hook):
    """Writes one event file to the folder, with a point per epoch or look. A curve has the name of the metric."""

    def __init__(self, folder: str | os.PathLike[str], metric: Metric | None = None) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise NotAvailableError("--tensorboard needs tensorboard: pip install 'softshare[tensorboard]'")
        self.folder, self.metric = folder, metric or Metric()
        self._writer: Any = None

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self._writer is None:  # a search has several runs
            self._writer = SummaryWriter(os.fspath(self.folder))

    def on_epoch(self, record: EpochRecord) -> None:
        values = {name: value for name, value in vars(record).items() if name not in ("epoch", "density")}
        values[f"validation_{self.metric.name}"] = values.pop("validation_error")
        values |= {f"density/{name}": value for name, value in record.density.items()}
        for name, value in values.items():
            if math.isfinite(value):  # before the first step there is no task loss
                self._writer.add_scalar(name, value, record.epoch)
        self._writer.flush()

    def on_end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
