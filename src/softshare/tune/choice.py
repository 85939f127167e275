"""Which trial of a study to take: the smallest file of the front whose network is as good as before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from softshare.task import Metric
from softshare.tune.trials import Row, front


@dataclass(frozen=True)
class Choice:
    row: Row
    fate: Literal["kept", "lost"]
    sentence: str


def choose(rows: Sequence[Row], metric: Metric, noise: float | None) -> Choice | None:
    """By the validation data alone. Without a known noise, as good as before means no worse. None without a front.

    If no network is as good, it is the best one.
    """
    found = [(row, _lost(row, metric)) for row in front(rows)]
    known = [(row, lost) for row, lost in found if lost is not None]
    if not known:
        return None
    kept = [row for row, lost in known if lost <= (noise or 0.0)]
    if kept:
        how = "is no worse than before" if noise is None else f"is within the noise of {metric.text(noise)}"
        return Choice(kept[0], "kept", f"Take trial {_about(kept[0], metric)} {how}. No smaller file is as good.")
    best, _ = min(known, key=lambda pair: pair[1])
    sentence = f"No trial is as good as before. Trial {_about(best, metric)} is the nearest."
    return Choice(best, "lost", sentence)


def _lost(row: Row, metric: Metric) -> float | None:
    before, after = row.validation_error_before, row.validation_error
    return None if before is None or after is None else metric.loss(before, after)


def _about(row: Row, metric: Metric) -> str:
    before, after = metric.text(row.validation_error_before or 0), metric.text(row.validation_error or 0)
    size = f"{row.file_bytes or 0:,} bytes, {row.ratio or 0:.0f} times smaller"
    return f"{row.trial}: {size}. Its validation {metric.name} {before} -> {after}"


def by_front(rows: Sequence[Row]) -> list[Row]:
    """The front, smallest file first; then the other complete trials, then the pruned ones."""
    return sorted(rows, key=lambda row: (not row.on_front, row.state != "complete", row.file_bytes or 0, row.trial))
