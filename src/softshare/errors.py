"""The errors that softshare raises on purpose. A message says what was expected, what came, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class SoftShareError(Exception):
    """The base of all errors raised on purpose:

        try:
            softshare.load("model.sws")
        except softshare.SoftShareError as problem:
            print(problem)

    The command line turns it into exit status 2.
    """


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


class TaskError(SoftShareError):
    """The user's own code failed: a function of a Task, its data, or `make_task`. `__cause__` is what it raised."""


class NotANumberError(SoftShareError, FloatingPointError):
    """A number that a task measures is NaN or infinite. In training this becomes a `DivergedError`.

    `problem` is the message without the place in the run.
    """

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(problem + place)
        self.problem = problem


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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.state), self.__dict__  # pickle passes only the message by itself
