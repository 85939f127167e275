"""The course of a run by its history: where the hard phase was, and when a layer lost its last weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from softshare._util.schema import require
from softshare.config import RetrainConfig

DENSITY = "density/"  # followed by the name of a tensor: a column of the history
Row = Mapping[str, float]


def run_starts(rows: Sequence[Row]) -> list[int]:
    """The index of the first record of each run. A run starts where the one before ended."""
    return [k for k in range(len(rows)) if k == 0 or rows[k]["epoch"] <= rows[k - 1]["epoch"]]


def is_hard(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[bool]:
    """Whether each record is of the hard phase. Older histories do not say: there it follows from the settings."""
    if rows and "hard" in rows[0]:
        return [row["hard"] > 0 for row in rows]
    if not settings:
        return [False] * len(rows)
    hard_from = settings.get("hard_from", RetrainConfig().hard_from)
    require(isinstance(hard_from, int | float), "result.config.retrain.hard_from", "a number", hard_from)
    out: list[bool] = []
    starts = run_starts(rows)
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        length = end - start - 1
        out += [k > 0 and (k - 0.5) / length >= hard_from for k in range(end - start)]
    return out


def hard_spans(rows: Sequence[Row], hard: Sequence[bool]) -> Iterator[tuple[float, float]]:
    """From which epoch to which the network ran on quantized weights, once for each run that had such a phase."""
    starts, first = set(run_starts(rows)), None
    for k, row in enumerate(rows):
        if hard[k] and first is None:
            first = row["epoch"] if k in starts else rows[k - 1]["epoch"]
        ends = k + 1 == len(rows) or k + 1 in starts or not hard[k + 1]
        if first is not None and ends:
            yield first, row["epoch"]
            first = None


def died(rows: Sequence[Row], tensor: str, last: float | None = None) -> float | None:
    """The epoch from which all weights of a tensor are zero, up to the last one. None if some are left there.

    `last` is the epoch of the network in the file, where it is not the last of all.
    """
    found: float | None = None
    for row in rows:
        if last is not None and row["epoch"] > last:
            break
        density = row.get(DENSITY + tensor, 1.0)
        found = None if density > 0 else row["epoch"] if found is None else found
    return found
