"""What a study leaves: a folder for each trial, those of the front measured on the test set, and its summary."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from softshare._util.files import read_bytes, require_folder, require_plain, require_writable, write_atomic
from softshare._util.run_folder import MODEL, PRETRAINED, RESULT, remove_run, write_pair
from softshare.codec import load_into_
from softshare.errors import ConfigError
from softshare.network.checkpoint import load_checkpoint
from softshare.network.wrapped import copied, unwrapped
from softshare.report.style import can_draw, styled, to_png
from softshare.result import Result, load_copy, other_measures
from softshare.task import Metric, Task
from softshare.train.hooks import say_nothing
from softshare.tune.plots import Others, draw_front, draw_settings, front_data, settings_data
from softshare.tune.space import Space
from softshare.tune.trials import Row, front, to_csv

TRIALS, FRONT = "trials", "front"
SUMMARY_OPENING = b"trial,state,"  # its first columns
SUMMARY, FRONT_PLOT, SETTINGS_PLOT = "summary.csv", "front.png", "settings.png"


def prepare_folders(folder: Path) -> None:
    """Make them. What would be replaced at the end must be a study's."""
    for needed in (folder, folder / TRIALS, folder / FRONT):
        require_folder(needed)
    is_summed_up = require_plain(folder / SUMMARY) is not None
    if is_summed_up and not read_bytes(folder / SUMMARY).startswith(SUMMARY_OPENING):
        raise _foreign(folder / SUMMARY)
    for plot in (FRONT_PLOT, SETTINGS_PLOT):
        if require_plain(folder / plot) is not None and not is_summed_up:
            raise _foreign(folder / plot)
    for needed in (folder, folder / TRIALS, folder / FRONT):
        require_writable(needed)


def _foreign(path: Path) -> ConfigError:
    return ConfigError(f"cannot write {path}: no study has written the file that is there. Give another --out")


def trial_folder(folder: Path, number: int) -> Path:
    """Holds the trial's file and result."""
    return folder / f"trial-{number:04d}"


def with_tests(rows: Sequence[Row], folder: Path, judge: Task) -> list[Row]:
    """The rows, those of the front with their test errors; the front's pairs are copied out, and no others left there.

    A point that was measured already is not measured again: the test set is read once for each. One whose trial ran
    elsewhere, in another folder, has no pair here and stays without, as do all where the judge has no test.
    """
    best = {trial_folder(folder / FRONT, row.trial).name for row in front(rows)}
    for earlier in (folder / FRONT).iterdir():
        if re.fullmatch(r"trial-\d{4,}", earlier.name) and earlier.name not in best:
            remove_run(earlier)

    @functools.cache
    def before() -> dict[str, float]:
        return judge.judge_all(load_copy(judge.model, load_checkpoint(folder / PRETRAINED)), final=True)

    measured = {row.trial: _tested(row, folder, judge, before) for row in front(rows)}
    return [
        dataclasses.replace(row, test_error_before=result.error_before, test_error=result.error_after)
        if (result := measured.get(row.trial))
        else row
        for row in rows
    ]


def _tested(row: Row, folder: Path, judge: Task, before: Callable[[], dict[str, float]]) -> Result | None:
    source, target = (trial_folder(folder / part, row.trial) for part in (TRIALS, FRONT))
    if (target / RESULT).exists() and (kept := Result.load(target / RESULT)).dataset == judge.dataset:
        return kept
    if not (source / RESULT).exists():
        return None
    file, result = read_bytes(source / MODEL), Result.load(source / RESULT)
    if judge.test is None:
        write_pair(target, file, result.to_json().encode())
        return None
    model = copied(unwrapped(judge.model)).eval()
    load_into_(model, source / MODEL)
    after = judge.judge_all(model, final=True)
    result = dataclasses.replace(
        result,
        dataset=judge.dataset,
        error_before=before()[judge.metric.name],
        error_after=after[judge.metric.name],
        others=other_measures(judge, before(), after),
    )
    write_pair(target, file, result.to_json().encode())
    return result


def write_summary(
    rows: Sequence[Row],
    folder: Path,
    title: str,
    space: Space,
    others: Others,
    metric: Metric,
    say: Callable[[str], None] = say_nothing,
) -> None:
    """The table and, where they can be drawn, its two figures. A drawing that fails is told and left out."""
    write_atomic(folder / SUMMARY, to_csv(rows))
    if can_draw() and front(rows):
        try:
            with styled():
                write_atomic(folder / FRONT_PLOT, to_png(draw_front(front_data(title, rows, others, metric))))
                write_atomic(folder / SETTINGS_PLOT, to_png(draw_settings(settings_data(title, rows, space, metric))))
        except Exception as error:
            say(f"the figures of the study failed ({type(error).__name__}: {error}); all else is in {folder}")
