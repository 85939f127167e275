"""Write a report: the page, and its figures as SVG and PNG files."""

from __future__ import annotations

from pathlib import Path

from softshare._util.files import make_folder, write_atomic
from softshare._util.run_folder import PAGE
from softshare.report.figures.catalogue import FIGURES, draw
from softshare.report.page import render_page
from softshare.report.run import Run
from softshare.report.style import for_file, require_matplotlib, styled, to_png, to_svg

PICTURES = "figures"


def write_report(run_folder: Path, folder: Path) -> list[Path]:
    """The files written, the page first. Figures that an earlier report left there are taken away."""
    require_matplotlib()
    run = Run.load(run_folder)
    pictures = folder / PICTURES
    make_folder(pictures)
    svgs: dict[str, list[str]] = {}
    written = [folder / PAGE]
    for plot in FIGURES:
        for old in [*pictures.glob(f"{plot.name}-*.svg"), *pictures.glob(f"{plot.name}-*.png")]:
            old.unlink()
        svgs[plot.name] = []
        for k, figure in enumerate(draw(run, plot), 1):
            with styled():
                svg, png = to_svg(figure, f"{plot.name}-{k}"), to_png(figure)
            svgs[plot.name].append(svg)
            for kind, data in (("svg", for_file(svg).encode()), ("png", png)):
                written.append(pictures / f"{plot.name}-{k}.{kind}")
                write_atomic(written[-1], data)
    write_atomic(written[0], render_page(run, svgs).encode())
    return written
