"""The errors that softshare raises on purpose. A message says what was expected, what came, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class SoftShareError(Exception):
    """The base of all errors raised on purpose. The command line turns it into exit status 2."""


class ConfigError(SoftShareError, ValueError):
    """An option, a setting or a Task cannot be used."""


class ModelError(SoftShareError):
    """A network, or a state dict for it, cannot be used."""


class FormatError(SoftShareError):
    """A file does not hold what it should. For an `.sws` file, `section` and `offset` (in bytes) say where."""

    def __init__(
        self, problem: str, section: str | None = None, offset: int | None = None, path: str | None = None
    ) -> None:
        place = section if offset is None else f"{section}, byte {offset}"
        super().__init__(": ".join(part for part in (path, place, problem) if part is not None))
        self.problem, self.section, self.offset, self.path = problem, section, offset, path


class NotAvailableError(SoftShareError):
    """A package, a device or a dataset is missing on this machine."""


class NotANumberError(SoftShareError, FloatingPointError):
    """The metric of a network is NaN. In training this becomes a `DivergedError`."""


class StoppedError(KeyboardInterrupt):
    """A signal stopped a run between two steps. `signal` is its number; the run's checkpoint is written."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message, signal)
        self.signal = signal

    def __str__(self) -> str:
        return str(self.args[0])


class DivergedError(SoftShareError):
    """Training produced a NaN or infinite loss. `state` is the model's state dict after the last good epoch."""

    def __init__(self, message: str, state: dict[str, Tensor]) -> None:
        super().__init__(message)
        self.state = state
