"""Targets of a compression: what the network may lose, or the file size it must fit into; and what came of them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.task import Metric, Task
from softshare.train.first_look import FirstLook


@dataclass(frozen=True)
class WithinNoise:
    """The smallest file whose network is as good as before, within the noise of the evaluation (`Task.noise`):

        softshare.compress(task, target=softshare.WithinNoise())

    This is the default target.
    """


@dataclass(frozen=True)
class MaxBytes:
    """The best network whose file has at most `max_bytes` bytes:

        softshare.compress(task, target=softshare.MaxBytes(20_000))

    Everything in the file counts: names, shapes, codebooks, and the tensors that are not shared.
    """

    max_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.max_bytes, int) or isinstance(self.max_bytes, bool) or self.max_bytes < 1:
            raise ConfigError(f"MaxBytes: expected a whole number of at least 1, got {self.max_bytes!r}")


@dataclass(frozen=True)
class MaxError:
    """The smallest file whose network has an error of at most `max_error`, by `Task.evaluate`:

        softshare.compress(task, target=softshare.MaxError(2.5))  # percent

    For a metric of which more is better, it is the smallest file whose metric is at least this.
    """

    max_error: float

    def __post_init__(self) -> None:
        if isinstance(self.max_error, bool) or not isinstance(self.max_error, int | float):
            raise ConfigError(f"MaxError: expected a number, got {self.max_error!r}")
        if not math.isfinite(self.max_error):
            raise ConfigError(f"MaxError: expected a finite number, got {self.max_error!r}")


@dataclass(frozen=True)
class MaxErrorIncrease:
    """The smallest file whose metric is at most `max_error_increase` worse than the network's before:

        softshare.compress(task, target=softshare.MaxErrorIncrease(0.5))

    It is in the unit of the metric: for an error in percent, in percentage points.
    """

    max_error_increase: float

    def __post_init__(self) -> None:
        value = self.max_error_increase
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"MaxErrorIncrease: expected a number of at least 0, got {value!r}")


@dataclass(frozen=True)
class MaxMacs:
    """The best network that needs at most this share of the multiply-adds of the network before:

        softshare.compress(task, target=softshare.MaxMacs(0.5))

    It is the network that `shrink` makes of the file: dense, without the units that do nothing. The run's prior over
    units is as strong as that takes.
    """

    max_macs_ratio: float

    def __post_init__(self) -> None:
        value = self.max_macs_ratio
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            raise ConfigError(f"MaxMacs: expected a share between 0 and 1, both excluded, got {value!r}")


Target = WithinNoise | MaxBytes | MaxError | MaxErrorIncrease | MaxMacs


def check_target(target: Target, config: CompressConfig) -> None:
    """Raise unless a run with this config can meet the target."""
    if not isinstance(target, Target):
        raise ConfigError(
            f"target: expected WithinNoise, MaxBytes, MaxError, MaxErrorIncrease or MaxMacs, got {target!r}"
        )
    if config.retrain.hard_from == 1 or not config.retrain.zeroing:
        raise ConfigError(
            "target: expected hard_from below 1 and zeroing above 0, because a target is met by zeroing in the hard "
            f"phase, got {config.retrain.hard_from} and {config.retrain.zeroing}"
        )


def default_target(config: CompressConfig) -> Target | None:
    """To lose nothing beyond the noise; none for settings without a hard phase, such as the paper's."""
    return WithinNoise() if config.retrain.hard_from < 1 and config.retrain.zeroing else None


def limit_of(target: Target | None, task: Task, first: FirstLook) -> float:
    """The target as an absolute limit: in bytes, as a share of the multiply-adds, or in the unit of the metric.

    Without one, everything is allowed.
    """
    match target:
        case WithinNoise():
            return task.metric.worse(first.before, first.noise)
        case MaxErrorIncrease(allowed):
            return task.metric.worse(first.before, allowed)
        case MaxError(limit) | MaxBytes(limit) | MaxMacs(limit):
            return limit
    return task.metric.worse(0.0, math.inf)


@dataclass(frozen=True)
class Outcome:
    """What became of the network, and of the run's target if it had one. The metric is that of `Task.evaluate`:

        outcome = compressed.outcome
        print(outcome.met, outcome.lost)

    As a text it says all of this in a sentence: `print(outcome)`.
    """

    target: Target | None
    metric: Metric
    before: float  # the metric of the network before
    after: float  # of the network that the file decodes to
    noise: float  # the standard error of `before`
    limit: float  # the target's, in the unit of `reached`; infinite without one
    n_bytes: int
    macs_ratio: float | None = None  # of the shrunk network and the network before, if the target is about it
    guessed: bool = False  # whether the noise is a guess
    broken: bool = False  # whether it answers all inputs alike, or has lost most of what it had learned

    @property
    def lost(self) -> float:
        """How much worse the metric became."""
        return self.metric.loss(self.before, self.after)

    @property
    def kept(self) -> bool:
        """Whether the network is as good as before, within the noise."""
        return self.metric.loss(self.metric.worse(self.before, self.noise), self.after) <= 0  # rounded as the limit is

    @property
    def reached(self) -> float:
        """Bytes, a share of the multiply-adds, or the metric, as the target counts."""
        if isinstance(self.target, MaxMacs):
            return math.inf if self.macs_ratio is None else self.macs_ratio
        return self.n_bytes if isinstance(self.target, MaxBytes) else self.after

    @property
    def met(self) -> bool:
        """Whether the target is met. A run without one has nothing to meet."""
        if self.target is None:
            return True
        if isinstance(self.target, MaxBytes | MaxMacs):
            return self.reached <= self.limit
        return self.metric.loss(self.limit, self.after) <= 0

    def to_dict(self) -> dict[str, object]:
        """Plain values, for `result.json`."""
        target = (
            None if self.target is None else {"kind": type(self.target).__name__, **dataclasses.asdict(self.target)}
        )
        return {
            "target": target,
            "limit": self.limit if self.target else None,
            "reached": self.reached,
            "met": self.met,
            "before": self.before,
            "after": self.after,
            "noise": self.noise,
            "guessed": self.guessed,
            "kept": self.kept,
            "broken": self.broken,
        }

    def __str__(self) -> str:
        metric = self.metric
        figures = (
            f"{metric.name} {metric.text(self.before)} before, {metric.text(self.after)} now on validation data, where "
            f"the noise is {metric.text(self.noise)}{' (a guess)' if self.guessed else ''}"
        )
        lost = f"lost {metric.text(self.lost)}" if metric.unit == "%" else f"got worse by {metric.text(self.lost)}"
        if self.broken:
            fate = f"broken, {lost}: {figures}"
        elif self.kept:
            fate = f"{kept_in_words(metric)}: {figures}"
        elif isinstance(self.target, WithinNoise):
            fate = f"no network without a loss was found, and the nearest {lost}: {figures}"
        else:
            fate = f"{lost}: {figures}"
        if self.target is None or isinstance(self.target, WithinNoise):
            return fate
        kind = type(self.target).__name__
        limit, reached = (in_unit_of(kind, metric, value) for value in (self.limit, self.reached))
        bound = bound_of(kind, metric)
        if self.met:
            return f"target met: {reached}, {bound} {limit} allowed; {fate}"
        return f"target not met: {bound} {limit} allowed, the nearest that was found has {reached}; {fate}"


def kept_in_words(metric: Metric) -> str:
    """A loss or a perplexity is no accuracy."""
    return "kept its accuracy" if metric.unit == "%" else "as good as before"


def in_unit_of(kind: str, metric: Metric, value: float) -> str:
    """A limit, or what was reached of it, in words. The kind is the name of the target's class."""
    if kind == "MaxBytes":
        return f"{value:,.0f} bytes"
    return f"{100 * value:.1f}% of the multiply-adds" if kind == "MaxMacs" else metric.text(value)


def bound_of(kind: str, metric: Metric) -> str:
    return "at least" if metric.higher_is_better and kind not in ("MaxBytes", "MaxMacs") else "at most"
