"""The page: one HTML file with everything in it, readable without a network."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from softshare._util.printable import printable, shorten
from softshare.codec.info import FileInfo
from softshare.report.figures.catalogue import FIGURES
from softshare.report.figures.film import film_data, film_for_page
from softshare.report.run import Run
from softshare.report.style import for_page
from softshare.result import Result
from softshare.task import Metric

MOST_ROWS = 2000  # tensors of the table
IN_PAGE = tuple(plot for plot in FIGURES if plot.name != "film")  # for which it has a slider


@dataclass(frozen=True)
class Figure:
    """A section of the page: the panels of one figure as matplotlib writes them."""

    name: str
    title: str
    caption: str
    panels: Sequence[str]
    wide: bool = False

    @property
    def svgs(self) -> list[Markup]:
        return [Markup(for_page(svg)) for svg in self.panels]  # matplotlib has escaped the names in them


@dataclass(frozen=True)
class Table:
    """A table that sorts; each cell is a value to sort by and a text."""

    name: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[tuple[Any, str]]]


@dataclass(frozen=True)
class Page:
    title: str
    cards: Mapping[str, str]  # what a number is, and the number
    figures: Sequence[Figure]
    table: Table | None = None
    films: Sequence[Mapping[str, Any]] = ()  # what the slider moves through, one for each mixture
    settings: str = ""
    version: str | None = None  # while the run is under way: the page asks its server for a newer one
    counted: str = "epoch"  # or look: what the slider moves through


def render(page: Page) -> str:
    """One HTML file. The template escapes every text: names come from files."""
    return _template().render(vars(page))


@functools.cache
def _template() -> Template:
    loader = PackageLoader("softshare.report", "")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    for name in ("page.css", "page.js"):  # our own, and no templates
        environment.globals[name.partition(".")[2]] = Markup(loader.get_source(environment, name)[0])
    return environment.get_template("page.html")


def render_page(run: Run, svgs: Mapping[str, Sequence[str]], version: str | None = None) -> str:
    """The page of a run, with the panels of each figure."""
    page = Page(
        title=f"softshare: {run.result.experiment if run.result else run.folder.resolve().name}",
        cards=_finished(run.result) if run.result else _under_way(run),
        figures=[Figure(p.name, p.title, p.caption, svgs[p.name], p.wide) for p in IN_PAGE if svgs[p.name]],
        table=_tensors(run.info) if run.info else None,
        films=[film_for_page(film) for film in film_data(run)],
        settings=_settings(run.result) if run.result else "",
        version=version,
        counted=run.counted,
    )
    return render(page)


def _under_way(run: Run) -> dict[str, str]:
    last, metric = run.history[-1], run.metric
    return {
        run.counted: f"{last['epoch']:g}",
        f"validation {metric.name}": metric.text(last["validation_error"]),
        "by the mixtures": f"{last['complexity_bits'] / 8000:.1f} kB",
        "components in use": f"{last['components_alive']:g}",
    }


def _finished(result: Result) -> dict[str, str]:
    metric = result.metric
    others = {name: " → ".join(map(_plain, pair)) for name, pair in (result.others or {}).items()}
    return {
        "bytes": f"{result.file_bytes:,}",
        "times smaller": f"{result.ratio:.1f}",
        f"{metric.name} before": metric.text(result.error_before),
        f"{metric.name} after": metric.text(result.error_after),
        **({} if result.noise is None else {f"noise of the {metric.name}": metric.text(result.noise)}),
        **others,
        "of the weights are left": f"{100 * result.n_nonzero / result.n_weights:.2f}%",
        "shared values": f"{result.n_components}",
    } | _outcome(result)


def _outcome(result: Result) -> dict[str, str]:
    """What the network lost on validation data, and whether a target is met that is another than to lose nothing."""
    outcome, metric = result.outcome, result.metric
    if outcome is None:
        return {}
    cards = {}
    if "kept" in outcome:  # older results do not have it
        before, after = outcome["before"], outcome["after"]
        figures = f"{metric.number(before)} → {metric.text(after)}, noise {metric.text(outcome['noise'])}"
        fate = "kept" if outcome["kept"] else f"lost {metric.text(metric.loss(before, after))}"
        cards[f"validation {metric.name} {figures}"] = fate
    return cards | _target(outcome, metric)


def _target(outcome: Mapping[str, Any], metric: Metric) -> dict[str, str]:
    if not outcome["target"] or outcome["target"].get("kind") == "WithinNoise":
        return {}
    in_bytes = "max_bytes" in outcome["target"]
    limit, reached = (f"{outcome[k]:,.0f}" if in_bytes else metric.text(outcome[k]) for k in ("limit", "reached"))
    most = "at least" if metric.higher_is_better and not in_bytes else "at most"
    unit = "bytes" if in_bytes else f"validation {metric.name}"
    return {f"target: {most} {limit} {unit}; {reached} reached": "met" if outcome["met"] else "not met"}


def _tensors(info: FileInfo) -> Table:
    heads = ("tensor", "kind", "shape", "weights", "non-zero %", "components", "bits per weight", "bytes", "share %")
    rows = []
    for k, t in enumerate(info.tensors[:MOST_ROWS], 1):
        density = None if t.density is None else 100 * t.density
        shape = "" if t.shape is None else " x ".join(map(str, t.shape)) or "scalar"
        name = None if t.name is None else shorten(printable(t.name), 200)
        bits, share = t.bits_per_weight, 100 * t.n_bytes / info.file_bytes
        cells: list[tuple[Any, str]] = [
            (k if name is None else name, name or f"tensor {k}"),
            (t.kind, t.kind),
            (t.n or 0, shape),
            (t.n, "" if t.n is None else f"{t.n:,}"),
            (density, "" if density is None else f"{density:.2f}"),
            (t.n_components, str(t.n_components or "")),
            (bits, "" if bits is None else f"{bits:.3f}"),
            (t.n_bytes, f"{t.n_bytes:,}"),
            (share, f"{share:.1f}"),
        ]
        rows.append(cells)
    more = f", the first {MOST_ROWS:,} of {len(info.tensors):,}" if len(info.tensors) > MOST_ROWS else ""
    return Table("tensors", f"Tensors{more}", heads, rows)


def _settings(result: Result) -> str:
    return json.dumps({"seed": result.seed, "device": result.device, **result.config}, indent=2)


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
