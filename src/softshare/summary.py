"""A result in a few lines: as text for a terminal, and as HTML for a notebook."""

from __future__ import annotations

import textwrap
from html import escape

from softshare._util.printable import printable
from softshare._util.words import duration, sizes, times
from softshare.result import Result
from softshare.verdict import verdict

WIDTH = 80  # of the lines of a sentence: it is for a terminal
_COLORS = {"kept": "#2e7d32", "lost": "#c62828", "unknown": "#757575"}


def facts(result: Result) -> dict[str, str]:
    """What a reader wants to know after the verdict, by name."""
    metric = result.metric
    noise = "" if result.noise is None else f" (noise {metric.text(result.noise)})"
    others = {
        name: " -> ".join("-" if value is None else f"{value:.4g}" for value in pair)
        for name, pair in (result.others or {}).items()
    }
    return {
        metric.name: f"{metric.text(result.error_before)} -> {metric.text(result.error_after)}{noise}",
        **others,
        "bytes": sizes(4 * result.n_weights, result.file_bytes),
        **_shrunk(result),
    }


def _shrunk(result: Result) -> dict[str, str]:
    if result.speed is None:
        return {}
    return {"shrunk": f"needs {100 * result.speed.macs_ratio:.3g}% of the multiply-adds (softshare export --shrunk)"}


def in_a_line(result: Result) -> str:
    metric, fate = result.metric, verdict(result).fate
    change = f"{printable(metric.name)} {metric.text(result.error_before)} -> {metric.text(result.error_after)}"
    how = "" if fate == "unknown" else f", {fate}"
    return f"{result.file_bytes:,} bytes, {times(4 * result.n_weights, result.file_bytes)}; {change}{how}"


def as_text(result: Result) -> str:
    rows = _rows(result)
    width = max(map(len, rows)) + 2
    said = textwrap.wrap(printable(verdict(result).sentence), WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*said, *(f"  {name:{width}}{rows[name]}" for name in rows)])


def as_html(result: Result) -> str:
    said = verdict(result)
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in _rows(result).items()
    )
    return (
        f"<div style='border-left:4px solid {_COLORS[said.fate]};padding-left:0.8em'>"
        f"<p><b>{escape(printable(said.sentence))}</b></p><table>{rows}</table></div>"
    )


def _rows(result: Result) -> dict[str, str]:
    rows = {**facts(result), "time": f"{duration(result.seconds)} of training"}
    return {printable(name): printable(text) for name, text in rows.items()}
