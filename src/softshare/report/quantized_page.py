"""The page of a quantized checkpoint: what each tensor costs, and what the network has lost, as far as it is known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from softshare._util.files import write_atomic
from softshare._util.run_folder import PAGE
from softshare._util.words import times
from softshare.datafree.fitted import FittedWeights
from softshare.report.figures.rates import draw_rates, rates_data
from softshare.report.figures.sizes import shape_text
from softshare.report.headline import Lead, said
from softshare.report.page import Figure, Page, render
from softshare.report.style import require_matplotlib, styled
from softshare.report.table import MOST_ROWS, Table
from softshare.report.write import make_report_folder, write_picture

RATES = "rates"
CAPTION = (
    "A dot is a tensor, and a larger dot has more weights. The error is the root mean square, relative to that of what "
    "it is an error of. Normal weights on an even grid lie on the line. Below it are weights that are not normal or, "
    "for outputs, errors that lie where the inputs feel them the least."
)


def write_quantized_report(fitted: FittedWeights, folder: str | os.PathLike[str], name: str = "") -> Path:
    require_matplotlib()
    folder = Path(folder)
    pictures = make_report_folder(folder)
    with styled():
        drawn = [draw_rates(data) for data in rates_data(fitted)]
    panels = [write_picture(figure, pictures, f"{RATES}-{k}")[0] for k, figure in enumerate(drawn, 1)]
    path = folder / PAGE
    write_atomic(path, render(page_of(fitted, panels, name)).encode())
    return path


def page_of(fitted: FittedWeights, panels: list[str], name: str) -> Page:
    figures = [Figure(RATES, "Bits against error", CAPTION, panels)] if panels else []
    return Page(
        title=f"softshare: {said(name) or 'a quantized checkpoint'}",
        lead=Lead("unknown", _sentence(fitted)),
        cards=_cards(fitted),
        figures=figures,
        facts={
            "weights": f"{fitted.n_weights:,}, of which {fitted.n_shared:,} are quantized",
            "bytes before": f"{fitted.original_bytes:,}",
        },
        tables=[_table(fitted)] if fitted.errors else [],
    )


def _sentence(fitted: FittedWeights) -> str:
    smaller = f"{times(fitted.original_bytes, fitted.file_bytes)}.".capitalize()
    return f"{smaller} {fitted.measured if fitted.errors else 'No weight was quantized.'}"


def _cards(fitted: FittedWeights) -> dict[str, str]:
    cards = {"bytes": f"{fitted.file_bytes:,}", "bits per weight": f"{fitted.bits_per_weight:.2f}"}
    if fitted.output_error is not None:
        cards["error of the outputs"] = f"{fitted.output_error:.2%}"
    if fitted.loss is not None:
        cards["loss"] = " → ".join(f"{value:.4g}" for value in fitted.loss)
    return cards


def _table(fitted: FittedWeights) -> Table:
    heads = ("tensor", "shape", "weights", "bits per weight", "bytes", "share %", "error %", "error of outputs %")
    costs = fitted.costs()
    rows: list[list[tuple[Any, str]]] = []
    for cost in costs[:MOST_ROWS]:
        share, error, outputs = 100 * cost.n_bytes / fitted.file_bytes, 100 * cost.error, cost.layer_error
        rows.append(
            [
                (said(cost.name), said(cost.name)),
                (cost.n, shape_text(cost.shape)),
                (cost.n, f"{cost.n:,}"),
                (cost.bits, f"{cost.bits:.3f}"),
                (cost.n_bytes, f"{cost.n_bytes:,}"),
                (share, f"{share:.1f}"),
                (error, f"{error:.3g}"),
                (outputs, "" if outputs is None else f"{100 * outputs:.3g}"),
            ]
        )
    more = f", the largest {MOST_ROWS:,} of {len(costs):,}" if len(costs) > MOST_ROWS else ""
    return Table("tensors", f"Quantized tensors{more}", heads, rows)
