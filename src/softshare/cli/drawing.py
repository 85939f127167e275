"""The page to draw on, for the commands `softshare demo` and `softshare report`."""

from __future__ import annotations

from pathlib import Path

from softshare._util.files import make_folder, require_folder
from softshare._util.run_folder import DRAW, REPORT, require_own_page
from softshare.errors import SoftShareError
from softshare.report.draw.classifier import Classifier, classifier_of
from softshare.report.draw.page import write_draw_page
from softshare.report.run import Run
from softshare.zoo.experiments import EXPERIMENTS, make_task


def known_classifier(experiment: str) -> Classifier | str | None:
    """The network of an experiment, for a run that does not describe its own; None if it is no experiment."""
    if experiment not in EXPERIMENTS:
        return None
    try:
        return classifier_of(make_task(experiment))
    except SoftShareError as problem:  # its data are missing
        return str(problem)


def draw_page(run: Path) -> str:
    """Write the page into the run's own report, and say where it is."""
    folder = run / REPORT
    require_folder(folder)
    require_own_page(folder / DRAW)
    make_folder(folder)
    return drawn(write_draw_page(Run.load(run), folder))


def drawn(draw: Path | str) -> str:
    """Where the page is, or why there is none."""
    return f"No page to draw on: {draw}." if isinstance(draw, str) else f"Draw for the network:     {draw}"
