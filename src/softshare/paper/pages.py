"""Pages that show results: docs/results.md, its plots, the README's table, and the figures in prose."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from softshare._util.files import make_folder, read_bytes, write_atomic
from softshare._util.run_folder import RESULT, run_files
from softshare.errors import ConfigError, FormatError
from softshare.paper.figures_in_prose import files_below, fill, has_figures
from softshare.paper.pareto import draw_pareto, is_current, pareto_data
from softshare.paper.results_page import BEGIN, plot_name, points, render_page, render_summary, replace_summary
from softshare.report.style import can_draw
from softshare.result import Result


def load_results(folder: str | os.PathLike[str]) -> list[Result]:
    """Every result below the folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"expected a folder of results, but there is no folder {folder}")
    found = [_load(path) for path in run_files(folder, RESULT)]
    if not found:
        raise ConfigError(f"{folder}: expected folders that hold {RESULT}, found none")
    return found


def _load(path: Path) -> Result:
    result = Result.load(path)
    for error in (result.error_before, result.error_after):
        if not 0 <= error <= 100:
            raise FormatError(f"{path}: expected an error from 0 to 100 percent, got {error:g}")
    return result


def wanted_files(results: Sequence[Result], root: str | os.PathLike[str], draw: bool) -> dict[Path, bytes]:
    """The contents that each file should have. A plot that shows these figures is kept; the page shows no other."""
    docs, readme = Path(root) / "docs", Path(root) / "README.md"
    wanted: dict[Path, bytes] = {}
    shown = []
    for name, group in groupby(points(results), key=lambda p: p.first.experiment):
        path, data = docs / plot_name(name), pareto_data(name, group)
        current = path.exists() and is_current(read_bytes(path), data)
        if not current and draw and can_draw():
            wanted[path] = draw_pareto(data)
        if current or path in wanted:
            shown.append(name)
    wanted[docs / "results.md"] = render_page(results, shown).encode()
    text = read_bytes(readme).decode() if readme.exists() else ""
    if BEGIN in text:
        wanted[readme] = replace_summary(text, render_summary(results)).encode()
    return wanted | _with_figures(Path(root), wanted)


def _with_figures(root: Path, wanted: Mapping[Path, bytes]) -> dict[Path, bytes]:
    """Every page with marked figures, with the figures filled in."""
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md")), *sorted(root.glob("*/README.md"))]
    lookup, filled = files_below(root), {}
    for page in pages:
        text = (wanted.get(page) or (read_bytes(page) if page.exists() else b"")).decode()
        if has_figures(text):
            try:
                filled[page] = fill(text, lookup).encode()
            except ConfigError as error:
                raise ConfigError(f"{page}: {error}") from None
    return filled


def stale_files(wanted: Mapping[Path, bytes]) -> list[Path]:
    """The files that are missing or hold something else."""
    return [path for path, data in wanted.items() if not path.exists() or read_bytes(path) != data]


def write_file(path: Path, data: bytes) -> None:
    make_folder(path.parent)
    write_atomic(path, data)
