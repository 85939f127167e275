"""Targets of a compression: the error it may reach, or the file size it must fit into."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from softshare.errors import ConfigError


@dataclass(frozen=True)
class MaxBytes:
    """The best network whose file has at most `max_bytes` bytes, with everything in it counted."""

    max_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.max_bytes, int) or isinstance(self.max_bytes, bool) or self.max_bytes < 1:
            raise ConfigError(f"MaxBytes: expected a whole number of at least 1, got {self.max_bytes!r}")


@dataclass(frozen=True)
class MaxError:
    """The smallest file whose network has an error of at most `max_error` percent, by `Task.evaluate`."""

    max_error: float

    def __post_init__(self) -> None:
        _require_percent("MaxError", self.max_error)


@dataclass(frozen=True)
class MaxErrorIncrease:
    """The smallest file whose error is at most `max_error_increase` percentage points above the network's before."""

    max_error_increase: float

    def __post_init__(self) -> None:
        _require_percent("MaxErrorIncrease", self.max_error_increase)


Target = MaxBytes | MaxError | MaxErrorIncrease


def _require_percent(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{name}: expected a number of at least 0, in percent, got {value!r}")


@dataclass(frozen=True)
class Outcome:
    """What a run reached of its target."""

    target: Target
    limit: float  # bytes of the file, or percent of error
    reached: float  # in the same unit; the error is `Task.evaluate` on the network that the file decodes to

    @property
    def met(self) -> bool:
        return self.reached <= self.limit

    def to_dict(self) -> dict[str, object]:
        return {
            "target": dataclasses.asdict(self.target),
            "limit": self.limit,
            "reached": self.reached,
            "met": self.met,
        }

    def __str__(self) -> str:
        in_bytes = isinstance(self.target, MaxBytes)
        limit, reached = (
            f"{value:,.0f} bytes" if in_bytes else f"{value:.4g}% validation error"
            for value in (self.limit, self.reached)
        )
        if self.met:
            return f"target met: {reached}, at most {limit} allowed"
        return f"target not met: at most {limit} allowed, the nearest that was found has {reached}"
