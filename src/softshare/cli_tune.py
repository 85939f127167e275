"""The command `softshare tune`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from softshare import tables
from softshare.cli_tasks import (
    AugmentOption,
    DataOption,
    DeviceOption,
    SmoothingOption,
    TaskArgument,
    TaskOptions,
    load_task,
)
from softshare.config import CompressConfig
from softshare.hooks import ProgressBar
from softshare.pareto import can_draw
from softshare.study_files import FRONT, SUMMARY
from softshare.trials import front
from softshare.tune import SAMPLERS, Job, StudyConfig
from softshare.tune import tune as run_study
from softshare.zoo.experiments import EXPERIMENTS, make_task, pretrain_


def tune(
    task: TaskArgument,
    overrides: dict[str, Any],
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the study; default: runs/tune-NAME. One there is gone on with."),
    ] = None,
    trials: Annotated[int, typer.Option(help="Until the study has so many, of all processes and calls together.")] = 40,
    sampler: Annotated[
        str,
        typer.Option(help=f"What proposes trials, one of: {', '.join(SAMPLERS)}. 'gp': a Gaussian process."),
    ] = "gp",
    error_bound: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            help="A trial whose validation error is past this is pruned; default: 5 points more than before.",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Any Optuna storage address; default: the file study.db in the folder."),
    ] = None,
    study: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the study in its storage; default: the task's.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Pre-trained weights (safetensors). Without them an experiment pre-trains once, at the start."
        ),
    ] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Search the paper's method and its hyper-parameters (section 6.2), not ours."),
    ] = False,
    device: DeviceOption = "auto",
    data: DataOption = None,
    augment: AugmentOption = None,
    label_smoothing: SmoothingOption = None,
) -> None:
    """Search the settings for small files at low errors, by Optuna; the test set is read for the front's points only.

    Every setting below that has a range (docs/tuning.md) is searched; one that is given here is held. Leaves a file and
    a result for each trial, those of the front once more with their test errors, summary.csv, front.png and
    settings.png. Run it again to go on with a study that was stopped, or several times at once to share it.
    """
    experiment = EXPERIMENTS.get(task)
    ours = experiment.compress if experiment else CompressConfig()
    config = (CompressConfig.paper() if paper else ours).override(**overrides)
    if paper and experiment and label_smoothing is None:
        label_smoothing = 0.0  # as in the paper
    options = TaskOptions(data, augment, label_smoothing)
    name = task if experiment else Path(task.rpartition(":")[0]).stem
    job = Job(
        task=load_task(task, device, config.seed, options),
        config=config,
        folder=folder or Path("runs") / f"tune-{name}",
        held=overrides,
        method="paper" if paper else "softshare",
        weights=weights,
    )
    if experiment:
        schedule = dataclasses.replace(experiment.pretrain, seed=config.seed)
        job = dataclasses.replace(
            job,
            recorded=options.changes(task),
            pretrain_=lambda task: pretrain_(task, schedule, [ProgressBar("pre-train")]),
            judge=make_task(task, "cpu", data=data),  # there `softshare verify` measures
        )
    log = Console(stderr=True)
    rows = run_study(
        job,
        StudyConfig(trials, sampler, error_bound, storage, study),
        hooks=lambda title: [ProgressBar(title)] if log.is_terminal else [],
        say=lambda text: log.print(text, markup=False, highlight=False, soft_wrap=True),
    )
    out = Console(markup=False, highlight=False, soft_wrap=True)
    out.print(tables.front_table(front(rows), f"The front of {len(rows)} trials, in {job.folder / FRONT}"))
    out.print(f"{sum(row.state == 'pruned' for row in rows)} were pruned; all are in {job.folder / SUMMARY}.")
    if not front(rows):
        out.print("None is within the bound: raise --error-bound, hold a smaller --width or --tau, or more --epochs.")
    if not can_draw():
        out.print("No figure was drawn: that needs matplotlib (pip install 'softshare[report]').")
