"""The command line. Each command is a few calls into the package; every error of the user's ends with exit status 2."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor

from softshare import tables
from softshare.batchnorm import reestimate_batch_norm_
from softshare.cli_tasks import (
    AugmentOption,
    DataOption,
    DeviceOption,
    OverwriteOption,
    SmoothingOption,
    TaskOptions,
    find_device,
    load_task,
)
from softshare.cli_tune import tune
from softshare.codec import MAX_BYTES, load, load_into_
from softshare.codec import inspect as inspect_file
from softshare.config import CompressConfig, EncodeConfig
from softshare.datafree import compress_weights
from softshare.errors import ConfigError, DivergedError, SoftShareError
from softshare.evaluate import Result, final_error, measure
from softshare.export import export_onnx, export_sparse
from softshare.hooks import CsvLog, ProgressBar
from softshare.options import with_config_options
from softshare.page import load_results, stale_files, wanted_files, write_file
from softshare.pareto import can_draw
from softshare.report.frames import FrameLog
from softshare.report.live import LivePage
from softshare.report.tensorboard import TensorBoardLog
from softshare.report.write import write_report
from softshare.reproduce import reproduce as reproduce_results
from softshare.retrain import Hook
from softshare.route import compress as compress_task
from softshare.runs import (
    FRAMES,
    HISTORY,
    LAST_GOOD,
    MODEL,
    PRETRAINED,
    RESULT,
    RETRAINED,
    UNFINISHED,
    earlier_files,
    load_checkpoint,
    output_folder,
    save_checkpoint,
)
from softshare.target import MaxBytes, MaxError, MaxErrorIncrease, Target
from softshare.task import Task
from softshare.verify import Check, find_pairs
from softshare.verify import verify as verify_pairs
from softshare.weights import WeightView, load_state_
from softshare.zoo.experiments import EXPERIMENTS, get_experiment, make_task, pretrain_
from softshare.zoo.recipes import RECIPES, methods

app = typer.Typer(
    name="softshare",
    help="Make a trained PyTorch network many times smaller: retrain it under a learned mixture prior over its "
    "weights, merge, quantize and write a file that loads back into a network just as accurate.",
    epilog="Start with: softshare demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(markup=False)

FolderArgument = Annotated[Path, typer.Argument(help="Folder of NAME.sws files, each with NAME.json beside it.")]
BatchNormOption = Annotated[
    bool,
    typer.Option("--batch-norm", help="Re-estimate batch-norm statistics on the task's training data after loading."),
]


def _target_option(help: str) -> Any:
    return typer.Option(rich_help_panel="Target", show_default=False, help=help)


@dataclass(frozen=True)
class _Watching:
    """Further ways to follow a run."""

    live: bool = False
    live_port: int = 0
    tensorboard: Path | None = None

    @contextlib.contextmanager
    def hooks(self, folder: Path) -> Iterator[list[Hook]]:
        """To be listed after those that write to the folder."""
        found: list[Hook] = [TensorBoardLog(self.tensorboard)] if self.tensorboard else []
        with LivePage(folder, self.live_port) if self.live else contextlib.nullcontext() as page:
            if page:
                out.print(f"live: {page.address}", highlight=False)
                found.append(page)
            yield found


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the run.")] = Path("runs/demo"),
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Run the whole route on LeNet-300-100 and the packaged MNIST, and compare with the paper.

    Pre-trains, retrains under the prior, compresses, saves, loads the file into a fresh model and evaluates that.
    """
    config = get_experiment("lenet-300-100").compress
    _run("lenet-300-100", folder, config, "softshare", None, overwrite, device, TaskOptions())


@app.command()
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
        _pretrain(task, experiment, unfinished, seed)
    out.print(f"test error {final_error(task, task.model):.2f}%, written to {folder / PRETRAINED}", highlight=False)


@app.command()
@with_config_options
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
            help="Without a task: at most this error of a tensor's weights, by root mean squares; 0.05 is 5%.",
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
        bool, typer.Option("--paper", help="Start from the paper's settings, not from our defaults.")
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
    retraining in the folder. An experiment starts from a few settings of its own, which result.json records; your
    task from the defaults. A target that is not met ends with exit status 1, and the nearest that was found is in the
    folder.

    Without a task: `--weights model.safetensors --bits 3` or `--weight-error 0.05` writes a file, fitted to the
    weights alone. Nothing is trained, so expect far larger files for the same accuracy. Of the settings only --rule and
    those of the file count.
    """
    if task is None:
        options = TaskOptions(data, augment, label_smoothing, from_scratch)
        _require_no_task_options(overrides, options, paper, device)
        _compress_weights(weights, folder, bits, weight_error, overrides, overwrite)
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
    watching = _Watching(live, live_port, tensorboard)
    method = "paper" if paper else "softshare"
    _run(task, folder, config, method, weights, overwrite, device, options, watching, target)


app.command()(with_config_options(tune))


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


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A .sws file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON, for a program.")] = False,
) -> None:
    """Show what a file holds, tensor by tensor: shape, density, components, bits per weight, bytes, share of the file.

    Reads the headers only: nothing is decoded.
    """
    info = inspect_file(file)
    if as_json:
        typer.echo(json.dumps(info.to_dict(), indent=2))
    else:
        out.print(tables.file_table(info, str(file)))


@app.command()
def decompress(
    file: Annotated[Path, typer.Argument(help="A .sws file.")],
    target: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    max_bytes: Annotated[
        int, typer.Option(min=0, help="Refuse a file whose tensors would take more than this many bytes.")
    ] = MAX_BYTES,
    overwrite: OverwriteOption = False,
) -> None:
    """Decode a file to safetensors."""
    if target.exists() and not overwrite:
        raise ConfigError(f"{target} exists already; give --overwrite or another name")
    state = load(file, max_bytes=max_bytes)
    save_checkpoint(target, state)
    out.print(f"{len(state)} tensors written to {target}", highlight=False)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A folder that compress or demo has filled.")],
    task: Annotated[
        str | None, typer.Option(help="Experiment or FILE.py:make_task; default: the one of the run.")
    ] = None,
    device: DeviceOption = "auto",
    data: DataOption = None,
    batch_norm: BatchNormOption = False,
) -> None:
    """Decode a run's file into a fresh model and measure it again; exit status 1 if it differs from result.json.

    With --batch-norm it is another network than the one of result.json, and may differ.
    """
    result = Result.load(run / RESULT)
    try:
        loaded = load_task(task or result.experiment, device, 0, TaskOptions(data))
    except ConfigError as problem:
        raise problem if task else ConfigError(f"{problem}; give the run's task by --task") from None
    load_into_(loaded.model, run / MODEL)
    if batch_norm:
        reestimate_batch_norm_(loaded.model, loaded.train, loaded.loss)
    error = final_error(loaded, loaded.model)
    n_bytes = (run / MODEL).stat().st_size
    out.print(
        f"error {error:.4f}% (result.json: {result.error_after:.4f}%), {n_bytes} bytes ({result.file_bytes})",
        highlight=False,
    )
    if (error, n_bytes) != (result.error_after, result.file_bytes) and not batch_norm:
        out.print("They differ.")
        raise typer.Exit(1)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="A .sws file.")],
    onnx: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the network as ONNX, with dense quantized weights.")
    ] = None,
    sparse: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a state dict for torch.load, its matrices as sparse CSR tensors where those are smaller.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="For ONNX: the network, as an experiment or FILE.py:make_task.")
    ] = None,
    batch_norm: BatchNormOption = False,
    data: DataOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Write a file's network for others to run: as ONNX, or as torch's sparse tensors.

    ONNX is run by onnxruntime before it is written, on the first batch of the task, and must give what PyTorch gives.
    The input is the batch, or the first item of it.
    """
    targets = [target for target in (onnx, sparse) if target is not None]
    if not targets:
        raise ConfigError("expected --onnx FILE or --sparse FILE, got neither")
    for target in targets:
        if target.exists() and not overwrite:
            raise ConfigError(f"{target} exists already; give --overwrite or another name")
    if onnx is None and (task or batch_norm or data):
        raise ConfigError("--task, --batch-norm, --data: only for --onnx; leave them out")
    if sparse is not None:
        n_sparse = export_sparse(file, sparse)
        out.print(f"{n_sparse} sparse tensors written to {sparse}", highlight=False, soft_wrap=True)
    if onnx is not None:
        if task is None:
            raise ConfigError("--onnx: a file has weights and no network; give it by --task")
        loaded = load_task(task, "auto", 0, TaskOptions(data))
        load_into_(loaded.model, file)
        if batch_norm:
            reestimate_batch_norm_(loaded.model, loaded.train, loaded.loss)
        difference = export_onnx(loaded.model, (_first_input(loaded),), onnx)
        out.print(
            f"written to {onnx}; onnxruntime's outputs are PyTorch's to within {difference:.1g} of the largest",
            highlight=False,
            soft_wrap=True,
        )


def _first_input(task: Task) -> Tensor:
    batch = next(iter(task.train))
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if not isinstance(first, Tensor):
        raise ConfigError(
            f"--onnx: expected batches that are a tensor or begin with one, got {type(first).__name__}; in Python, "
            "softshare.export_onnx(model, inputs, path)"
        )
    return first


@app.command()
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


@app.command()
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


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A folder that compress or demo has filled.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for the report; default: RUN/report.")] = None,
) -> None:
    """Show a run: one HTML page that needs no network, and its figures as SVG and PNG files.

    Weights before and after, the mixture in training, where the bytes are, and more. Needs matplotlib.
    """
    page, *pictures = write_report(run, folder or run / "report")
    out.print(f"{page} written, and {len(pictures)} pictures beside it.", highlight=False, soft_wrap=True)


@app.command()
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


def _run(
    spec: str,
    folder: Path,
    config: CompressConfig,
    method: str,
    weights: Path | None,
    overwrite: bool,
    device: str,
    options: TaskOptions,
    watching: _Watching | None = None,
    target: Target | None = None,
) -> None:
    start = time.perf_counter()
    seed = config.retrain.seed
    task = load_task(spec, device, seed, options)
    pretrains = spec in EXPERIMENTS and not weights and not options.from_scratch
    if pretrains and not overwrite and earlier_files(folder) == [PRETRAINED]:
        weights, overwrite = folder / PRETRAINED, True  # what `softshare pretrain` has left there
    if weights:
        load_state_(task.model, load_checkpoint(weights), str(weights))
        out.print(f"pre-trained weights: {weights}", highlight=False)
    WeightView.of(task.model, config.prior.rules).check()  # learn it now, before anything is trained or written
    with (
        (watching or _Watching()).hooks(folder / UNFINISHED) as watchers,
        output_folder(folder, overwrite) as unfinished,
    ):
        if pretrains and not weights:
            _pretrain(task, spec, unfinished, seed)
        else:
            save_checkpoint(unfinished / PRETRAINED, task.model.state_dict())
        film = FrameLog(unfinished / FRAMES)
        try:
            hooks = [ProgressBar("retrain"), CsvLog(unfinished / HISTORY), film, *watchers]
            compressed = compress_task(task, config, hooks, target=target)
        except DivergedError as error:
            save_checkpoint(unfinished / LAST_GOOD, error.state)
            raise
        film.finish(compressed.mixtures)
        save_checkpoint(unfinished / RETRAINED, compressed.retrained)
        compressed.save(unfinished / MODEL)
        fresh = get_experiment(spec).make_model().to(find_device(device)) if spec in EXPERIMENTS else None
        result = measure(task, compressed, config, method=method, model=fresh)
        if spec in EXPERIMENTS:
            result = dataclasses.replace(result, config={**result.config, **options.changes(spec)})
        result.save(unfinished / RESULT)
    out.print(tables.file_table(inspect_file(folder / MODEL), str(folder / MODEL)))
    for message in compressed.messages:
        out.print(message, highlight=False)
    out.print(tables.account_table(result))
    out.print(tables.result_table(result, EXPERIMENTS[spec].paper if spec in EXPERIMENTS else None))
    out.print(f"{time.perf_counter() - start:.0f} s; one seed ({seed}). The run is in {folder}.", highlight=False)
    if compressed.outcome:
        out.print(str(compressed.outcome), highlight=False)
        if not compressed.outcome.met:
            raise typer.Exit(1)
        return
    soft = compressed.history[config.retrain.epochs].validation_error  # before the codebooks are trained
    if result.error_after > result.error_before + 1:
        was_soft = config.retrain.hard_from >= 1
        by_quantizing = was_soft and result.error_after - soft > soft - result.error_before
        out.print(
            f"The error rose from {result.error_before:.2f}% to {result.error_after:.2f}%; at the end of retraining it "
            f"was {soft:.2f}% on validation data. "
            + (
                "So quantizing did it: the weights had not settled on the components. Try --hard-from 0.2, which "
                "trains on quantized weights, more --components or more --epochs."
                if by_quantizing
                else "Try a smaller --tau, --zeroing or --width, more --epochs or another --lr-weights."
            ),
            highlight=False,
        )


def _require_no_task_options(overrides: Iterable[str], options: TaskOptions, paper: bool, device: str) -> None:
    of_file = {"rules", *(f.name for f in dataclasses.fields(EncodeConfig))}
    flags = [f"--{name.replace('_', '-')}" for name in overrides if name not in of_file]
    flags += [f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(options) if getattr(options, f.name)]
    flags += ["--paper"] * paper + ["--device"] * (device != "auto")
    if flags:
        raise ConfigError(f"{', '.join(flags)}: without a task nothing is trained; leave the option out or give a task")


def _compress_weights(
    weights: Path | None,
    file: Path | None,
    bits: float | None,
    weight_error: float | None,
    overrides: dict[str, Any],
    overwrite: bool,
) -> None:
    if weights is None:
        raise ConfigError(
            f"expected a task ({', '.join(EXPERIMENTS)} or FILE.py:make_task), or --weights to compress without one"
        )
    if bits is None and weight_error is None:
        raise ConfigError("without a task: give --bits, of a weight in the file, or --weight-error, as 0.05")
    file = file or weights.with_suffix(".sws")
    if file.exists() and not overwrite:
        raise ConfigError(f"{file} exists already; give --overwrite or another --out")
    start = time.perf_counter()
    rules = overrides.pop("rules", ())
    fitted = compress_weights(
        weights, bits=bits, weight_error=weight_error, rules=rules, config=EncodeConfig(**overrides)
    )
    fitted.save(file)
    out.print(tables.file_table(inspect_file(file), str(file)))
    worst = max(fitted.errors, key=lambda name: fitted.errors[name])
    total = math.sqrt(sum(error**2 for error in fitted.errors.values()) / len(fitted.errors))
    out.print(
        f"error of the weights, relative to each tensor: {100 * total:.2f}% (root mean square), at most "
        f"{100 * fitted.errors[worst]:.2f}%, in {worst}; {time.perf_counter() - start:.0f} s",
        highlight=False,
        soft_wrap=True,
    )


def _pretrain(task: Task, name: str, folder: Path, seed: int) -> None:
    pretrain_(task, dataclasses.replace(get_experiment(name).pretrain, seed=seed), [ProgressBar("pre-train")])
    save_checkpoint(folder / PRETRAINED, task.model.state_dict())


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        app(args=list(argv) if argv is not None else None)
    except SoftShareError as error:
        Console(stderr=True).print(f"softshare: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0
