"""Training curves: the columns of history.csv over the epochs or looks, except the seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softshare._util.printable import shorten
from softshare.report.frames import Array
from softshare.report.run import Run
from softshare.report.style import FAINT, INK, SERIES, epoch_tips, new_figure

MOST_LINES = 7
_CURVES = {
    "validation_error": ("", ""),  # what the task measures
    "task_loss": ("Task loss", "mean"),
    "prior_loss": ("Prior", "-log p(w, theta) in nats"),
    "complexity_bits": ("Complexity cost by the mixtures", "kB"),
    "components_alive": ("Components in use", ""),
    "tau": ("tau", ""),
}
_DENSITY = "density/"


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


def curves_data(run: Run) -> tuple[Curve, ...]:
    if not run.history:
        return ()
    epochs = np.array([row["epoch"] for row in run.history])
    starts = (0, *(np.flatnonzero(np.diff(epochs) <= 0) + 1).tolist())  # a run starts where the one before ended
    taken = float(run.frames.epochs[-1]) if run.frames and run.result and len(starts) > 1 else None
    about: Any = {"counted": run.counted, "starts": starts, "taken": taken}
    found = []
    unit = "percent" if run.metric.unit == "%" else run.metric.unit
    titles = _CURVES | {"validation_error": (f"Validation {run.metric.name}", unit)}
    for column, (title, unit) in titles.items():
        values = np.array([row[column] for row in run.history])
        lines = {"": values / 8000 if column == "complexity_bits" else values}
        found.append(Curve(title, unit, epochs, lines, **about))
    names = [name for name in run.history[-1] if name.startswith(_DENSITY)]
    if names:
        last = run.history[-1]
        names.sort(key=lambda name: -last[name])
        step = max(1, len(names) / MOST_LINES)  # of many tensors, show a few from the densest to the sparsest
        chosen = [names[int(k * step)] for k in range(min(MOST_LINES, len(names)))]
        lines = {name.removeprefix(_DENSITY): np.array([row[name] for row in run.history]) for name in chosen}
        found.append(Curve("Density", "share of non-zero weights", epochs, lines, log=True, **about))
    return tuple(found)


def draw_curves(data: Curve) -> Any:
    figure = new_figure(4.8, 2.8 if len(data.lines) == 1 else 3.3)
    axes = figure.subplots()
    for k, (name, values) in enumerate(data.lines.items()):
        colour = SERIES[k % len(SERIES)]
        shown = np.where(values > 0, values, np.nan) if data.log else values
        for start, end in zip(data.starts, (*data.starts[1:], len(shown)), strict=True):
            own = slice(start, end)
            label = shorten(name, 24) if start == 0 else None
            axes.plot(data.epochs[own], shown[own], color=colour, linewidth=1.6, label=label)
    for start in data.starts[1:]:
        axes.axvline(data.epochs[start], color=FAINT, linewidth=0.8, zorder=0)
    if data.taken is not None:
        axes.axvline(data.taken, color=INK, linewidth=0.8, linestyle=":", zorder=0)
    if data.log:
        axes.set_yscale("log", subs=(2, 5))
        for axis_part in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis_part(lambda value, _: f"{value:g}")
    elif all((values == values.round()).all() for values in data.lines.values()):
        axes.yaxis.get_major_locator().set_params(integer=True)
    texts = [
        ", ".join(f"{name} {values[e]:.4g}".strip() for name, values in data.lines.items())
        for e in range(len(data.epochs))
    ]
    epoch_tips(axes, data.epochs, texts, data.counted)
    if len(data.lines) > 1:
        figure.legend(loc="outside lower center", ncols=3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y")
    axes.set(xlabel=data.counted, ylabel=data.unit)
    axes.set_title(data.title)
    return figure
