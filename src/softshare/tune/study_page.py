"""The report of a study: its two figures and its trials, as a page and as files, from the folder's table alone."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from softshare._util.files import read_bytes, write_atomic
from softshare._util.run_folder import MODEL, PAGE, RESULT, run_files
from softshare.errors import ConfigError
from softshare.report.headline import Lead, said, task_of
from softshare.report.page import Figure, Page, render
from softshare.report.run import drawn_from
from softshare.report.style import require_matplotlib, styled
from softshare.report.table import Table
from softshare.report.write import make_report_folder, write_picture
from softshare.result import Result
from softshare.task import Metric
from softshare.tune.choice import Choice, by_front, choose
from softshare.tune.plots import (
    FrontData,
    Others,
    draw_front,
    draw_settings,
    front_data,
    loss_label,
    no_others,
    settings_data,
)
from softshare.tune.space import known_ranges
from softshare.tune.study_folder import FRONT, SUMMARY, trial_folder
from softshare.tune.trials import Row, from_csv, front

STOPPED = "stopped early"  # what a pruned trial has in place of figures
PANELS = (  # where others have published
    " The upper panel counts whole files, the lower one the paper's format. Each has the published figures that were "
    "counted in the same way."
)
CAPTIONS = {  # LOST and METRIC stand for those of the study
    "front": (
        "Trials",
        "LOST against ratio. Each point is a trial, and its colour is its place in the order.PANELS (Figure 2 of the "
        "paper.)",
    ),
    "settings": (
        "Settings",
        "Each line is a trial and passes through its settings. Those of the front are coloured. Below is the rank "
        "correlation of each setting with METRIC and bytes.",
    ),
}


def write_study_report(study: Path, folder: Path, others: Callable[[str], Others] = no_others) -> list[Path]:
    """The files written, the page first."""
    require_matplotlib()
    rows = from_csv(read_bytes(study / SUMMARY), str(study / SUMMARY))
    if not front(rows):
        raise ConfigError(f"{study / SUMMARY}: no trial has come to its end yet; there is nothing to show")
    with drawn_from(study):
        return _write(study, folder, rows, others)


def _write(study: Path, folder: Path, rows: Sequence[Row], others: Callable[[str], Others]) -> list[Path]:
    title, metric = study_title(study), study_metric(study)
    points = front_data(title, rows, others(title), metric)
    written, drawn = [folder / PAGE], study_figures(points, rows, metric)
    panels = PANELS if len(points.panels) > 1 else ""
    lost = loss_label(metric).partition(",")[0].capitalize()
    pictures = make_report_folder(folder)
    sections = []
    for name, drawing in drawn.items():
        svg, files = write_picture(drawing, pictures, name)
        heading, caption = CAPTIONS[name]
        caption = caption.replace("LOST", lost).replace("METRIC", metric.name).replace("PANELS", panels)
        sections.append(Figure(name, heading, caption, [svg]))
        written += files
    taken = choose(rows, metric, _noise(study))
    page = Page(
        title=f"softshare: a study of {said(title)}",
        lead=Lead(taken.fate, taken.sentence) if taken else Lead("unknown", "No trial of the front has been measured."),
        cards=_cards(rows, metric),
        figures=sections,
        facts=_facts(study, taken),
        command=_command(study, taken),
        tables=[_table(rows, metric, taken)],
    )
    write_atomic(written[0], render(page).encode())
    return written


def study_title(study: Path) -> str:
    """What was compressed, by the front's results; the folder's name where there is none."""
    found = _front_result(study)
    return found.experiment if found else study.resolve().name


def study_metric(study: Path) -> Metric:
    """What the trials are judged by, by the front's results; the error in percent where there is none."""
    found = _front_result(study)
    return found.metric if found else Metric()


def _front_result(study: Path) -> Result | None:
    found = run_files(study / FRONT, RESULT)
    return Result.load(found[0]) if found else None


def study_figures(points: FrontData, rows: Sequence[Row], metric: Metric) -> dict[str, Any]:
    space = {name: ends for name, ends in known_ranges().items() if name in rows[0].settings}
    with styled():
        return {
            "front": draw_front(points),
            "settings": draw_settings(settings_data(points.title, rows, space, metric), points.size),
        }


def _cards(rows: Sequence[Row], metric: Metric) -> dict[str, str]:
    best = front(rows)
    return {
        "trials": f"{len(rows)}",
        "trained to their end": f"{sum(row.state == 'complete' for row in rows)}",
        "that no other beats": f"{len(best)}",
        "times smaller, at most": f"{best[0].ratio or 0:.1f}",
        f"validation {metric.name} before": metric.text(best[0].validation_error_before or 0),
        f"validation {metric.name}, at best": metric.text(best[-1].validation_error or 0),
    }


def _facts(study: Path, taken: Choice | None) -> dict[str, str]:
    found = _front_result(study)
    if not found or not taken:
        return {}
    return {
        "Network": said(found.experiment),
        "Data": said(found.dataset),
        "Its file": said(str(trial_folder(study / FRONT, taken.row.trial) / MODEL)),
    }


def _command(study: Path, taken: Choice | None) -> tuple[str, str]:
    """The command that uses the settings of the trial. Those of a trial that ran elsewhere are not here."""
    path = trial_folder(study / FRONT, taken.row.trial) / RESULT if taken else None
    if path is None or not path.exists():
        return "", ""
    words = ["softshare", "compress", task_of(Result.load(path)), "--config", str(path)]
    return "Compress with its settings", said(shlex.join(words), 2000)


def _noise(study: Path) -> float | None:
    """Of the validation metric; older results do not have it."""
    found = _front_result(study)
    noise = (found.outcome or {}).get("noise", found.noise) if found else None
    return None if noise is None else float(noise)


def _table(rows: Sequence[Row], metric: Metric, taken: Choice | None) -> Table:
    names = list(rows[0].settings)
    heads = ["trial", "on the front", f"validation {metric.label}", f"test {metric.label}", "bytes", "ratio", *names]
    lines, marks = [], {}
    for k, row in enumerate(by_front(rows)):
        values: list[tuple[float | None, Callable[[float], str]]] = [
            (row.validation_error, metric.number),
            (row.test_error, metric.number),
            (row.file_bytes, "{:,}".format),
            (row.ratio, "{:.1f}".format),
            *((row.settings.get(name), "{:.4g}".format) for name in names),
        ]
        of_values = [(value, "" if value is None else text(value)) for value, text in values]
        is_taken = taken is not None and row == taken.row
        if is_taken:
            marks[k] = "taken"
        on_front = "take this" if is_taken else "yes" if row.on_front else "" if row.state == "complete" else STOPPED
        lines.append([(row.trial, str(row.trial)), (int(row.on_front), on_front), *of_values])
    return Table("trials", "All trials", heads, lines, marks)
