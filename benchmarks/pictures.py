"""Take a picture of every page and of three screens of the terminal, to be looked at and for docs/.

    PYTHONPATH=tests python benchmarks/pictures.py pictures runs/my_task --ruined runs/ruined --study docs/tuning

Pages are taken at 1400 and 390 pixels, light and dark, screens at 80 and 120 columns. The live page shows the good
run as if it were the beginning of a longer one. docs/report.md says how the runs are made.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from rich.console import Console
from rich.text import Text

from browser import CHROMIUM, NO_BROWSER, Browser, browser
from softshare._util.run_folder import DRAW, FRAMES, HISTORY, MODEL, PAGE, PRETRAINED, RESULT
from softshare.cli import main as softshare
from softshare.cli.console import SafeConsole
from softshare.cli.summary import after_a_run, result_panel
from softshare.report.live import LivePage
from softshare.result import Result
from softshare.train.hooks import EpochRecord
from softshare.verdict import verdict

WIDTHS, SCHEMES, COLUMNS = (1400, 390), ("light", "dark"), (80, 120)
SHOWN = 0.4  # of the training: the run is shown as if it were the beginning of a longer one


def take(tab: Browser, address: str, name: str, folder: Path) -> None:
    for width in WIDTHS:
        for scheme in SCHEMES:
            tab.open(address, width, scheme=scheme)
            tab.wait(lambda: tab.run("new Promise(done => setTimeout(() => done(true), 500))"))  # it draws and decodes
            tab.screenshot(folder / f"{name}-{width}-{scheme}.png")


def take_live(tab: Browser, run: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        watched = Path(temporary, run.name)
        watched.mkdir()
        for name in (HISTORY, FRAMES):  # all that a run has while it trains
            shutil.copy(run / name, watched)
        with (run / HISTORY).open(newline="") as file:
            last = sum(1 for _ in csv.reader(file)) - 2
        with LivePage(watched) as page:
            page.on_start(round(last / SHOWN), None)
            page.on_epoch(EpochRecord(last, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0))
            take(tab, page.address, "live", folder)


def screens(run: Path, temporary: Path) -> Iterator[tuple[str, str, int]]:
    """The name of a command, what it prints with the colours of a terminal, and for how many columns."""
    result = Result.load(run / RESULT)
    for columns in COLUMNS:
        os.environ |= {"COLUMNS": str(columns), "FORCE_COLOR": "1"}
        end = SafeConsole(file=io.StringIO(), width=columns, markup=False, emoji=False, highlight=False)
        end.print(result_panel(result, verdict(result), result.seconds))
        end.print(after_a_run(run, run / MODEL))
        yield "compress", end.file.getvalue(), columns  # type: ignore[attr-defined]
        file = temporary / f"{columns}.sws"
        commands = {"inspect": [str(run / MODEL)], "quantize": [str(run / PRETRAINED), "--out", str(file)]}
        for command, arguments in commands.items():
            with redirect_stdout(io.StringIO()) as printed:
                if softshare([command, *arguments]):
                    raise SystemExit(f"softshare {command} failed")
            yield command, printed.getvalue().replace(str(file), "model.sws"), columns


def take_screen(tab: Browser, printed: str, columns: int, path: Path) -> None:
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(printed.rstrip()), soft_wrap=True)
    html = path.with_suffix(".html")
    html.write_text(console.export_html(inline_styles=True), encoding="utf-8")
    tab.open(html.as_uri(), 10 * columns, height=40)
    tab.screenshot(path)
    html.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("good", type=Path, help="a run that has kept its accuracy")
    parser.add_argument("--ruined", type=Path, help="a run that has not")
    parser.add_argument("--study", type=Path, help="a study")
    options = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit(NO_BROWSER)
    options.out = options.out.resolve()  # the browser takes no relative path
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, browser() as tab:
        for name in ("good", "ruined", "study"):
            if (run := getattr(options, name)) is not None:
                report = Path(temporary, name)
                if softshare(["report", str(run), "--out", str(report)]):
                    raise SystemExit(f"{run} has no report")
                take(tab, (report / PAGE).as_uri(), name, options.out)
                if (report / DRAW).exists():
                    take(tab, (report / DRAW).as_uri(), f"{name}-draw", options.out)
        take_live(tab, options.good, options.out)
        for command, printed, columns in screens(options.good, Path(temporary)):
            take_screen(tab, printed, columns, options.out / f"{command}-{columns}.png")


if __name__ == "__main__":
    main()
