"""The command `softshare tune`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from softshare import zoo
from softshare.cli.settings import ConfigOption, read_settings
from softshare.cli.stopping import AGAIN_TO_GO_ON, stopping
from softshare.cli.task_options import (
    NETWORK,
    WEIGHTS_HELP,
    AugmentOption,
    DataOption,
    DeviceOption,
    SmoothingOption,
    TaskArgument,
    TaskOptions,
    load_task,
)
from softshare.config import CompressConfig

SAMPLERS = Literal["gp", "tpe", "nsga2"]


def tune(
    context: typer.Context,
    task: TaskArgument,
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Study folder (default: runs/tune-NAME). An existing study is resumed."),
    ] = None,
    trials: Annotated[int, typer.Option(help="Total number of finished trials, across processes and restarts.")] = 40,
    *,
    overrides: dict[str, Any],
    config: ConfigOption = None,
    sampler: Annotated[
        SAMPLERS,
        typer.Option(help="What proposes trials: a Gaussian process, Parzen estimators or a genetic algorithm."),
    ] = "gp",
    error_bound: Annotated[
        float | None,
        typer.Option(
            metavar="VALUE",
            help="Prune a trial whose validation error, or other metric of the task, is worse than this. Default: 5 "
            "points worse than before compression, or half the value if the metric is not in percent.",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the study is kept: postgresql://..., mysql://..., redis://..., or journal:///FILE on a disk "
            "that machines share. Default: the file study.db in the study folder.",
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the study in the storage. Default: the name of the task."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Number of processes on this machine that share the study.")] = 1,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Devices of the processes, in turn, such as 0,1,2,3. Default: all GPUs, or --device."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=NETWORK,
            help=f"{WEIGHTS_HELP} Without them, an experiment is pre-trained once, at the start.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    data: DataOption = None,
    augment: AugmentOption = None,
    label_smoothing: SmoothingOption = None,
) -> None:
    """Search the settings with Optuna for small files with low errors.

    The search covers every setting that has a range (docs/tuning.md), except those that you give here. `--config paper`
    searches the paper's method and its hyper-parameters. The test set is read only for the points of the front.

    The folder gets a file and a result of each trial, copies of the front with test errors, summary.csv, front.png and
    settings.png. Run the same command again to resume a study. Run it several times at once, or with --workers, to
    share it between processes.
    """
    from softshare.cli import tables
    from softshare.cli.console import console
    from softshare.cli.workers import devices_of, others
    from softshare.paper.published import published_points
    from softshare.report.style import can_draw
    from softshare.train.progress import ProgressBar
    from softshare.tune.search import Job, StudyConfig
    from softshare.tune.search import tune as run_study
    from softshare.tune.study_folder import FRONT, SUMMARY
    from softshare.tune.trials import front
    from softshare.zoo.experiments import EXPERIMENTS, make_task, pretrain_

    device, *elsewhere = devices_of(workers, devices, device)
    experiment, settings = EXPERIMENTS.get(task), read_settings(config)
    full = settings.applied(experiment.compress if experiment else CompressConfig(), overrides)
    if settings.is_paper and experiment and label_smoothing is None:
        label_smoothing = 0.0  # as in the paper
    options = TaskOptions(data, augment, label_smoothing)
    name = task if task in zoo.NAMES else Path(task.rpartition(":")[0]).stem
    job = Job(
        task=load_task(task, device, full.seed, options),
        config=full,
        folder=folder or Path("runs") / f"tune-{name}",
        held=[*settings.some, *overrides],
        method=settings.method,
        weights=weights,
        others=published_points,
    )
    if experiment:
        schedule = dataclasses.replace(experiment.pretrain, seed=full.seed)
        job = dataclasses.replace(
            job,
            recorded=options.changes(task),
            pretrain_=lambda task, checkpoint: pretrain_(task, schedule, [ProgressBar("pre-train")], checkpoint),
            judge=make_task(task, "cpu", data=data),  # `softshare verify` measures on the CPU
        )
    log = console(stderr=True)
    with (
        stopping(AGAIN_TO_GO_ON, lambda: f"Finished trials are kept in {job.folder}. {AGAIN_TO_GO_ON}"),
        others(context.obj, elsewhere),
    ):
        rows = run_study(
            job,
            StudyConfig(trials, sampler, error_bound, storage, study),
            hooks=lambda title: [ProgressBar(title)] if log.is_terminal and not elsewhere else [],
            say=log.print,
        )
    out = console()
    title = f"The front of {len(rows)} trials, in {job.folder / FRONT}"
    out.print(tables.front_table(front(rows), title, job.task.metric))
    out.print(
        f"{sum(row.state == 'pruned' for row in rows)} trials were pruned. All trials are in {job.folder / SUMMARY}."
    )
    if not front(rows):
        out.print(
            "No trial is within the bound. Give another --error-bound, or a smaller --width or --tau, or more --steps."
        )
    if not can_draw():
        out.print("No figure was drawn, because matplotlib is missing: pip install 'softshare[report]'")
