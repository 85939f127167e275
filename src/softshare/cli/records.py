"""The commands that make, check and show results: `softshare reproduce`, `verify`, `report` and `results`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from softshare import zoo
from softshare.cli import tables
from softshare.cli.task_options import DataOption, DeviceOption, OverwriteOption, TaskOptions, find_device, load_task
from softshare.errors import ConfigError

if TYPE_CHECKING:
    from softshare.paper.verify import Check

out = Console(markup=False)
FolderArgument = Annotated[Path, typer.Argument(help="A run, or a folder of runs: each has model.sws and result.json.")]


def reproduce(
    experiment: Annotated[str, typer.Argument(help=f"One of: {', '.join(zoo.NAMES)}.")],
    method: Annotated[
        list[str] | None,
        typer.Option(help="A recipe of the experiment, as softshare or dns. Can be repeated. Default: all of them."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas between them.")] = "0,1,2",
    folder: Annotated[Path, typer.Option("--out", help="Folder for EXPERIMENT/METHOD/seed-N.")] = Path("results"),
    data: DataOption = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Take pre-trained networks from here, and keep new ones here."),
    ] = None,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Make the kept results anew from their recipes: pre-train, compress, measure, for each method and seed.

    What is there already is kept, so that a run that was stopped goes on where it was. Errors are measured on the CPU,
    as verify does, wherever the training was.
    """
    from softshare.paper.recipes import methods
    from softshare.paper.reproduce import reproduce as reproduce_results
    from softshare.train.progress import ProgressBar

    given = method or methods(experiment)
    made = reproduce_results(
        experiment,
        given,
        _seeds(seeds),
        folder,
        find_device(device),
        data,
        checkpoints=checkpoints,
        overwrite=overwrite,
        hooks=lambda title: [ProgressBar(title)],
        say=_say,
    )
    out.print(tables.reproduced_table(list(made), f"{experiment}, in {folder}"))


def _say(text: str) -> None:
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds: expected whole numbers with commas between them, got {text!r}") from None


def verify(
    folder: FolderArgument = Path("results"),
    device: Annotated[str, typer.Option(help="cpu, cuda or auto; another device may round otherwise.")] = "cpu",
    data: DataOption = None,
    task: Annotated[
        str | None, typer.Option(help="For runs of your own network: FILE.py:make_task. Experiments are known.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON, for a program.")] = False,
) -> None:
    """Decode the file of every run into a fresh model, measure bytes and test error, and compare with its result.json.

    The exit status is 1 if anything differs. If an experiment's data are not on this machine, all but the error is
    checked.
    """
    from softshare.paper.verify import find_runs
    from softshare.paper.verify import verify as verify_runs

    runs = find_runs(folder)
    own = load_task(task, "auto", 0, TaskOptions()) if task else None
    checks = list(_tracked(verify_runs(folder, runs, find_device(device), data, own), len(runs), "verify"))
    bad = [check for check in checks if not check.ok]
    if as_json:
        values = [{**dataclasses.asdict(check), "ok": check.ok} for check in checks]
        typer.echo(json.dumps({"ok": not bad, "checks": values}, indent=2))
    else:
        out.print(tables.check_table(checks, str(folder)))
        agreed = f"{len(checks) - len(bad)} of {len(checks)} agree with their results."
        unmeasured = sum(check.ok and check.error is None for check in checks)
        out.print(agreed + (f" The error of {unmeasured} could not be measured here." if unmeasured else ""))
    if bad:
        raise typer.Exit(1)


def report(
    run: Annotated[Path, typer.Argument(help="A folder that compress, demo or tune has filled.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for the report; default: RUN/report.")] = None,
) -> None:
    """Show a run or a study: one HTML page that needs no network, and its figures as SVG and PNG files.

    Of a run, weights before and after, the mixture in training, where the bytes are, and more; of a study, its trials
    and their settings. Needs matplotlib.
    """
    from softshare._util.run_folder import REPORT
    from softshare.paper.published import published_points
    from softshare.report.write import write_report
    from softshare.tune.study_folder import SUMMARY
    from softshare.tune.study_page import write_study_report

    folder = folder or run / REPORT
    is_study = (run / SUMMARY).exists()
    page, *pictures = write_study_report(run, folder, published_points) if is_study else write_report(run, folder)
    out.print(f"{page} written, and {len(pictures)} pictures beside it.", highlight=False, soft_wrap=True)


def results(
    folder: FolderArgument = Path("results"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit status 1 if a file is stale.")] = False,
    root: Annotated[Path, typer.Option(help="Folder that holds docs/ and README.md.")] = Path(),
) -> None:
    """Write docs/results.md, its plots and the README's table from the results in a folder.

    The README's table stands between two comments, results and /results; without them the README is left alone. Plots
    need matplotlib.
    """
    from softshare.paper.pages import load_results, stale_files, wanted_files, write_file
    from softshare.report.style import can_draw

    wanted = wanted_files(load_results(folder), root, draw=not check)
    stale = stale_files(wanted)
    for path in stale:
        if not check:
            write_file(path, wanted[path])
        out.print(f"{path} {'is not what the results give' if check else 'written'}", highlight=False, soft_wrap=True)
    if not check and not can_draw():
        out.print("No plot was drawn: that needs matplotlib (pip install 'softshare[report]').", highlight=False)
    if check and stale:
        out.print("Run: softshare results")
        raise typer.Exit(1)
    if not stale:
        out.print("All is current.")


def _tracked(checks: Iterable[Check], total: int, title: str) -> Iterator[Check]:
    from rich.progress import track

    console = Console(stderr=True)
    return iter(track(checks, title, total, console=console, disable=not console.is_terminal, transient=True))
