"""A study's trials as rows: what each set, what came of it, and which of them no other beats."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softshare.errors import FormatError, NotAvailableError
from softshare.result import frontier
from softshare.task import Metric

if TYPE_CHECKING:
    import optuna

MEASURED, REASON = "measured", "reason"  # attributes of a trial in the study


@dataclass(frozen=True)
class Row:
    """One trial. What was not measured is None: a trial that was stopped has no file.

    An error here is the value of the task's metric, whatever that is.
    """

    trial: int
    state: str  # complete or pruned
    reason: str  # of pruning
    validation_error_before: float | None  # of the network that every trial starts from
    validation_error: float | None
    file_bytes: int | None
    ratio: float | None
    han_ratio: float | None  # of the same network in the paper's format
    seconds: float | None
    settings: dict[str, float]
    on_front: bool = False
    test_error_before: float | None = None  # of the front's points only, as the next
    test_error: float | None = None


def rows_of(study: optuna.Study, metric: Metric) -> list[Row]:
    """The finished trials, in their order, with the front marked."""
    rows = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name in ("COMPLETE", "PRUNED"):
            measured = trial.user_attrs.get(MEASURED, {})
            figures = {name: _figure(measured.get(name)) for name in _FIGURES}
            rows.append(
                Row(
                    trial=trial.number,
                    state=trial.state.name.lower(),
                    reason=str(trial.user_attrs.get(REASON, "")),
                    **figures,
                    settings={name: _figure(value) for name, value in trial.params.items()},
                )
            )
    return with_front(rows, metric)


def _figure(value: Any) -> Any:
    """The number, or None. What else is in a storage is not of `tune`."""
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    ):
        raise TypeError(f"expected a finite number for each figure and setting of a trial, got {value!r:.40}")
    return value


_FIGURES = ("validation_error_before", "validation_error", "file_bytes", "ratio", "han_ratio", "seconds")


def with_front(rows: Sequence[Row], metric: Metric) -> list[Row]:
    """The same rows, with those marked that no other complete one beats in both bytes and metric."""
    points = {row.trial: (row.file_bytes, row.validation_error) for row in rows if row.state == "complete"}
    known = {k: (n, metric.badness(e)) for k, (n, e) in points.items() if n is not None and e is not None}
    best = {min(k for k, point in known.items() if point == p) for p in frontier(known.values())}
    return [dataclasses.replace(row, on_front=row.trial in best) for row in rows]


def front(rows: Iterable[Row]) -> list[Row]:
    """The marked rows, smallest file first."""
    return sorted((row for row in rows if row.on_front), key=lambda row: row.file_bytes or 0)


def to_csv(rows: Sequence[Row]) -> bytes:
    """One line a trial; each setting is a column."""
    names = list(dict.fromkeys(name for row in rows for name in row.settings))
    figures = [f.name for f in dataclasses.fields(Row) if f.name != "settings"]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*figures, *names])
    for row in rows:
        values = [getattr(row, name) for name in figures] + [row.settings.get(name) for name in names]
        writer.writerow([_cell(value) for value in values])
    return file.getvalue().encode()


def from_csv(data: bytes, where: str) -> list[Row]:
    """The rows of such a table, its figures as they were rounded there."""
    fields = {f.name: f.type for f in dataclasses.fields(Row) if f.name != "settings"}
    try:
        rows = []
        for line in csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True):
            figures = {name: _value(line.pop(name), str(kind)) for name, kind in fields.items()}
            rows.append(Row(**figures, settings={name: float(value) for name, value in line.items() if value != ""}))
        return rows
    except (csv.Error, KeyError, TypeError, ValueError) as problem:
        raise FormatError(
            f"{where}: expected a line for each trial, as softshare tune writes it ({problem!r})"
        ) from None


def _value(text: str, kind: str) -> Any:
    if text == "" and "None" in kind:
        return None
    of_text: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "bool": "True".__eq__, "str": str}
    return of_text[kind.partition(" ")[0]](text)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# What the settings have to do with the outcome


def rank_correlations(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Of each setting with the validation error and with the bytes, over complete trials (Spearman's)."""
    complete = [row for row in rows if row.state == "complete"]
    errors = [row.validation_error or 0.0 for row in complete]
    sizes = [float(row.file_bytes or 0) for row in complete]
    found = {}
    for name in complete[0].settings if complete else ():
        values = [row.settings.get(name, 0.0) for row in complete]
        found[name] = _spearman(values, errors), _spearman(values, sizes)
    return found


def _spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """0 where one of them is the same throughout: it has no ranks to compare."""
    try:
        from scipy.stats import spearmanr
    except ImportError:
        raise NotAvailableError("the report of a study needs scipy: pip install 'softshare[tune]'") from None
    return float(spearmanr(a, b).statistic) if len(set(a)) > 1 and len(set(b)) > 1 else 0.0


def chance(n: int) -> float:
    """Below this, 19 of 20 rank correlations of n unconnected values lie (for n not very small)."""
    return min(1.0, 1.96 / math.sqrt(n - 1)) if n > 1 else 1.0
