"""The commands that train: `softshare demo`, `pretrain` and `compress`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softshare import zoo
from softshare._util.run_folder import EVERY
from softshare.cli.settings import ConfigOption, Settings, read_settings, recorded_target
from softshare.cli.stopping import AGAIN_TO_GO_ON, RESUME, stopping
from softshare.cli.task_options import (
    NETWORK,
    TASK_HELP,
    WEIGHTS_HELP,
    AugmentOption,
    DataOption,
    DeviceOption,
    EveryOption,
    OverwriteOption,
    ResumeOption,
    SmoothingOption,
    TaskOptions,
    VerboseOption,
    find_device,
)
from softshare.config import CompressConfig
from softshare.errors import ConfigError

if TYPE_CHECKING:
    from softshare.target.limits import Target

TARGET, WATCHING = "Target", "Watching"  # panels of --help


def demo(
    context: typer.Context,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the run.")] = Path("runs/demo"),
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
    verbose: VerboseOption = False,
) -> None:
    """Compress LeNet-300-100 on MNIST, which is in the package, as an example.

    The demo pre-trains and compresses the network, loads the file into a fresh model, and measures that model. At the
    end it writes report/draw.html, a page that runs the network on what you draw. With --verbose it compares the result
    with the paper.
    """
    from softshare.cli.drawing import draw_page
    from softshare.cli.run_task import RunOptions, out, run_task
    from softshare.cli.spared import spared
    from softshare.zoo.experiments import get_experiment

    config = get_experiment("lenet-300-100").compress
    options = RunOptions(
        overwrite=overwrite,
        resume=not overwrite,
        device=device,
        target=None,
        verbose=verbose,
        go_on=AGAIN_TO_GO_ON,
        command=context.obj,
    )
    status = run_task("lenet-300-100", folder, config, options)
    out.print("Keep the accuracy too:    softshare compress lenet-300-100")
    with spared("the page to draw on"):
        out.print(draw_page(folder))
    raise typer.Exit(status)


def pretrain(
    experiment: Annotated[str, typer.Argument(help=f"One of: {', '.join(zoo.NAMES)}.")],
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for pretrained.safetensors. Default: runs/EXPERIMENT.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of initialization and data order.")] = 0,
    overwrite: OverwriteOption = False,
    resume: ResumeOption = False,
    checkpoint_every: EveryOption = EVERY,
    device: DeviceOption = "auto",
    data: DataOption = None,
    augment: AugmentOption = None,
    label_smoothing: SmoothingOption = None,
    teacher: Annotated[
        Path | None,
        typer.Option(
            show_default=False,
            help="For mobile-100k: weights of a trained wrn-16-4, whose outputs are learned beside the labels.",
        ),
    ] = None,
) -> None:
    """Train the network of an experiment from scratch and save it as a safetensors file."""
    from softshare._util.run_folder import PRETRAINED, PRETRAINING, output_folder
    from softshare.cli.run_task import kept_of, out, pretrain_into
    from softshare.cli.spared import spared
    from softshare.result import final_error
    from softshare.zoo.experiments import make_task

    options = TaskOptions(data, augment, label_smoothing)
    task = make_task(experiment, find_device(device), seed, options.config(experiment), data)
    folder = folder or Path("runs") / experiment
    with (
        stopping(RESUME, lambda: kept_of(folder, [PRETRAINING], RESUME)),
        output_folder(folder, overwrite, resume=resume) as unfinished,
    ):
        pretrain_into(task, experiment, unfinished, seed, checkpoint_every, teacher)
    out.print(f"The network is in {folder / PRETRAINED}.")
    with spared("the test"):
        out.print(f"test error {final_error(task, task.model):.2f}%")


def compress(
    context: typer.Context,
    task: Annotated[
        str | None, typer.Argument(help=f"{TASK_HELP} Not needed if --config is the result.json of an experiment.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for the run. Default: runs/NAME.")] = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            show_default=False,
            rich_help_panel=TARGET,
            help="Find the smallest file with at most this error on validation data, in the unit of the task's metric; "
            "with at least this, if more of the metric is better.",
        ),
    ] = None,
    max_error_increase: Annotated[
        float | None,
        typer.Option(
            show_default=False,
            rich_help_panel=TARGET,
            help="Find the smallest file whose metric is at most this much worse than before, in its own unit.",
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            show_default=False,
            rich_help_panel=TARGET,
            help="Find the best network whose file has at most this many bytes.",
        ),
    ] = None,
    max_macs_ratio: Annotated[
        float | None,
        typer.Option(
            show_default=False,
            rich_help_panel=TARGET,
            help="Find the best network that needs at most this share of the multiply-adds, as 0.5, once it is shrunk "
            "(`softshare export --shrunk`).",
        ),
    ] = None,
    no_limit: Annotated[
        bool,
        typer.Option(
            "--no-limit",
            rich_help_panel=TARGET,
            help="Train once, as the settings say, whatever the network loses.",
        ),
    ] = False,
    *,
    overrides: dict[str, Any],
    config: ConfigOption = None,
    device: DeviceOption = "auto",
    overwrite: OverwriteOption = False,
    resume: ResumeOption = False,
    checkpoint_every: EveryOption = EVERY,
    verbose: VerboseOption = False,
    weights: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=NETWORK,
            help=f"{WEIGHTS_HELP} Without them, an experiment uses those that `softshare pretrain` has written to the "
            "folder, or is pre-trained first.",
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch",
            rich_help_panel=NETWORK,
            help="Train the network of an experiment under the prior without pre-training. Widths are then relative "
            "to the initial weights.",
        ),
    ] = False,
    data: DataOption = None,
    augment: AugmentOption = None,
    label_smoothing: SmoothingOption = None,
    fsdp: Annotated[
        bool,
        typer.Option(
            "--fsdp",
            help="Under torchrun: shard the weights over the processes (FSDP2). Default: each has all (DDP).",
            rich_help_panel=NETWORK,
        ),
    ] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            rich_help_panel=WATCHING,
            help="Show the report during training, on a page that only this machine can reach.",
        ),
    ] = False,
    live_port: Annotated[
        int,
        typer.Option(
            metavar="PORT", min=0, max=65535, rich_help_panel=WATCHING, help="Port of that page. 0 selects a free port."
        ),
    ] = 0,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", rich_help_panel=WATCHING, help="Log the history for TensorBoard to this folder."
        ),
    ] = None,
) -> None:
    """Compress a network: retrain it under the prior, merge, quantize, encode, and measure the decoded file.

    The folder of the run gets model.sws (the compressed network), result.json (measurements and settings), history.csv,
    frames.npz (for the report) and the checkpoints before and after retraining.

    If you name no target, the result is the smallest file found whose network is as good as before, within the noise of
    the evaluation. This takes several runs of training. The panel at the end says what the network lost. If the target
    is not met, the folder holds the nearest network that was found, and the exit status is 3.

    An experiment has its own settings, and your task starts from the defaults. Options override --set, and --set
    overrides --config. `--config runs/x/result.json` repeats a run; a task of your own must be named again.
    `softshare quantize` compresses a checkpoint without data.

    `torchrun --nproc-per-node N -m softshare compress FILE.py:make_task` trains in N processes. Each makes the task,
    with its own share of the batches. The first one prints and writes. If torchrun starts the processes again, they go
    on from the last checkpoint.
    """
    from softshare.cli.run_task import RunOptions, Watching, run_task
    from softshare.target.limits import default_target

    if task is None and weights and config is None:
        instead = shlex.join(["softshare", "quantize", str(weights)])
        raise ConfigError(f"expected a task. To compress a checkpoint without one, run: {instead}")
    settings = read_settings(config)
    task = task or _recorded_task(settings, config)
    given = _targets(max_error, max_error_increase, max_bytes, max_macs_ratio)
    if len(given) + no_limit > 1:
        names = [*map(repr, given), *["--no-limit"] * no_limit]
        raise ConfigError(f"expected one target, got {len(names)}: {', '.join(names)}")
    full = settings.applied(_base(task), overrides)
    options = _task_options(task, settings, TaskOptions(data, augment, label_smoothing, from_scratch))
    if given or no_limit:
        target = given[0] if given else None
    elif settings.result:
        target = recorded_target(settings.result)
    else:  # a fresh network has no accuracy to keep
        target = None if options.from_scratch else default_target(full)
    if options.from_scratch and weights:
        raise ConfigError(
            f"--from-scratch starts from a fresh network, --weights {weights} from a trained one. Leave one of them out"
        )
    if options.from_scratch and full.retrain.distill:
        raise ConfigError("--from-scratch: a fresh network cannot be a teacher. Leave --distill out")
    if live_port and not live:
        raise ConfigError(f"--live-port {live_port} is the port of --live, which was not given")
    status = run_task(
        task,
        folder or Path("runs") / (task if task in zoo.NAMES else Path(task.rpartition(":")[0]).stem),
        full,
        RunOptions(
            method=settings.method,
            weights=weights,
            overwrite=overwrite,
            resume=resume,
            checkpoint_every=checkpoint_every,
            device=device,
            fsdp=fsdp,
            task=options,
            watching=Watching(live, live_port, tensorboard),
            target=target,
            verbose=verbose,
            pretrained=_recorded_pretraining(task, settings, overrides, from_scratch),
            command=context.obj,
        ),
    )
    raise typer.Exit(status)


def _recorded_pretraining(task: str, settings: Settings, overrides: dict[str, Any], from_scratch: bool) -> Any:
    """How the network of a run that is repeated was pre-trained. With another task, seed or start it is no repeat."""
    if settings.result is None or from_scratch or "seed" in overrides or task != settings.result.experiment:
        return None
    return settings.result.config.get("pretrain")


def _base(task: str) -> CompressConfig:
    if task not in zoo.NAMES:
        return CompressConfig()
    from softshare.zoo.experiments import get_experiment

    return get_experiment(task).compress


def _recorded_task(settings: Settings, source: str | None) -> str:
    """The experiment of a result. A result must not choose which Python file is run, so a user's task is refused."""
    if settings.result is None:
        raise ConfigError(f"expected a task: {TASK_HELP}")
    name = settings.result.experiment
    if name not in zoo.NAMES:
        spec = name if ".py:" in name else "FILE.py:make_task"
        again = shlex.join(["softshare", "compress", spec, "--config", str(source)])
        raise ConfigError(f"{source} is a run of {name}, which is not an experiment. Name the task: {again}")
    return name


def _task_options(task: str, settings: Settings, given: TaskOptions) -> TaskOptions:
    """The given options, completed from the recorded result or from the paper's settings."""
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


def _targets(
    max_error: float | None, max_error_increase: float | None, max_bytes: int | None, max_macs_ratio: float | None
) -> list[Target]:
    from softshare.target.limits import MaxBytes, MaxError, MaxErrorIncrease, MaxMacs

    given: list[Target] = []
    if max_error is not None:
        given.append(MaxError(max_error))
    if max_error_increase is not None:
        given.append(MaxErrorIncrease(max_error_increase))
    if max_bytes is not None:
        given.append(MaxBytes(max_bytes))
    if max_macs_ratio is not None:
        given.append(MaxMacs(max_macs_ratio))
    return given
