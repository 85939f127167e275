"""Write a report: the page, and its figures as SVG and PNG files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softshare._util.files import kind_of, make_folder, require_folder, write_atomic
from softshare._util.run_folder import DRAW, PAGE, PICTURES, require_own_page
from softshare.report.draw.page import Known, nothing_known, write_draw_page
from softshare.report.figures.catalogue import FIGURES, draw
from softshare.report.page import render_page
from softshare.report.run import Run, drawn_from
from softshare.report.style import for_file, require_matplotlib, styled, to_png, to_svg


@dataclass(frozen=True)
class Report:
    """The files of a report."""

    page: Path
    pictures: tuple[Path, ...]
    draw: Path | str  # the page to draw on, or why there is none


def write_report(run_folder: Path, folder: Path, known: Known = nothing_known) -> Report:
    """Write all files. At the end, figures that an earlier report left there are deleted.

    `known` describes the networks of experiments, for runs that do not describe theirs.
    """
    require_matplotlib()
    run, pictures = Run.load(run_folder), make_report_folder(folder)
    with drawn_from(run_folder):
        draw = write_draw_page(run, folder, known)
        page, *drawn = _write(run, folder, pictures, "" if isinstance(draw, str) else draw.name)
    return Report(page, tuple(drawn), draw)


def _write(run: Run, folder: Path, pictures: Path, beside: str) -> list[Path]:
    svgs: dict[str, list[str]] = {}
    written = [folder / PAGE]
    for plot in FIGURES:
        svgs[plot.name] = []
        for k, figure in enumerate(draw(run, plot), 1):
            svg, files = write_picture(figure, pictures, f"{plot.name}-{k}")
            svgs[plot.name].append(svg)
            written += files
    write_atomic(written[0], render_page(run, svgs, draw=beside).encode())
    names = "|".join(plot.name for plot in FIGURES)
    for old in set(pictures.iterdir()) - set(written):
        if re.fullmatch(rf"({names})-\d+\.(svg|png)", old.name) and kind_of(old) == "a file":
            old.unlink()
    return written


def make_report_folder(folder: Path) -> Path:
    """Make the folder of a report, and return the one for its pictures. A link or a page of others is refused."""
    pictures = folder / PICTURES
    for needed in (folder, pictures):
        require_folder(needed)
    for page in (PAGE, DRAW):
        require_own_page(folder / page)
    make_folder(pictures)
    return pictures


def write_picture(figure: Any, folder: Path, name: str) -> tuple[str, list[Path]]:
    """A figure as SVG and PNG files; returns the SVG as matplotlib writes it, for the page, and the two files."""
    with styled():
        svg, png = to_svg(figure, name), to_png(figure)
    files = [folder / f"{name}.svg", folder / f"{name}.png"]
    for file, data in zip(files, (for_file(svg).encode(), png), strict=True):
        write_atomic(file, data)
    return svg, files
