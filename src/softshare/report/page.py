"""The page: one HTML file with everything in it, readable without a network."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from softshare.codec.info import FileInfo
from softshare.report.figures.catalogue import FIGURES
from softshare.report.figures.film import film_data, film_for_page
from softshare.report.run import Run
from softshare.report.style import for_page
from softshare.result import Result
from softshare.task import Metric

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
        cards=_finished(run.result) if run.result else _under_way(run.history[-1], run.metric),
        figures=[Figure(p.name, p.title, p.caption, svgs[p.name], p.wide) for p in IN_PAGE if svgs[p.name]],
        table=_tensors(run.info) if run.info else None,
        films=[film_for_page(film) for film in film_data(run)],
        settings=_settings(run.result) if run.result else "",
        version=version,
    )
    return render(page)


def _under_way(last: Mapping[str, float], metric: Metric) -> dict[str, str]:
    return {
        "epoch": f"{last['epoch']:g}",
        f"validation {metric.name}": metric.text(last["validation_error"]),
        "by the mixtures": f"{last['complexity_bits'] / 8000:.1f} kB",
        "components in use": f"{last['components_alive']:g}",
    }


def _finished(result: Result) -> dict[str, str]:
    metric = result.metric
    others = {name: f"{before:.4g} → {after:.4g}" for name, (before, after) in (result.others or {}).items()}
    return {
        "bytes": f"{result.file_bytes:,}",
        "times smaller": f"{result.ratio:.1f}",
        f"{metric.name} before": metric.text(result.error_before),
        f"{metric.name} after": metric.text(result.error_after),
        **others,
        "of the weights are left": f"{100 * result.n_nonzero / result.n_weights:.2f}%",
        "shared values": f"{result.n_components}",
    } | _target(result)


def _target(result: Result) -> dict[str, str]:
    outcome, metric = result.outcome, result.metric
    if outcome is None:
        return {}
    in_bytes = "max_bytes" in outcome["target"]
    limit, reached = (f"{outcome[k]:,.0f}" if in_bytes else metric.text(outcome[k]) for k in ("limit", "reached"))
    most = "at least" if metric.higher_is_better and not in_bytes else "at most"
    unit = "bytes" if in_bytes else f"validation {metric.name}"
    return {f"target: {most} {limit} {unit}; {reached} reached": "met" if outcome["met"] else "not met"}


def _tensors(info: FileInfo) -> Table:
    heads = ("tensor", "kind", "shape", "weights", "non-zero %", "components", "bits per weight", "bytes", "share %")
    rows = []
    for k, t in enumerate(info.tensors, 1):
        density = None if t.density is None else 100 * t.density
        shape = "" if t.shape is None else " x ".join(map(str, t.shape)) or "scalar"
        bits, share = t.bits_per_weight, 100 * t.n_bytes / info.file_bytes
        cells: list[tuple[Any, str]] = [
            (t.name or k, t.name or f"tensor {k}"),
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
    return Table("tensors", "Tensors", heads, rows)


def _settings(result: Result) -> str:
    return json.dumps({"seed": result.seed, "device": result.device, **result.config}, indent=2)
