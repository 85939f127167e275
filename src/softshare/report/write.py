"""Write a report: the page, and its figures as SVG and PNG files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from softshare._util.files import kind_of, make_folder, require_folder, write_atomic
from softshare._util.run_folder import PAGE, PICTURES
from softshare.report.figures.catalogue import FIGURES, draw
from softshare.report.page import render_page
from softshare.report.run import Run, drawn_from
from softshare.report.style import for_file, require_matplotlib, styled, to_png, to_svg


def write_report(run_folder: Path, folder: Path) -> list[Path]:
    """The files written, the page first. At the end, figures that an earlier report left there are deleted."""
    require_matplotlib()
    run, pictures = Run.load(run_folder), make_report_folder(folder)
    with drawn_from(run_folder):
        return _write(run, folder, pictures)


def _write(run: Run, folder: Path, pictures: Path) -> list[Path]:
    svgs: dict[str, list[str]] = {}
    written = [folder / PAGE]
    for plot in FIGURES:
        svgs[plot.name] = []
        for k, figure in enumerate(draw(run, plot), 1):
            svg, files = write_picture(figure, pictures, f"{plot.name}-{k}")
            svgs[plot.name].append(svg)
            written += files
    write_atomic(written[0], render_page(run, svgs).encode())
    names = "|".join(plot.name for plot in FIGURES)
    for old in set(pictures.iterdir()) - set(written):
        if re.fullmatch(rf"({names})-\d+\.(svg|png)", old.name) and kind_of(old) == "a file":
            old.unlink()
    return written


def make_report_folder(folder: Path) -> Path:
    """Make the folder of a report, and return the one for its pictures. A link in their place is refused."""
    pictures = folder / PICTURES
    for needed in (folder, pictures):
        require_folder(needed)
        make_folder(needed)
    return pictures


def write_picture(figure: Any, folder: Path, name: str) -> tuple[str, list[Path]]:
    """A figure as SVG and PNG files; returns the SVG as matplotlib writes it, for the page, and the two files."""
    with styled():
        svg, png = to_svg(figure, name), to_png(figure)
    files = [folder / f"{name}.svg", folder / f"{name}.png"]
    for file, data in zip(files, (for_file(svg).encode(), png), strict=True):
        write_atomic(file, data)
    return svg, files
