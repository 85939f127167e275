"""The commands that train: `softshare demo`, `pretrain` and `compress`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softshare import zoo
from softshare.cli.settings import ConfigOption, Settings, read_settings, recorded_target
from softshare.cli.task_options import (
    NETWORK,
    TASK_HELP,
    AugmentOption,
    DataOption,
    DeviceOption,
    OverwriteOption,
    SmoothingOption,
    TaskOptions,
    find_device,
)
from softshare.config import CompressConfig
from softshare.errors import ConfigError

if TYPE_CHECKING:
    from softshare.target.limits import Target

WATCHING = "Watching"  # a panel of --help


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the run.")] = Path("runs/demo"),
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Run the whole route on LeNet-300-100 and the packaged MNIST, and compare with the paper.

    Pre-trains, retrains under the prior, compresses, saves, loads the file into a fresh model and evaluates that.
    """
    from softshare.cli.run_task import RunOptions, run_task
    from softshare.zoo.experiments import get_experiment

    config = get_experiment("lenet-300-100").compress
    run_task("lenet-300-100", folder, config, RunOptions(overwrite=overwrite, device=device))


def pretrain(
    experiment: Annotated[str, typer.Argument(help=f"One of: {', '.join(zoo.NAMES)}.")],
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for pretrained.safetensors. Default: runs/EXPERIMENT.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of initialization and data order.")] = 0,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
    data: DataOption = None,
    augment: AugmentOption = None,
    label_smoothing: SmoothingOption = None,
) -> None:
    """Train a network of the zoo from scratch; the checkpoint is a safetensors file."""
    from softshare._util.run_folder import PRETRAINED, output_folder
    from softshare.cli.run_task import out, pretrain_into
    from softshare.result import final_error
    from softshare.zoo.experiments import make_task

    options = TaskOptions(data, augment, label_smoothing)
    task = make_task(experiment, find_device(device), seed, options.config(experiment), data)
    folder = folder or Path("runs") / experiment
    with output_folder(folder, overwrite) as unfinished:
        pretrain_into(task, experiment, unfinished, seed)
    out.print(f"test error {final_error(task, task.model):.2f}%, written to {folder / PRETRAINED}", highlight=False)


def compress(
    task: Annotated[
        str | None, typer.Argument(help=f"{TASK_HELP} A result.json given by --config names its experiment.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for the run. Default: runs/NAME.")] = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            show_default=False,
            help="Steer to the smallest file with at most this error, in percent, on validation data.",
        ),
    ] = None,
    max_error_increase: Annotated[
        float | None,
        typer.Option(
            show_default=False, help="Steer to the smallest file whose error rises by at most this many points."
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(show_default=False, help="Steer to the best network whose file has at most this many bytes."),
    ] = None,
    *,
    overrides: dict[str, Any],
    config: ConfigOption = None,
    device: DeviceOption = "auto",
    overwrite: OverwriteOption = False,
    weights: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=NETWORK,
            help="Pre-trained weights (safetensors). Without them, an experiment uses the weights that pretrain has "
            "left in the folder, or pre-trains first.",
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch",
            rich_help_panel=NETWORK,
            help="For an experiment: train the fresh network under the prior, without pre-training. A width is then "
            "relative to the initialization.",
        ),
    ] = False,
    data: DataOption = None,
    augment: AugmentOption = None,
    label_smoothing: SmoothingOption = None,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            rich_help_panel=WATCHING,
            help="Show the report while training, on a page that only this machine can see.",
        ),
    ] = False,
    live_port: Annotated[
        int,
        typer.Option(min=0, max=65535, rich_help_panel=WATCHING, help="Port of that page (0: a free one)."),
    ] = 0,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", rich_help_panel=WATCHING, help="Also log every epoch there for TensorBoard."),
    ] = None,
) -> None:
    """Compress a network: retrain under the prior, merge, quantize, encode, and measure what the file decodes to.

    The folder then holds model.sws (the file), result.json (what was measured, with all settings), history.csv,
    frames.npz (for a report) and the checkpoints before and after retraining. An experiment starts from settings of
    its own, your task from the defaults. If a target is not met, the exit status is 1 and the folder holds the nearest
    network that was found.

    `--config runs/x/result.json` repeats a run. A checkpoint without data: softshare quantize.
    """
    from softshare.cli.run_task import RunOptions, Watching, run_task

    if task is None and weights and config is None:
        instead = shlex.join(["softshare", "quantize", str(weights)])
        raise ConfigError(f"expected a task; to compress a checkpoint without one: {instead}")
    settings = read_settings(config)
    task = task or _recorded_task(settings, config)
    target = _target(max_error, max_error_increase, max_bytes)
    if target is None and settings.result:
        target = recorded_target(settings.result)
    full = settings.applied(_base(task), overrides)
    options = _task_options(task, settings, TaskOptions(data, augment, label_smoothing, from_scratch))
    if options.from_scratch and weights:
        raise ConfigError(
            f"--from-scratch starts from a fresh network, --weights {weights} from a trained one; leave one of them out"
        )
    if options.from_scratch and full.retrain.distill:
        raise ConfigError("--from-scratch: a fresh network is no teacher; leave --distill out")
    if live_port and not live:
        raise ConfigError(f"--live-port {live_port} is the port of --live, which was not given")
    run_task(
        task,
        folder or Path("runs") / (task if task in zoo.NAMES else Path(task.rpartition(":")[0]).stem),
        full,
        RunOptions(
            method=settings.method,
            weights=weights,
            overwrite=overwrite,
            device=device,
            task=options,
            watching=Watching(live, live_port, tensorboard),
            target=target,
            pretrained=settings.result.config.get("pretrain") if settings.result else None,
        ),
    )


def _base(task: str) -> CompressConfig:
    if task not in zoo.NAMES:
        return CompressConfig()
    from softshare.zoo.experiments import get_experiment

    return get_experiment(task).compress


def _recorded_task(settings: Settings, source: str | None) -> str:
    """The experiment of a result. A file of Python code is not run because a result names it."""
    if settings.result is None:
        raise ConfigError(f"expected a task: {TASK_HELP}")
    name = settings.result.experiment
    if name not in zoo.NAMES:
        again = shlex.join(["softshare", "compress", name, "--config", str(source)])
        raise ConfigError(f"{source} is a run of {name}, which is no experiment; name the task again, as: {again}")
    return name


def _task_options(task: str, settings: Settings, given: TaskOptions) -> TaskOptions:
    """The options given, completed by what a result records and by what the paper does."""
    if task not in zoo.NAMES:
        return given
    known: dict[str, Any] = {"label_smoothing": 0.0} if settings.is_paper or settings.result else {}
    if settings.result:
        known |= settings.result.config.get("task") or {}
    return TaskOptions(
        given.data,
        known.get("augment") or None if given.augment is None else given.augment,
        known.get("label_smoothing") if given.label_smoothing is None else given.label_smoothing,
        given.from_scratch or bool(known.get("from_scratch")),
    )


def _target(max_error: float | None, max_error_increase: float | None, max_bytes: int | None) -> Target | None:
    from softshare.target.limits import MaxBytes, MaxError, MaxErrorIncrease

    given: list[Target] = []
    if max_error is not None:
        given.append(MaxError(max_error))
    if max_error_increase is not None:
        given.append(MaxErrorIncrease(max_error_increase))
    if max_bytes is not None:
        given.append(MaxBytes(max_bytes))
    if len(given) > 1:
        raise ConfigError(f"expected one target, got {len(given)}: {', '.join(map(repr, given))}; leave one in")
    return given[0] if given else None
