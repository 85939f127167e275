"""The command `softshare tune`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, get_args

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
from softshare.runs import load_checkpoint
from softshare.search import paper_search_base
from softshare.study_files import FRONT, SUMMARY
from softshare.task import Task
from softshare.trials import front
from softshare.tune import Job, Sampler, StudyConfig
from softshare.tune import tune as run_study
from softshare.weights import load_state_
from softshare.zoo.experiments import EXPERIMENTS, get_experiment, make_task, pretrain_


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
        typer.Option(help=f"What proposes trials, one of: {', '.join(get_args(Sampler))}. 'gp': a Gaussian process."),
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
        bool, typer.Option("--paper", help="Search the paper's settings (section 6.2), not those of our defaults.")
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
    say = Console(stderr=True)
    ours = EXPERIMENTS[task].compress if task in EXPERIMENTS else CompressConfig()
    config = (paper_search_base() if paper else ours).override(**overrides)
    if paper and task in EXPERIMENTS and label_smoothing is None:
        label_smoothing = 0.0  # as in the paper
    options = TaskOptions(data, augment, label_smoothing)
    loaded = load_task(task, device, config.seed, options)

    def pretrain_once_(task: Task) -> None:
        if weights:
            load_state_(task.model, load_checkpoint(weights), str(weights))
        elif task.name in EXPERIMENTS:
            schedule = dataclasses.replace(get_experiment(task.name).pretrain, seed=config.seed)
            pretrain_(task, schedule, [ProgressBar("pre-train")])

    is_experiment = task in EXPERIMENTS
    name = task if is_experiment else Path(task.rpartition(":")[0]).stem
    job = Job(
        task=loaded,
        config=config,
        folder=folder or Path("runs") / f"tune-{name}",
        held=overrides,
        method="paper" if paper else "softshare",
        recorded=options.changes(task) if is_experiment else {},
        pretrain_=pretrain_once_,
        judge=make_task(task, "cpu", data=data) if is_experiment else None,  # there `softshare verify` measures
    )
    rows = run_study(
        job,
        StudyConfig(trials, sampler, error_bound, storage, study),  # type: ignore[arg-type]
        hooks=lambda title: [ProgressBar(title)] if say.is_terminal else [],
        say=lambda text: say.print(text, markup=False, highlight=False, soft_wrap=True),
    )
    out = Console(markup=False)
    best = front(rows)
    out.print(tables.front_table(best, f"The front of {len(rows)} trials, in {job.folder / FRONT}"))
    out.print(f"{sum(row.state == 'pruned' for row in rows)} were pruned; all are in {job.folder / SUMMARY}.")
    if not can_draw():
        out.print("No figure was drawn: that needs matplotlib (pip install 'softshare[report]').", highlight=False)
