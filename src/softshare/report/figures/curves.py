"""Training curves: the columns of history.csv over the epochs or looks, except the seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from softshare._util.folding import fold
from softshare.report.course import DENSITY, run_starts
from softshare.report.frames import Array
from softshare.report.names import shortened
from softshare.report.ruined import ALL, ruined_data, some_of
from softshare.report.run import Run
from softshare.report.style import BAD, FAINT, INK, SERIES, describe, epoch_tips, mark_phases, new_figure, plain_log

MOST_LINES = 7
MOST_CHARACTERS = 44  # of a name in the legend
COLUMNS = {3: 15, 2: 29, 1: 100}  # of the legend, and the characters for which each has room
LEGEND_ROW = 0.17  # inches
_DASHES = ("-", "--", "-.", ":")  # beside the colours
CROWDED = 20  # times the median: with a larger value, a linear axis would show little else
_CURVES = {  # title, unit
    "validation_error": ("", ""),  # what the task measures
    "task_loss": ("Task loss", "mean"),
    "complexity_bits": ("Uncoded size, estimated by the mixtures", "kB"),
}
_OF_THE_PRIOR = {
    "components_alive": ("Components in use", ""),
    "prior_loss": ("Prior", "-log p(w, theta) in nats"),
    "tau": ("tau", ""),
}


@dataclass(frozen=True, eq=False)
class Curve:
    """Lines over the epochs or looks. The runs of a search come one after the other."""

    title: str
    unit: str
    epochs: Array  # (E,)
    lines: dict[str, Array]  # name -> (E,), NaN where nothing was measured
    log: bool = False
    counted: str = "epoch"  # or look
    starts: tuple[int, ...] = (0,)  # index of the first record of each run
    taken: float | None = None  # of several runs, where the network was taken
    hard: tuple[tuple[float, float], ...] | None = None  # the hard phases, from epoch to epoch; None if not known
    ruined: Mapping[str, str] = field(default_factory=dict)  # what lines have tensors that are all zero at the end


def curves_data(run: Run) -> tuple[Curve, ...]:
    unit = "percent" if run.metric.unit == "%" else run.metric.unit
    titles = _CURVES | {"validation_error": (f"Validation {run.metric.name}", unit)}
    return (*_of_columns(run, titles), *_densities(run))


def prior_curves_data(run: Run) -> tuple[Curve, ...]:
    return _of_columns(run, _OF_THE_PRIOR)


def _of_columns(run: Run, titles: dict[str, tuple[str, str]]) -> tuple[Curve, ...]:
    found = []
    for column, (title, unit) in titles.items() if run.history else ():
        values = np.array([row[column] for row in run.history])
        lines = {"": values / 8000 if column == "complexity_bits" else values}
        found.append(Curve(title, unit, lines=lines, log=_crowded(values), **_about(run)))
    return tuple(found)


def _about(run: Run) -> Any:
    epochs, starts = np.array([row["epoch"] for row in run.history]), tuple(run_starts(run.history))
    taken = float(run.frames.epochs[-1]) if run.frames and run.result and len(starts) > 1 else None
    hard = run.hard_spans if run.knows_phases else None
    return {"epochs": epochs, "counted": run.counted, "starts": starts, "taken": taken, "hard": hard}


def _crowded(values: Array) -> bool:
    known = values[np.isfinite(values)]
    return bool(known.size and known.min() > 0 and known.max() > CROWDED * np.median(known))


def _densities(run: Run) -> tuple[Curve, ...]:
    names = [name.removeprefix(DENSITY) for name in run.history[-1] if name.startswith(DENSITY)] if run.history else []
    if not names:
        return ()
    blocks = _blocks(run, names) if len(names) > MOST_LINES else {name: [name] for name in names}
    lines = {label: _mean(run, own) for label, own in blocks.items()}
    order = sorted(lines, key=lambda label: -lines[label][-1])
    step = max(1, len(order) / MOST_LINES)  # of many lines, show a few from the densest to the sparsest
    lines = {order[int(k * step)]: lines[order[int(k * step)]] for k in range(min(MOST_LINES, len(order)))}
    dead = {found.name for found in ruined_data(run)}
    counts = {label: sum(name in dead for name in blocks[label]) for label in lines}
    ruined = {label: some_of(n, len(blocks[label])) for label, n in counts.items() if n}
    return (Curve("Density", "share of non-zero weights", lines=lines, log=True, ruined=ruined, **_about(run)),)


def _blocks(run: Run, names: list[str]) -> dict[str, list[str]]:
    """The tensors of a file by line: those of one shape in repeated blocks are one. A history knows no shapes."""
    shapes = {t.name: t.shape for t in run.info.tensors} if run.info else {}
    found = fold(names, [shapes.get(name) or name for name in names])
    return {label: [names[k] for k in places] for label, places in found}


def _mean(run: Run, names: list[str]) -> Array:
    found: Array = np.array([[row[DENSITY + name] for name in names] for row in run.history]).mean(1)
    return found


def draw_curves(data: Curve) -> Any:
    labels = _labels(data)
    columns = next(n for n, most in COLUMNS.items() if max(map(len, labels)) <= most)
    rows = -(-len(labels) // columns) if len(labels) > 1 else 0
    figure = new_figure(4.8, 2.9 + LEGEND_ROW * rows)
    axes = figure.subplots()
    for k, (name, values) in enumerate(data.lines.items()):
        colour, dash = SERIES[k], _DASHES[k % len(_DASHES)]
        shown = np.where(values > 0, values, np.nan) if data.log else values
        for start, end in zip(data.starts, (*data.starts[1:], len(shown)), strict=True):
            own = slice(start, end)
            label = labels[k] if start == 0 else None
            alone = "o" if np.isfinite(shown[own]).sum() == 1 else None  # a line needs two points
            axes.plot(data.epochs[own], shown[own], dash, marker=alone, color=colour, linewidth=1.6, label=label)
        left = np.flatnonzero(np.isfinite(shown))
        if data.ruined.get(name) == ALL and left.size:
            axes.plot(data.epochs[left[-1]], shown[left[-1]], "X", ms=8, color=BAD, mew=0, zorder=5)
    for start in data.starts[1:]:
        axes.axvline(data.epochs[start], color=FAINT, linewidth=0.8, zorder=0)
    if data.taken is not None:
        axes.axvline(data.taken, color=INK, linewidth=0.8, linestyle=":", zorder=0)
    _scale(axes, data)
    texts = [
        ", ".join(f"{name} {values[e]:.4g}".strip() for name, values in data.lines.items())
        for e in range(len(data.epochs))
    ]
    mark_phases(axes, data.epochs, data.hard)
    epoch_tips(axes, data.epochs, texts, data.counted)
    if len(data.lines) > 1:
        figure.legend(loc="outside lower center", ncols=columns)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y")
    axes.set(xlabel=data.counted, ylabel=data.unit)
    axes.set_title(data.title, pad=14)
    describe(figure, f"{data.title} by {data.counted}: {_course(data)}")
    return figure


def _labels(data: Curve) -> list[str]:
    names = shortened(list(data.lines), MOST_CHARACTERS)
    return [
        text + (f" ({data.ruined[name]})" if name in data.ruined else "")
        for name, text in zip(data.lines, names, strict=True)
    ]


def _scale(axes: Any, data: Curve) -> None:
    if data.log:
        axes.set_yscale("log")
        plain_log(axes.yaxis)
    elif all((values == values.round()).all() for values in data.lines.values()):
        axes.yaxis.get_major_locator().set_params(integer=True)


def _course(data: Curve) -> str:
    """The first and the last value of each line, in words."""
    said = []
    for name, values in data.lines.items():
        known = values[np.isfinite(values)]
        if known.size:
            said.append(f"{name} from {known[0]:.4g} to {known[-1]:.4g}".strip())
    return ", ".join(said)
