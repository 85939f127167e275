"""The page: one HTML file with everything in it, readable without a network."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from softshare.report import headline
from softshare.report.figures.catalogue import FIGURES
from softshare.report.figures.film import film_data, film_for_page
from softshare.report.figures.speed import label, milliseconds
from softshare.report.headline import Lead, Progress, said
from softshare.report.run import Run
from softshare.report.style import for_page
from softshare.report.table import Table
from softshare.report.tensor_table import tensor_table
from softshare.result import Result

IN_PAGE = tuple(plot for plot in FIGURES if plot.name != "film")  # for which it has a slider


@dataclass(frozen=True)
class Figure:
    """A section of the page: the panels of one figure as matplotlib writes them."""

    name: str
    title: str
    caption: str
    panels: Sequence[str]
    details: bool = False

    @property
    def svgs(self) -> list[Markup]:
        return [Markup(for_page(svg)) for svg in self.panels]  # matplotlib has escaped the names in them

    @property
    def columns(self) -> int:
        """Beside each other on a wide screen. Pictures of before and after stand beside each other."""
        return 2 if self.name == "filters" else {1: 1, 2: 2, 4: 2}.get(len(self.panels), 3)


@dataclass(frozen=True)
class Page:
    title: str
    lead: Lead
    cards: Mapping[str, str]  # what a number is, and the number
    figures: Sequence[Figure]
    facts: Mapping[str, str]
    command: tuple[str, str] = ("", "")  # what it does, and the command
    tables: Sequence[Table] = ()
    films: Sequence[Mapping[str, Any]] = ()  # what the slider moves through, one for each mixture
    settings: str = ""
    version: str | None = None  # while the run is under way: the page asks its server for a newer one
    report: str = ""  # the command that writes the report, for a page from a server
    counted: str = "epoch"  # or look: what the slider moves through
    draw: str = ""  # the file of the page to draw on, if there is one beside this page


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


def render_page(
    run: Run,
    svgs: Mapping[str, Sequence[str]],
    version: str | None = None,
    progress: Progress | None = None,
    saved: bool = True,
    draw: str = "",
) -> str:
    """The page of a run, with the panels of each figure. A figure that is not there is left out.

    A page that is not saved says how to write it to a file.
    """
    page = Page(
        title=f"softshare: {said(run.name)}",
        lead=headline.lead(run, progress),
        cards=headline.cards(run),
        figures=[Figure(p.name, p.title, p.caption, svgs[p.name], p.details) for p in IN_PAGE if svgs.get(p.name)],
        facts=headline.facts(run),
        command=headline.command(run),
        tables=[*_speed(run), *([tensor_table(run, run.info)] if run.info else [])],
        films=[film_for_page(film) for film in film_data(run)],
        settings=_settings(run.result) if run.result else "",
        version=version,
        report=headline.report_command(run.folder) if version is not None or not saved else "",
        counted=run.counted,
        draw=draw,
    )
    return render(page)


def _speed(run: Run) -> list[Table]:
    """What shrinking saves, if the run has timed it."""
    speed = run.result.speed if run.result else None
    if speed is None:
        return []
    counts = {
        "weights": (speed.weights_before, speed.weights_after),
        "multiply-adds for one example": (speed.macs_before, speed.macs_after),
    }
    rows: list[list[tuple[Any, str]]] = [
        [(name, name), (a, f"{a:,}"), (b, f"{b:,}"), (a / max(1, b), f"{a / max(1, b):.1f}")]
        for name, (a, b) in counts.items()
    ]
    for timing in speed.timings:
        name, both = f"ms for {label(timing)}", (timing.before, timing.after)
        rows.append([(name, name), *((s, milliseconds(s)) for s in both), (timing.times, f"{timing.times:.1f}")])
    return [Table("shrunk", "Whole and shrunk network", ("", "whole", "shrunk", "times less"), rows, half=True)]


def _settings(result: Result) -> str:
    return json.dumps({"seed": result.seed, "device": result.device, **result.config}, indent=2)
