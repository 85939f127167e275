"""The commands that read a .sws file: `softshare inspect`, `decompress`, `evaluate` and `export`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from softshare.cli import tables
from softshare.cli.task_options import DataOption, DeviceOption, OverwriteOption, TaskOptions, load_task
from softshare.errors import ConfigError

if TYPE_CHECKING:
    from softshare.export import Inputs
    from softshare.task import Task

out = Console(markup=False)
BatchNormOption = Annotated[
    bool,
    typer.Option("--batch-norm", help="Re-estimate batch-norm statistics on the task's training data after loading."),
]


def inspect(
    file: Annotated[Path, typer.Argument(help="A .sws file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON, for a program.")] = False,
) -> None:
    """Show what a file holds, tensor by tensor: shape, density, components, bits per weight, bytes, share of the file.

    Reads the headers only: nothing is decoded.
    """
    from softshare.codec import inspect as inspect_file

    info = inspect_file(file)
    if as_json:
        typer.echo(json.dumps(info.to_dict(), indent=2))
    else:
        out.print(tables.file_table(info, str(file)))


def decompress(
    file: Annotated[Path, typer.Argument(help="A .sws file.")],
    target: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    max_bytes: Annotated[
        int | None,
        typer.Option(min=0, help="Refuse a file whose tensors would take more than this many bytes. Default: 4 GiB."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="For a file without names or --batch-norm: the network, as an experiment or FILE.py:make_task."
        ),
    ] = None,
    batch_norm: BatchNormOption = False,
    data: DataOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Decode a file to safetensors."""
    from softshare.codec import MAX_BYTES, load
    from softshare.network.checkpoint import save_checkpoint

    if target.exists() and not overwrite:
        raise ConfigError(f"{target} exists already; give --overwrite or another name")
    if batch_norm and task is None:
        raise ConfigError("--batch-norm: a file has weights, but no network and no data; give them by --task")
    if data and not task:
        raise ConfigError("--data: only for --task; leave it out")
    loaded = load_task(task, "auto", 0, TaskOptions(data)) if task else None
    state = load(file, like=loaded.model if loaded else None, max_bytes=MAX_BYTES if max_bytes is None else max_bytes)
    if loaded and batch_norm:
        _load_into_(loaded, file, batch_norm)
        state = {name: loaded.model.state_dict()[name] for name in state}
    save_checkpoint(target, state)
    out.print(f"{len(state)} tensors written to {target}", highlight=False)


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
    from softshare._util.run_folder import MODEL, RESULT
    from softshare.result import Result, final_error

    result = Result.load(run / RESULT)
    try:
        loaded = load_task(task or result.experiment, device, 0, TaskOptions(data))
    except ConfigError as problem:
        raise problem if task else ConfigError(f"{problem}; give the run's task by --task") from None
    _load_into_(loaded, run / MODEL, batch_norm)
    error = final_error(loaded, loaded.model)
    n_bytes = (run / MODEL).stat().st_size
    out.print(
        f"error {error:.4f}% (result.json: {result.error_after:.4f}%), {n_bytes} bytes ({result.file_bytes})",
        highlight=False,
    )
    if (error, n_bytes) != (result.error_after, result.file_bytes) and not batch_norm:
        out.print("They differ.")
        raise typer.Exit(1)


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
    The input is the batch, or the first item of it. Of a batch that is a dict, all tensors are inputs by name, except
    for `labels`, with which a Hugging Face model would compute its loss.
    """
    from softshare.export import export_onnx, export_sparse

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
        _load_into_(loaded, file, batch_norm)
        difference = export_onnx(loaded.model, _first_inputs(loaded), onnx)
        out.print(
            f"written to {onnx}; onnxruntime's outputs are PyTorch's to within {difference:.1g} of the largest",
            highlight=False,
            soft_wrap=True,
        )


def _load_into_(task: Task, file: Path, batch_norm: bool) -> None:
    from softshare.codec import load_into_
    from softshare.network.batchnorm import reestimate_batch_norm_

    load_into_(task.model, file)
    if batch_norm:
        reestimate_batch_norm_(task.model, task.train, task.loss)


def _first_inputs(task: Task) -> Inputs:
    from torch import Tensor

    batch = next(iter(task.train))
    if isinstance(batch, Mapping):
        return {name: t for name, t in batch.items() if name != "labels"}
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if not isinstance(first, Tensor):
        raise ConfigError(
            f"--onnx: expected tensors, dicts, or tuples that begin with a tensor, got {type(first).__name__}; in "
            "Python, softshare.export_onnx(model, inputs, path)"
        )
    return (first,)
