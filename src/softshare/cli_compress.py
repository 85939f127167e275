"""The commands that train: `softshare demo`, `pretrain` and `compress`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from softshare.cli_run import Watching, pretrain_into, run_task
from softshare.cli_tasks import (
    AugmentOption,
    DataOption,
    DeviceOption,
    OverwriteOption,
    SmoothingOption,
    TaskOptions,
    find_device,
)
from softshare.cli_weights import compress_without_task, require_no_task_options
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.evaluate import final_error
from softshare.runs import PRETRAINED, output_folder
from softshare.target import MaxBytes, MaxError, MaxErrorIncrease, Target
from softshare.zoo.experiments import EXPERIMENTS, get_experiment, make_task

out = Console(markup=False)


def _target_option(help: str) -> Any:
    return typer.Option(rich_help_panel="Target", show_default=False, help=help)


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the run.")] = Path("runs/demo"),
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Run the whole route on LeNet-300-100 and the packaged MNIST, and compare with the paper.

    Pre-trains, retrains under the prior, compresses, saves, loads the file into a fresh model and evaluates that.
    """
    config = get_experiment("lenet-300-100").compress
    run_task("lenet-300-100", folder, config, "softshare", None, overwrite, device, TaskOptions())


def pretrain(
    experiment: Annotated[str, typer.Argument(help=f"One of: {', '.join(EXPERIMENTS)}.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for pretrained.safetensors.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of initialization and data order.")] = 0,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
    data: DataOption = None,
    augment: AugmentOption = None,
    label_smoothing: SmoothingOption = None,
) -> None:
    """Train a network of the zoo from scratch; the checkpoint is a safetensors file."""
    options = TaskOptions(data, augment, label_smoothing)
    task = make_task(experiment, find_device(device), seed, options.config(experiment), data)
    folder = folder or Path("runs") / experiment
    with output_folder(folder, overwrite) as unfinished:
        pretrain_into(task, experiment, unfinished, seed)
    out.print(f"test error {final_error(task, task.model):.2f}%, written to {folder / PRETRAINED}", highlight=False)


def compress(
    overrides: dict[str, Any],
    task: Annotated[
        str | None,
        typer.Argument(
            help=f"An experiment ({', '.join(EXPERIMENTS)}) or FILE.py:make_task. Left out: --weights are compressed "
            "as they are, without data."
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        _target_option("Steer the run to the smallest file of at most this error, in percent, on validation data."),
    ] = None,
    max_error_increase: Annotated[
        float | None, _target_option("Likewise, of at most so many percentage points more than before.")
    ] = None,
    max_bytes: Annotated[
        int | None, _target_option("Steer the run to the best network whose file has at most so many bytes.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the run; default: runs/NAME. Without a task, the file to write; default: the weights' "
            "name with .sws.",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Pre-trained weights (safetensors). Without them an experiment takes those that pretrain has left in "
            "the folder, or pre-trains first."
        ),
    ] = None,
    bits: Annotated[
        float | None,
        typer.Option(metavar="FLOAT", help="Without a task: at most so many bits a weight, of the whole file."),
    ] = None,
    weight_error: Annotated[
        float | None,
        typer.Option(
            metavar="FLOAT",
            help="Without a task: at most this error of a tensor's weights, by root mean squares; 0.05, that is 5%, by "
            "default where there is no --bits.",
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch",
            help="For an experiment: no pre-training; the fresh network is trained under the prior from the first "
            "step. A width is then relative to its initialization.",
        ),
    ] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="Start from the paper's method, tuned, not from our defaults.")
    ] = False,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
    data: DataOption = None,
    augment: AugmentOption = None,
    label_smoothing: SmoothingOption = None,
    live: Annotated[
        bool, typer.Option("--live", help="Show the report while training, on a page that only this machine can see.")
    ] = False,
    live_port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="INT", help="Port of that page (0: a free one).")
    ] = 0,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Log every epoch there for TensorBoard as well.")
    ] = None,
) -> None:
    """Compress a network: retrain under the prior, merge, quantize, encode, and measure what the file decodes to.

    Leaves model.sws, result.json, history.csv, frames.npz (for a report) and the checkpoints before and after
    retraining in the folder. An experiment starts from a few settings of its own, your task from the defaults;
    result.json records them, and how the network was pre-trained or which weights were given. A target that is not met
    ends with exit status 1, and the nearest that was found is in the folder.

    Without a task: `--weights model.safetensors --out model.sws` writes a file, fitted to the weights alone, to within
    an error of 5%; `--bits 3` or `--weight-error 0.1` say otherwise. Nothing is trained, so expect far larger files for
    the same accuracy. Of the settings only --rule and those of the file count.
    """
    if task is None:
        require_no_task_options(
            overrides,
            max_error=max_error,
            max_error_increase=max_error_increase,
            max_bytes=max_bytes,
            from_scratch=from_scratch,
            paper=paper,
            device=None if device == "auto" else device,
            data=data,
            augment=augment,
            no_augment=augment is False,
            label_smoothing=label_smoothing,
            live=live,
            live_port=live_port or None,
            tensorboard=tensorboard,
        )
        compress_without_task(weights, folder, bits, weight_error, overrides, overwrite)
        return
    if bits is not None or weight_error is not None:
        flag = "--weight-error" if bits is None else "--bits"
        raise ConfigError(
            f"{flag}: only without a task; with one, --zeroing, --tau and --width trade bytes for accuracy"
        )
    target = _target(max_error, max_error_increase, max_bytes)
    ours = EXPERIMENTS[task].compress if task in EXPERIMENTS else CompressConfig()
    config = (CompressConfig.paper() if paper else ours).override(**overrides)
    folder = folder or Path("runs") / (task if task in EXPERIMENTS else Path(task.rpartition(":")[0]).stem)
    if paper and task in EXPERIMENTS and label_smoothing is None:
        label_smoothing = 0.0  # as in the paper
    if from_scratch and weights:
        raise ConfigError(
            f"--from-scratch starts from a fresh network, --weights {weights} from a trained one; leave one of them out"
        )
    if from_scratch and config.retrain.distill:
        raise ConfigError("--from-scratch: a fresh network is no teacher; leave --distill out")
    if live_port and not live:
        raise ConfigError(f"--live-port {live_port} is the port of --live, which was not given")
    options = TaskOptions(data, augment, label_smoothing, from_scratch)
    watching = Watching(live, live_port, tensorboard)
    method = "paper" if paper else "softshare"
    run_task(task, folder, config, method, weights, overwrite, device, options, watching, target)


def _target(max_error: float | None, max_error_increase: float | None, max_bytes: int | None) -> Target | None:
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
