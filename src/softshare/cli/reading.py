"""The commands that read an .sws file: `softshare inspect`, `evaluate` and `export`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softshare import zoo
from softshare.cli.console import console
from softshare.cli.file_table import print_file_table
from softshare.cli.summary import result_panel
from softshare.cli.task_options import DataOption, DeviceOption, OverwriteOption, TaskOptions, load_task
from softshare.errors import ConfigError

if TYPE_CHECKING:
    from softshare.export import Inputs
    from softshare.task import Task

out = console()
BatchNormOption = Annotated[
    bool,
    typer.Option(
        "--batch-norm", help="After loading, re-estimate the batch-norm statistics on the training data of the task."
    ),
]


def inspect(
    file: Annotated[Path, typer.Argument(help="An .sws file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show each tensor of repeated blocks.")] = False,
) -> None:
    """Show what a file holds: shape, density, components, bits per weight and bytes of every tensor.

    The command reads only headers. Only a small compact file is decoded. Tensors of one shape whose names differ only
    in numbers share a row. The table shows the first 1000 rows, and the last 200 characters of a name. A name that is
    wider than the terminal loses the middle of its longest parts. JSON has all tensors and whole names.
    """
    from softshare.codec import inspect as inspect_file

    require_sws(file)
    info = inspect_file(file)
    if as_json:
        typer.echo(json.dumps(info.to_dict(), indent=2))
    else:
        print_file_table(out, info, str(file), unfold=verbose)


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a run of compress or demo.")],
    task: Annotated[
        str | None,
        typer.Option(help="An experiment or FILE.py:make_task. Default: the experiment of the run, if it has one."),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Run the file that result.json names as its task. Only for your own runs."),
    ] = False,
    device: DeviceOption = "auto",
    data: DataOption = None,
    batch_norm: BatchNormOption = False,
) -> None:
    """Decode the file of a run into a fresh model, measure it, and compare with result.json.

    The task of your own run is a Python file, and result.json only names it. It is run if you give it with --task, or
    say --trust.

    The exit status is 1 if they differ. With --batch-norm the network is no longer that of result.json, so a difference
    is not an error.
    """
    from softshare._util.run_folder import MODEL, RESULT
    from softshare.result import Result, final_error
    from softshare.verdict import verdict

    start = time.perf_counter()
    result = Result.load(run / RESULT)
    if task and trust:
        raise ConfigError("expected --task or --trust, got both. Leave one out")
    if not (task or trust or result.experiment in zoo.NAMES):
        raise ConfigError(
            f"{run / RESULT} names the task {result.experiment!r}. To run this code, give it with --task, or give "
            "--trust"
        )
    try:
        loaded = load_task(task or result.experiment, device, 0, TaskOptions(data))
    except ConfigError as problem:
        raise problem if task else ConfigError(f"{problem}. Give the task of the run with --task") from None
    metric = loaded.metric
    if metric != result.metric:
        raise ConfigError(
            f"expected a task that is judged by {result.metric.label!r}, as in result.json, got {metric.label!r}. Give "
            "the task of the run with --task"
        )
    load_into_task(loaded, run / MODEL, batch_norm)
    error = final_error(loaded, loaded.model)
    n_bytes = (run / MODEL).stat().st_size
    # With other batch-norm statistics it is another network than the one that the validation data have judged.
    found = dataclasses.replace(
        result,
        error_after=error,
        file_bytes=n_bytes,
        others=None,
        outcome=None if batch_norm else result.outcome,
    )
    out.print(result_panel(found, verdict(found), time.perf_counter() - start))
    out.print(
        f"Measured: {metric.name} {metric.text(error, 2)}, {n_bytes:,} bytes. result.json says: {metric.name} "
        f"{metric.text(result.error_after, 2)}, {result.file_bytes:,} bytes."
    )
    if (error, n_bytes) != (result.error_after, result.file_bytes) and not batch_norm:
        out.print("The file and result.json differ.")
        raise typer.Exit(1)


def export(
    file: Annotated[Path, typer.Argument(help="An .sws file.")],
    onnx: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the network as ONNX. The quantized weights are dense.")
    ] = None,
    sparse: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a state dict for torch.load. A matrix becomes a sparse CSR tensor if that is smaller.",
        ),
    ] = None,
    shrunk: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a smaller dense network without the units that do nothing: as ONNX (.onnx), or its state dict "
            "(.safetensors). In Python, softshare.shrink gives the network.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="The network for --onnx and --shrunk, as an experiment or FILE.py:make_task."),
    ] = None,
    batch_norm: BatchNormOption = False,
    data: DataOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Export a file for other programs: as ONNX, as a smaller network, or as a state dict with sparse tensors.

    An ONNX file is written only if onnxruntime computes the same outputs as PyTorch on the first batch of the task. The
    input of the network is the batch, or its first item. If the batch is a dict, all its tensors are inputs by name,
    except `labels`: with those, a Hugging Face model would compute its loss.
    """
    from softshare._util.files import require_other, require_plain
    from softshare.cli.shrinking import require_suffix, write_shrunk
    from softshare.export import export_onnx, export_sparse

    targets = [target for target in (onnx, sparse, shrunk) if target is not None]
    if not targets:
        raise ConfigError("expected --onnx FILE, --shrunk FILE or --sparse FILE, got none")
    if shrunk is not None:
        require_suffix(shrunk)
    for target in targets:
        require_other(target, file)
        if require_plain(target) is not None and not overwrite:
            raise ConfigError(f"{target} already exists. Give --overwrite or another name")
    if onnx is None and shrunk is None and (task or batch_norm or data):
        raise ConfigError("--task, --batch-norm and --data have an effect only with --onnx or --shrunk. Leave them out")
    require_sws(file)
    if sparse is not None:
        n_sparse = export_sparse(file, sparse)
        out.print(f"Wrote {n_sparse} sparse tensors to {sparse}.")
    if onnx is None and shrunk is None:
        return
    if task is None:
        option = "--shrunk" if onnx is None else "--onnx"
        raise ConfigError(f"{option}: expected --task as well, because a file holds no network")
    loaded = load_task(task, "auto", 0, TaskOptions(data))
    load_into_task(loaded, file, batch_norm)
    inputs = _first_inputs(loaded)
    if onnx is not None:
        difference = export_onnx(loaded.model, inputs, onnx)
        out.print(
            f"Wrote {onnx}. The outputs of onnxruntime and PyTorch agree to within {difference:.1g} of the largest."
        )
    if shrunk is not None:
        write_shrunk(loaded, inputs, shrunk)


def require_sws(file: Path) -> None:
    """Raise if the file is a checkpoint, by its name and its first bytes. What else it may be, its reader says."""
    from softshare.codec.header import MAGIC
    from softshare.network.readers.folder import ENDINGS

    if file.suffix not in ENDINGS or not file.is_file():
        return
    with contextlib.suppress(OSError), file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            command = shlex.join(["softshare", "quantize", str(file)])
            raise ConfigError(f"{file}: expected an .sws file, got a checkpoint. To compress it, run: {command}")


def load_into_task(task: Task, file: Path, batch_norm: bool) -> None:
    from softshare.codec import load_into_
    from softshare.network.batchnorm import reestimate_batch_norm_

    load_into_(task.model, file)
    if batch_norm:
        reestimate_batch_norm_(task.model, task.train, task.loss)


def _first_inputs(task: Task) -> Inputs:
    from torch import Tensor

    from softshare._util.user_code import batches
    from softshare.zoo.datasets import Split

    batch = next(batches(task.train), None)
    if isinstance(batch, Split):  # of an experiment
        return (batch.images,)
    if isinstance(batch, Mapping):
        return {name: t for name, t in batch.items() if name != "labels"}
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if not isinstance(first, Tensor):
        raise ConfigError(
            f"expected batches that are tensors, dicts, or tuples that begin with a tensor, got "
            f"{type(first).__name__}. In Python, softshare.export_onnx and softshare.shrink take any inputs"
        )
    return (first,)
