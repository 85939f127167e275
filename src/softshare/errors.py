"""Every error softshare raises on purpose. A message says what was expected, what came, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class SoftShareError(Exception):
    """Base of all errors raised on purpose; the command line turns it into exit status 2."""


class ConfigError(SoftShareError, ValueError):
    """An option, a config object or a Task is not usable."""


class ModelError(SoftShareError):
    """The network, or a state dict for it, is not usable."""


class FormatError(SoftShareError):
    """A file is not what it should be; of an `.sws` file, `section` and `offset` (in bytes) say where."""

    def __init__(
        self, problem: str, section: str | None = None, offset: int | None = None, path: str | None = None
    ) -> None:
        place = section if offset is None else f"{section}, byte {offset}"
        super().__init__(": ".join(part for part in (path, place, problem) if part is not None))
        self.problem, self.section, self.offset, self.path = problem, section, offset, path


class NotAvailableError(SoftShareError):
    """Something asked for is not installed or not present on this machine."""


class DivergedError(SoftShareError):
    """Training produced a NaN or infinite loss; `state` is the model's state dict after the last good epoch."""

    def __init__(self, message: str, state: dict[str, Tensor]) -> None:
        super().__init__(message)
        self.state = state
