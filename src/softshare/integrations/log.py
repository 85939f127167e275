"""What the logs for other tools have in common: names for the numbers of a run, and errors that cost a message."""

from __future__ import annotations

import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from softshare._util.run_folder import MODEL
from softshare.compressed import Compressed
from softshare.errors import NotAvailableError
from softshare.result import Result
from softshare.task import Metric
from softshare.train.hooks import EpochRecord, Hook
from softshare.verdict import verdict

Numbers = Mapping[str, float]


class Log(Hook, ABC):
    """Sends every number of the history to another tool, and at the end the result, the settings and the file.

    If the tool fails, there is one warning, and the run goes on. Each later number is tried again.
    """

    package: str  # to install, and the name of the extra

    def __init__(self, metric: Metric | None = None) -> None:
        if find_spec(self.package) is None:
            raise NotAvailableError(
                f"{type(self).__name__} needs {self.package}: pip install 'softshare[{self.package}]'"
            )
        self.metric = metric or Metric()
        self._epoch, self._is_said = 0, False

    @abstractmethod
    def open_(self) -> None:
        """Start the tool's run, unless it is under way."""

    @abstractmethod
    def log(self, values: Numbers, epoch: int) -> None: ...

    @abstractmethod
    def finish(self, values: Numbers, sentence: str, settings: Mapping[str, Any], file: Path) -> None:
        """Take in the final numbers, the verdict, the settings and the .sws file. The file is then removed."""

    def close(self) -> None:
        """Training has ended. The final numbers may still come."""

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self._try(self.open_)

    def on_epoch(self, record: EpochRecord) -> None:
        self._epoch = record.epoch
        self._try(lambda: (self.open_(), self.log(numbers_of(record, self.metric), record.epoch)))

    def on_end(self) -> None:
        self._try(self.close)

    def on_result(self, compressed: Compressed, result: Result) -> None:
        def finish() -> None:
            with TemporaryDirectory() as folder:
                compressed.save(Path(folder, MODEL))
                self.open_()
                self.finish(final_numbers(result), verdict(result).sentence, result.config, Path(folder, MODEL))

        self._try(finish)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            if not self._is_said:
                self._is_said = True
                text = f"{type(self).__name__} failed ({type(error).__name__}: {error}). The run goes on without it"
                warnings.warn(text, stacklevel=3)


def numbers_of(record: EpochRecord, metric: Metric) -> dict[str, float]:
    """The finite numbers of a record by name. The metric has its own name, and each tensor's density has one."""
    values: dict[str, float] = {k: v for k, v in vars(record).items() if k not in ("epoch", "density")}
    values[f"validation_{metric.name}"] = values.pop("validation_error")
    values |= {f"density/{name}": value for name, value in record.density.items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}  # at first there is no task loss


def final_numbers(result: Result) -> dict[str, float]:
    """What became of the network: the metric before and after, and the size of the file."""
    name = result.metric.name
    return {
        f"final/{name}_before": result.error_before,
        f"final/{name}_after": result.error_after,
        "final/file_bytes": result.file_bytes,
        "final/ratio": result.ratio,
        "final/n_weights": result.n_weights,
        "final/n_nonzero": result.n_nonzero,
        "final/seconds": result.seconds,
    }


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings as pairs of texts: 'retrain.tau' and '0.005'."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)
