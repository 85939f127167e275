"""The page: one HTML file with everything in it, readable without a network."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from softshare.codec.info import FileInfo
from softshare.report.figures.catalogue import FIGURES, Plot
from softshare.report.figures.film import film_data, film_for_page
from softshare.report.run import Run
from softshare.report.style import for_page
from softshare.result import Result

IN_PAGE = tuple(plot for plot in FIGURES if plot.name != "film")  # for which it has a slider


def render_page(run: Run, svgs: Mapping[str, Sequence[str]], version: str | None = None) -> str:
    """With the panels of each figure. With a version, it looks every second whether its server has a newer one."""
    title = f"softshare: {run.result.experiment if run.result else run.folder.resolve().name}"
    sections = [_film(run), *(_section(plot, svgs[plot.name]) for plot in IN_PAGE), _table(run.info)]
    data = {"film": [film_for_page(film) for film in film_data(run)], "version": version}
    return render(title, _headline(run), [*sections, _settings(run.result)], data)


def render(title: str, headline: str, sections: Sequence[str], data: Mapping[str, Any]) -> str:
    """A whole page."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
            f"<title>{html.escape(title)}</title><style>{_asset('page.css')}</style></head><body>",
            f"<header><h1>{html.escape(title)}</h1>{headline}</header><main>",
            *filter(None, sections),
            '</main><div id="tip" role="status"></div>',
            f'<script type="application/json" id="data">{_json(data)}</script>',
            f"<script>{_asset('page.js')}</script></body></html>",
            "",
        ]
    )


def _asset(name: str) -> str:
    return resources.files("softshare.report").joinpath(name).read_text()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _headline(run: Run) -> str:
    result = run.result
    if result is None:
        last = run.history[-1]
        figures = {
            "epoch": f"{last['epoch']:g}",
            "validation error": f"{last['validation_error']:.2f}%",
            "by the mixtures": f"{last['complexity_bits'] / 8000:.1f} kB",
            "components in use": f"{last['components_alive']:g}",
        }
    else:
        figures = {
            "bytes": f"{result.file_bytes:,}",
            "times smaller": f"{result.ratio:.1f}",
            "error before": f"{result.error_before:.2f}%",
            "error after": f"{result.error_after:.2f}%",
            "of the weights are left": f"{100 * result.n_nonzero / result.n_weights:.2f}%",
            "shared values": f"{result.n_components}",
        } | _target(result)
    return cards(figures)


def cards(figures: Mapping[str, str]) -> str:
    found = "".join(f"<div><b>{html.escape(v)}</b><span>{k}</span></div>" for k, v in figures.items())
    return f'<div class="cards">{found}</div>'


def _target(result: Result) -> dict[str, str]:
    outcome = result.outcome
    if outcome is None:
        return {}
    in_bytes = "max_bytes" in outcome["target"]
    limit, reached = (f"{outcome[k]:,.0f}" if in_bytes else f"{outcome[k]:.4g}%" for k in ("limit", "reached"))
    unit = "bytes" if in_bytes else "validation error"
    return {f"target: at most {limit} {unit}; {reached} reached": "met" if outcome["met"] else "not met"}


def _section(plot: Plot, svgs: Sequence[str]) -> str:
    return section(plot.name, plot.title, plot.caption, svgs, plot.wide) if svgs else ""


def section(name: str, title: str, caption: str, svgs: Sequence[str], wide: bool) -> str:
    panels = "".join(f"<figure>{for_page(svg)}</figure>" for svg in svgs)
    half = ' class="half"' if len(svgs) == 1 and not wide else ""
    return (
        f'<section id="{name}"{half}><h2>{title}</h2><p>{caption}</p>'
        f'<div class="{"wide" if wide else "grid"}">{panels}</div></section>'
    )


def _film(run: Run) -> str:
    if run.frames is None:
        return ""
    options = "".join(f"<option>{html.escape(run.frames.parts[k])}</option>" for k in run.frames.shown)
    last = len(run.frames.epochs) - 1
    return (
        '<section id="film"><h2>Retraining, frame by frame</h2><p>A sample of the weights, before against now, with '
        "the histogram of all of them on the right and the components' bands. Move the slider, or play.</p>"
        f'<div class="controls"><label>Weights <select id="part">{options}</select></label>'
        '<button id="play" type="button">Play</button>'
        f'<label class="slide">Epoch <input id="epoch" type="range" min="0" max="{last}" value="{last}"></label>'
        '<output id="now"></output></div><canvas id="screen"></canvas></section>'
    )


def _table(info: FileInfo | None) -> str:
    if info is None:
        return ""
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
    return table("tensors", "Tensors", heads, rows)


def table(name: str, title: str, heads: Sequence[str], rows: Sequence[Sequence[tuple[Any, str]]]) -> str:
    """Each cell as a value to sort by and a text."""
    lines = []
    for cells in rows:
        values = "".join(
            f'<td data-value="{html.escape("" if v is None else str(v))}">{html.escape(text)}</td>' for v, text in cells
        )
        lines.append(f"<tr>{values}</tr>")
    head = "".join(f'<th aria-sort="none"><button type="button">{name}</button></th>' for name in heads)
    return (
        f'<section id="{name}"><h2>{title}</h2><p>Click a heading to sort by it.</p><div class="scroll">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _settings(result: Result | None) -> str:
    if result is None:
        return ""
    text = html.escape(json.dumps({"seed": result.seed, "device": result.device, **result.config}, indent=2))
    return f'<section id="settings"><details><summary>All settings</summary><pre>{text}</pre></details></section>'
