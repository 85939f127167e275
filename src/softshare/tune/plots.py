"""A study's two figures: the paper's figure 2, and what the settings have to do with it. Drawing needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from softshare.config import Range
from softshare.report.style import BAD, FAINT, INK, SERIES, colours, new_figure, scale
from softshare.result import frontier
from softshare.task import Metric
from softshare.tune.space import Space
from softshare.tune.trials import Row, chance, rank_correlations

CROWDED = 4  # times the median
FRONT_SIZE, ALONE_SIZE = (6.4, 10.5), (6.4, 7.0)  # of two panels and of one
_RINGS = "oDs^"
Points = list[tuple[float, float]]  # (compression ratio, how much worse the metric is: points of accuracy lost)


@dataclass(frozen=True)
class Panel:
    """One accounting: ratios of another may not share its axis."""

    label: str
    trials: Points  # complete ones
    pruned: Points  # those of them that left a file
    front: Points
    tested: Points  # the front's files on the test set
    published: Mapping[str, Points]


@dataclass(frozen=True)
class FrontData:
    title: str
    order: list[int]  # of the trials in both panels
    file: Panel
    paper: Panel
    loss: str  # what the second number of each point is

    @property
    def panels(self) -> list[Panel]:
        """The paper's format is there to compare with what was published. Of a user's network nothing was."""
        return [self.file, self.paper] if self.file.published or self.paper.published else [self.file]

    @property
    def size(self) -> tuple[float, float]:
        return FRONT_SIZE if len(self.panels) > 1 else ALONE_SIZE


@dataclass(frozen=True)
class Others:
    """What others have published of the same network, by who they are: real bytes, and estimates in Han's format."""

    file: Mapping[str, Points] = field(default_factory=dict)
    paper: Mapping[str, Points] = field(default_factory=dict)


def no_others(title: str) -> Others:
    return Others()


def loss_label(metric: Metric) -> str:
    """What a trial costs, in words. Of an error in percent it is the accuracy lost, as in the paper."""
    if metric == Metric():
        return "accuracy lost, percent points"
    what = f"{metric.name} lost" if metric.higher_is_better else f"rise of the {metric.name}"
    unit = "percent points" if metric.unit == "%" else metric.unit
    return f"{what}, {unit}" if unit else what


def front_data(title: str, rows: Sequence[Row], others: Others, metric: Metric) -> FrontData:
    """Every trial that left a file; beside them what was published of the same network, each in its own accounting."""
    files = _panel("ratio", "real bytes", "ratio", rows, others.file, metric)
    in_paper = "ratio in the paper's format", "estimated bits, weights only", "han_ratio"
    paper = _panel(*in_paper, rows, others.paper, metric)
    order = [row.trial for row in rows if row.state == "complete"]
    return FrontData(title, order, files, paper, loss_label(metric))


def _panel(
    label: str, accounting: str, ratio: str, rows: Sequence[Row], theirs: Mapping[str, Points], metric: Metric
) -> Panel:
    def rise(before: float | None, after: float | None) -> float:
        return math.nan if after is None or before is None else metric.loss(before, after)

    def points(state: str) -> Points:
        found = [row for row in rows if row.state == state and row.file_bytes is not None]
        return [(getattr(row, ratio), rise(row.validation_error_before, row.validation_error)) for row in found]

    complete = points("complete")
    best = frontier((1 / r, lost) for r, lost in complete)
    tested = [row for row in rows if row.test_error is not None]
    return Panel(
        label=f"{label}; others: {accounting}" if theirs else label,
        trials=complete,
        pruned=points("pruned"),
        front=[(1 / inverse, lost) for inverse, lost in best],
        tested=[(getattr(row, ratio), rise(row.test_error_before, row.test_error)) for row in tested],
        published=theirs,
    )


def draw_front(data: FrontData) -> Any:
    """What is lost against ratio. Trials are points, coloured by order, the front is a line, and others are rings."""
    figure = new_figure(*data.size)
    from matplotlib.ticker import LogLocator, MaxNLocator

    panels = data.panels
    all_axes = figure.subplots(len(panels), 1, sharey=True, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, panels, strict=True):
        points: dict[str, Any] = {"c": data.order, "cmap": scale(), "edgecolors": FAINT, "linewidths": 0.4}
        dots = axes.scatter(*zip(*panel.trials, strict=True), s=24, zorder=2, **points)
        axes.plot(*zip(*panel.front, strict=True), color=INK, linewidth=0.8, drawstyle="steps-post", label="front")
        marks = [("its files, on the test set", panel.tested, {"marker": "*", "c": BAD})]
        for k, (who, theirs) in enumerate(panel.published.items()):
            colour = colours(len(panel.published))[k]
            marks.append((who, theirs, {"facecolors": "none", "edgecolors": colour, "marker": _RINGS[k % 4]}))
        for label, found, style in marks:
            if found:
                axes.scatter(*zip(*found, strict=True), s=48, label=label, **style)
        axes.set(xscale="log", xlabel=panel.label)
        axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # what was pruned may lie far off
        if panel.pruned:
            axes.scatter(*zip(*panel.pruned, strict=True), marker="x", s=16, c=FAINT, label="pruned", zorder=1)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set(ylabel=data.loss)
        _spread(axes, [lost for _, lost in panel.trials])
        axes.grid(visible=True)
        axes.legend(loc="upper left", bbox_to_anchor=(0, -0.14))  # below, where no point is
    figure.suptitle(data.title, fontsize=10)
    figure.colorbar(dots, ax=figure.axes, label="trial", aspect=40, ticks=MaxNLocator(integer=True))
    return figure


def _spread(axes: Any, losses: Sequence[float]) -> None:
    """A logarithmic axis above the median, if a few trials have lost so much that the others would crowd."""
    positive = sorted(lost for lost in losses if lost > 0)
    middle = positive[len(positive) // 2] if positive else 0.0
    if not middle or positive[-1] <= CROWDED * middle:
        return
    low, high = axes.get_ylim()[0], 1.3 * positive[-1]
    axes.set_yscale("symlog", linthresh=middle)
    ticks = [factor * 10.0**power for power in range(-12, 13) for factor in (1, 2, 5)]
    axes.set_yticks([0, *(tick for tick in ticks if middle / 3 < tick < high)])
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(low, high)


@dataclass(frozen=True)
class SettingsData:
    title: str
    names: list[str]
    ranges: list[Range]
    lines: list[list[float]]  # of a complete trial, from 0 at the low end of each range to 1
    ratios: list[float]
    on_front: list[bool]
    correlations: list[tuple[float, float]]  # of a setting, by rank, with the metric and bytes
    chance: float  # a correlation below this says nothing
    metric: str  # its name


def settings_data(title: str, rows: Sequence[Row], space: Space, metric: Metric) -> SettingsData:
    complete = [row for row in rows if row.state == "complete"]
    found = rank_correlations(complete)
    return SettingsData(
        title=title,
        names=list(space),
        ranges=list(space.values()),
        lines=[[_place(row.settings[name], range) for name, range in space.items()] for row in complete],
        ratios=[row.ratio or math.nan for row in complete],
        on_front=[row.on_front for row in complete],
        correlations=[found[name] for name in space],
        chance=chance(len(complete)),
        metric=metric.name,
    )


def _place(value: float, range: Range) -> float:
    scale = math.log if range.log else float
    low, high = scale(range.low), scale(range.high)
    return (scale(value) - low) / (high - low)


def draw_settings(data: SettingsData, beside: tuple[float, float] = FRONT_SIZE) -> Any:
    """As tall on the page as a figure of the size `beside`.

    Above, each trial is a line through its settings, coloured by ratio on the front. Below, rank correlations.
    """
    width = max(beside[0], 0.68 * len(data.names))
    figure = new_figure(width, width * beside[1] / beside[0])
    lines, bars = figure.subplots(2, 1, height_ratios=(3, 2))
    places = range(len(data.names))
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    colours: Any = ScalarMappable(LogNorm(min(data.ratios), max(data.ratios)), scale())
    for line, ratio, best in sorted(zip(data.lines, data.ratios, data.on_front, strict=True), key=lambda t: t[2]):
        style = {"color": colours.to_rgba(ratio), "linewidth": 1.8} if best else {"color": FAINT, "linewidth": 0.3}
        lines.plot(places, line, **style)
    for place, ends in zip(places, data.ranges, strict=True):
        lines.axvline(place, color=FAINT, linewidth=0.5)
        for y, value, side in ((-0.02, ends.low, "top"), (1.02, ends.high, "bottom")):
            lines.text(place, y, f"{value:g}", ha="center", va=side, fontsize=8)
    for axes in (lines, bars):
        axes.set(xlim=(-0.5, len(data.names) - 0.5))
    lines.set(ylim=(-0.1, 1.1), yticks=[], title=f"{data.title}: the front's settings, in colour, among all")
    lines.set_xticks(places, [])
    figure.colorbar(colours, ax=lines, label="ratio", format="{x:g}").ax.yaxis.set_minor_formatter("{x:g}")
    errors, sizes = zip(*data.correlations, strict=True)
    bars.bar([p - 0.2 for p in places], errors, 0.4, color=SERIES[0], label=f"with the {data.metric}")
    bars.bar([p + 0.2 for p in places], sizes, 0.4, color=SERIES[1], label="with the bytes")
    chance = {"color": FAINT, "alpha": 0.2, "linewidth": 0}
    bars.axhspan(-data.chance, data.chance, zorder=0, label="chance, 19 of 20", **chance)
    bars.set(ylim=(-1, 1), ylabel="rank correlation")
    bars.set_xticks(places, data.names, rotation=40, ha="right")
    figure.legend(loc="outside lower center", ncols=3)
    return figure
