"""What a study leaves in its folder: a pair for each trial, the front's pairs measured on the test set, its summary."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from softshare.codec import decode
from softshare.evaluate import Result, final_error, load_copy
from softshare.files import read_bytes, require_writable, write_atomic
from softshare.pareto import can_draw
from softshare.report.style import styled, to_png
from softshare.reproduce import write_pair
from softshare.runs import PRETRAINED, load_checkpoint
from softshare.search import Space
from softshare.task import Task
from softshare.trial_plots import draw_front, draw_settings, front_data, settings_data
from softshare.trials import Row, front, to_csv
from softshare.verify import JSON, SWS

TRIALS, FRONT = "trials", "front"
SUMMARY, FRONT_PLOT, SETTINGS_PLOT = "summary.csv", "front.png", "settings.png"


def prepare_folders(folder: Path) -> None:
    for needed in (folder, folder / TRIALS, folder / FRONT):
        require_writable(needed)


def trial_stem(folder: Path, number: int) -> Path:
    """Of the trial's file and result in the folder."""
    return folder / f"trial-{number:04d}"


def with_tests(rows: Sequence[Row], folder: Path, judge: Task) -> list[Row]:
    """The rows, those of the front with their test errors; the front's pairs are copied out, and no others left there.

    A point that was measured already is not measured again: the test set is read once for each. One whose trial ran
    elsewhere, in another folder, has no pair here and stays without, as do all where the judge has no test.
    """
    best = {trial_stem(folder / FRONT, row.trial).name for row in front(rows)}
    for file in (folder / FRONT).iterdir():
        if file.name.partition(".")[0] not in best:
            file.unlink()

    @functools.cache
    def error_before() -> float:
        return final_error(judge, load_copy(judge.model, load_checkpoint(folder / PRETRAINED)))

    measured = {row.trial: _tested(row, folder, judge, error_before) for row in front(rows)}
    return [
        dataclasses.replace(row, test_error_before=result.error_before, test_error=result.error_after)
        if (result := measured.get(row.trial))
        else row
        for row in rows
    ]


def _tested(row: Row, folder: Path, judge: Task, error_before: Callable[[], float]) -> Result | None:
    source, target = (trial_stem(folder / part, row.trial) for part in (TRIALS, FRONT))
    if target.with_suffix(JSON).exists() and (kept := Result.load(target.with_suffix(JSON))).dataset == judge.dataset:
        return kept
    if not source.with_suffix(JSON).exists():
        return None
    file = read_bytes(source.with_suffix(SWS))
    if judge.test is None:
        write_pair(target, file, Result.load(source.with_suffix(JSON)))
        return None
    model = load_copy(judge.model, decode(file, like=judge.model, max_bytes=None).state_dict())
    result = dataclasses.replace(
        Result.load(source.with_suffix(JSON)),
        dataset=judge.dataset,
        error_before=error_before(),
        error_after=final_error(judge, model),
    )
    write_pair(target, file, result)
    return result


def write_summary(rows: Sequence[Row], folder: Path, title: str, space: Space) -> None:
    """The table and, where they can be drawn, its two figures."""
    write_atomic(folder / SUMMARY, to_csv(rows))
    if can_draw() and front(rows):
        with styled():
            write_atomic(folder / FRONT_PLOT, to_png(draw_front(front_data(title, rows))))
            write_atomic(folder / SETTINGS_PLOT, to_png(draw_settings(settings_data(title, rows, space))))
