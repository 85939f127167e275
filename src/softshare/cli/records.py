"""The commands that make, check and show results: `softshare reproduce`, `verify`, `report` and `results`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softshare import zoo
from softshare._util.run_folder import EVERY
from softshare._util.words import AGAIN
from softshare.cli import tables
from softshare.cli.console import console
from softshare.cli.stopping import AGAIN_TO_GO_ON, stopping
from softshare.cli.task_options import (
    DataOption,
    DeviceOption,
    EveryOption,
    OverwriteOption,
    TaskOptions,
    find_device,
    load_task,
)
from softshare.errors import ConfigError

if TYPE_CHECKING:
    from softshare.paper.verify import Check

out = console()
FolderArgument = Annotated[Path, typer.Argument(help="A run, or a folder of runs. Each has model.sws and result.json.")]


def reproduce(
    experiment: Annotated[str, typer.Argument(help=f"One of: {', '.join(zoo.NAMES)}.")],
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A recipe of the experiment, such as softshare or dns. Can be repeated. Default: all recipes.",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    folder: Annotated[
        Path, typer.Option("--out", help="Folder for the results. Each is in EXPERIMENT/METHOD/seed-N.")
    ] = Path("results"),
    data: DataOption = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Read pre-trained networks from this folder, and keep new ones in it."),
    ] = None,
    checkpoint_every: EveryOption = EVERY,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Make kept results from their recipes: pre-train, compress and measure, for each method and seed.

    Existing results are kept, so the same command continues after an interruption. A training goes on from its
    checkpoint; those of dns and deep-compression start from the beginning, and so does a pre-training without
    --checkpoints. Errors are always measured on the CPU, as `softshare verify` does.
    """
    from softshare.paper.recipes import methods
    from softshare.paper.reproduce import reproduce as reproduce_results
    from softshare.train.progress import ProgressBar

    given = method or methods(experiment)
    found = reproduce_results(
        experiment,
        given,
        _seeds(seeds),
        folder,
        find_device(device),
        data,
        checkpoints=checkpoints,
        every=checkpoint_every,
        overwrite=overwrite,
        hooks=lambda title: [ProgressBar(title)],
        say=_say,
    )
    with stopping(AGAIN_TO_GO_ON, lambda: f"Finished results are kept in {folder}. {AGAIN_TO_GO_ON}"):
        made = list(found)
    out.print(tables.reproduced_table(made, f"{experiment}, in {folder}"))


def _say(text: str) -> None:
    console(stderr=True).print(text)


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds: expected whole numbers separated by commas, got {text!r}") from None


def verify(
    folder: FolderArgument = Path("results"),
    device: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="One of: cpu, cuda, auto. Results can differ from those of the CPU by rounding. Default: cpu. A task "
            "of your own stays where its file has put it.",
        ),
    ] = None,
    data: DataOption = None,
    task: Annotated[
        str | None, typer.Option(help="The task of your own runs, as FILE.py:make_task. Experiments need none.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
) -> None:
    """Check every run in a folder: decode the file, measure bytes and test error, compare with result.json.

    The exit status is 1 if anything differs. If the data of an experiment is not on this machine, everything except the
    error is checked.
    """
    from softshare.paper.verify import find_runs
    from softshare.paper.verify import verify as verify_runs

    runs = find_runs(folder)
    own = load_task(task, device or "auto", 0, TaskOptions()) if task else None
    checks: list[Check] = []
    with stopping(kept=lambda: _checked(checks, len(runs))):
        for check in _tracked(verify_runs(folder, runs, find_device(device or "cpu"), data, own), len(runs), "verify"):
            checks.append(check)  # one by one: those before an interrupt count
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


def _checked(checks: list[Check], n: int) -> str:
    good = sum(check.ok for check in checks)
    return f"{len(checks)} of {n} runs were checked, and {good} agree with their results. {AGAIN}" if checks else ""


def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run or of a study.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for the report. Default: RUN/report.")] = None,
) -> None:
    """Write a report of a run or a study: one HTML page that works offline, and its figures as SVG and PNG.

    The report of a run shows the weights before and after, the mixture during training, where the bytes are, and more.
    The report of a study shows its trials and their settings. Both need matplotlib.

    For an image classifier that is a chain of Linear, Conv2d, ReLU, MaxPool2d and Flatten, draw.html is a page that
    decodes the file and runs the network on what you draw, offline.
    """
    from softshare._util.run_folder import REPORT
    from softshare.cli.drawing import drawn, known_classifier
    from softshare.paper.published import published_points
    from softshare.report.write import write_report
    from softshare.tune.study_folder import SUMMARY
    from softshare.tune.study_page import write_study_report

    folder = folder or run / REPORT
    is_study = (run / SUMMARY).exists()
    if is_study:
        page, *pictures = write_study_report(run, folder, published_points)
        out.print(f"{page} written, and {len(pictures)} pictures beside it.")
        return
    report = write_report(run, folder, known_classifier)
    out.print(f"{report.page} written, and {len(report.pictures)} pictures beside it.")
    out.print(drawn(report.draw))


def results(
    folder: FolderArgument = Path("results"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing. The exit status is 1 if a file is out of date.")
    ] = False,
    root: Annotated[Path, typer.Option(help="The folder with docs/ and README.md.")] = Path(),
) -> None:
    """Write docs/results.md, its plots, the table of the README and the figures in prose from kept results.

    The table of the README is between the comments results and /results. Without them the README has no table. Plots
    need matplotlib.
    """
    from softshare.paper.pages import load_results, stale_files, wanted_files, write_file
    from softshare.report.style import can_draw

    wanted = wanted_files(load_results(folder), root, draw=not check)
    stale = stale_files(wanted)
    for path in stale:
        if not check:
            write_file(path, wanted[path])
        out.print(f"{path} {'is not what the results give' if check else 'written'}")
    if not check and not can_draw():
        out.print("No plot was drawn, because matplotlib is missing: pip install 'softshare[report]'")
    if check and stale:
        out.print("Run: softshare results")
        raise typer.Exit(1)
    if not stale:
        out.print("All is current.")


def _tracked(checks: Iterable[Check], total: int, title: str) -> Iterator[Check]:
    from rich.progress import track

    log = console(stderr=True)
    return iter(track(checks, title, total, console=log, disable=not log.is_terminal, transient=True))
