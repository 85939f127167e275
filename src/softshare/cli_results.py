"""The commands that make, check and show results: `softshare reproduce`, `verify`, `report` and `results`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from softshare import tables
from softshare.cli_tasks import DataOption, DeviceOption, OverwriteOption, find_device
from softshare.errors import ConfigError
from softshare.hooks import ProgressBar
from softshare.page import load_results, stale_files, wanted_files, write_file
from softshare.pareto import can_draw
from softshare.report.write import write_report
from softshare.reproduce import reproduce as reproduce_results
from softshare.runs import REPORT
from softshare.study_files import SUMMARY
from softshare.study_report import write_study_report
from softshare.verify import Check, find_pairs
from softshare.verify import verify as verify_pairs
from softshare.zoo.experiments import EXPERIMENTS
from softshare.zoo.recipes import RECIPES, methods

out = Console(markup=False)
FolderArgument = Annotated[Path, typer.Argument(help="Folder of NAME.sws files, each with NAME.json beside it.")]


def reproduce(
    experiment: Annotated[str, typer.Argument(help=f"One of: {', '.join(EXPERIMENTS)}.")],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of: {', '.join(dict.fromkeys(r.method for r in RECIPES))}; may be repeated. Default: all that "
            "the experiment has."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas between them.")] = "0,1,2",
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for EXPERIMENT/METHOD/seed-N.sws and, beside it, .json.")
    ] = Path("results"),
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
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON, for a program.")] = False,
) -> None:
    """Decode every kept file into a fresh model, measure bytes and test error anew, compare with the JSON beside it.

    Exit status 1 if anything differs. Where an experiment's data are not on this machine, all but the error is checked.
    """
    pairs = find_pairs(folder)
    checks = list(_tracked(verify_pairs(folder, pairs, find_device(device), data), len(pairs), "verify"))
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
    write = write_study_report if (run / SUMMARY).exists() else write_report
    page, *pictures = write(run, folder or run / REPORT)
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
    console = Console(stderr=True)
    return iter(track(checks, title, total, console=console, disable=not console.is_terminal, transient=True))
