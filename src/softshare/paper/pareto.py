"""Plots of error against bytes, one per experiment. Drawing needs matplotlib, which is loaded on use."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass

from softshare.errors import NotAvailableError
from softshare.paper.baselines import OWN_ACCOUNTING
from softshare.paper.published import published
from softshare.paper.results_page import Point
from softshare.report.style import SERIES, can_draw, plain_texts
from softshare.result import frontier

Series = dict[str, list[tuple[float, float]]]  # label -> (bytes, error in percent)
_MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Pareto:
    """What a plot shows."""

    experiment: str
    ours: Series  # results of this repository, rivals included
    published: Series
    frontiers: Series

    @property
    def digest(self) -> str:
        """Identifies the figures. It is in the metadata of a picture, so a picture of other figures is recognised."""
        values = json.dumps([self.experiment, self.ours, self.published, self.frontiers])
        return hashlib.sha256(values.encode()).hexdigest()


def pareto_data(experiment: str, points: Iterable[Point]) -> Pareto:
    """Every result here, every published row of real bytes, and the frontier of our methods' means."""
    ours: Series = {}
    means: Series = {}  # apart for augmentation, because only like compares with like
    for point in points:
        ours.setdefault(point.label, []).extend((r.file_bytes, r.error_after) for r in point.results)
        if point.first.method not in OWN_ACCOUNTING:  # rivals are not ours
            name = "our frontier, augmented" if point.augmented else "our frontier"
            means.setdefault(name, []).append((point.n_bytes, point.error_after))
    theirs: Series = {}
    for row in published(experiment):
        if row.accounting == "c" and row.n_bytes is not None:  # estimates may not share an axis with bytes
            label = f"{row.who} ({row.note})" if row.note else row.who
            theirs.setdefault(label, []).append((row.n_bytes, row.error_after))
    return Pareto(experiment, ours, theirs, {name: frontier(values) for name, values in means.items()})


def is_current(png: bytes, data: Pareto) -> bool:
    return data.digest.encode() in png


def draw_pareto(data: Pareto) -> bytes:
    """A PNG. Results of this repository are filled, with our frontiers; published results are rings."""
    if not can_draw():
        raise NotAvailableError("plots need matplotlib: pip install 'softshare[report]'")
    from matplotlib.figure import Figure  # no pyplot: nothing global, and no window

    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.subplots()
    for k, (label, values) in enumerate((*data.ours.items(), *data.published.items())):
        colour, marker = SERIES[k % len(SERIES)], _MARKERS[k % len(_MARKERS)]
        filled = colour if k < len(data.ours) else "none"
        n_bytes, errors = zip(*values, strict=True)
        axes.scatter(n_bytes, errors, s=28, marker=marker, facecolors=filled, edgecolors=colour, label=label)
    for name, best in data.frontiers.items():
        dashes = "--" if "augmented" in name else "-"
        axes.plot(*zip(*best, strict=True), dashes, color="black", linewidth=0.8, drawstyle="steps-post", label=name)
    axes.set(xscale="log", xlabel="bytes", ylabel="test error %", title=data.experiment)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter("{x:,.0f}")
    axes.tick_params(axis="x", which="minor", labelsize="x-small", labelrotation=45)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="x-small")  # below the axes, where no point is
    file = io.BytesIO()
    plain_texts(figure).savefig(file, format="png", dpi=120, metadata={"Description": data.digest})
    return file.getvalue()
