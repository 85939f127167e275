"""The command `softshare decompress`: from an .sws file back to safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from softshare.cli.console import console
from softshare.cli.reading import BatchNormOption, load_into_task, require_sws
from softshare.cli.task_options import DataOption, OverwriteOption, TaskOptions, load_task
from softshare.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

UNITS = {
    "": 1,
    "B": 1,
    **{f"{k}B": 1000**n for n, k in enumerate("KMGT", 1)},
    **{f"{k}IB": 1024**n for n, k in enumerate("KMGT", 1)},
}
Dtype = Literal["float32", "float16", "bfloat16"]

out = console()


def decompress(
    file: Annotated[Path, typer.Argument(help="An .sws file.")],
    target: Annotated[
        Path,
        typer.Argument(
            help="The safetensors file to write, or an existing folder: it gets the configuration and the tokenizer "
            "beside the .sws file too."
        ),
    ],
    base: Annotated[
        Path | None,
        typer.Option(help="The checkpoint that the file differs from, if it holds differences: a file or a folder."),
    ] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Write floating-point tensors in this precision. Default: each in its own.")
    ] = None,
    shards: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Write files of at most this size, such as 2GB or 500MiB, and their index."),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=0,
            help="Refuse a file whose tensors need more than this many bytes, each tied name counted. Default: 4 GiB, "
            "and 2^30 steps of work (about 10 seconds) plus 128 for each byte of the file. A larger number allows more "
            "work in proportion.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="The network, as an experiment or FILE.py:make_task. A file without names needs it, and so does "
            "--batch-norm."
        ),
    ] = None,
    batch_norm: BatchNormOption = False,
    data: DataOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Decode a file and write its tensors as safetensors."""
    from softshare._util.files import require_folder, require_other, written_together
    from softshare.codec import MAX_BYTES, kinds, load, open_base, stream
    from softshare.integrations.hf_folder import copy_beside, is_of_hub, require_absent, weights_stem
    from softshare.network.checkpoint import save_checkpoint, save_shards

    most = None if shards is None else parsed_size(shards)
    folder = target if target.is_dir() else None
    if folder is not None:
        require_folder(folder)
        target = folder / f"{weights_stem(file.parent)}.safetensors"
        if is_of_hub(file.parent) and not overwrite:
            require_absent(file.parent, folder)
    for source in (file, *(() if base is None else (base,))):
        require_other(target, source)
        if folder is not None:
            require_other(folder, source)
    _require_absent(target, overwrite, with_shards=most is not None or folder is not None)
    if batch_norm and task is None:
        raise ConfigError("--batch-norm: expected --task as well, because a file holds no network and no data")
    if data and not task:
        raise ConfigError("--data has an effect only with --task. Give --task, or leave --data out")
    if task and (base or most or folder):
        raise ConfigError("--task: expected a file as the target, and neither --base nor --shards with it")
    require_sws(file)
    allowed = MAX_BYTES if max_bytes is None else max_bytes
    if task:
        loaded = load_task(task, "auto", 0, TaskOptions(data))
        state = load(file, like=loaded.model, max_bytes=allowed)
        if batch_norm:
            load_into_task(loaded, file, batch_norm)
            state = {name: loaded.model.state_dict()[name] for name in state}
        save_checkpoint(target, dict(converted(state.items(), dtype)))
        n, files = len(state), [target]
    elif most is None and folder is None:
        state = load(file, base=base, max_bytes=allowed)
        save_checkpoint(target, dict(converted(state.items(), dtype)))
        n, files = len(state), [target]
    else:
        under = None if base is None else open_base(base, allowed)
        listed = {name: _kind(kind, dtype) for name, kind in kinds(file, base=under).items()}
        tensors = converted(stream(file, base=under, max_bytes=allowed), dtype)
        n, files = len(listed), save_shards(target, listed, tensors, most or 1 << 62)
    if folder is not None and is_of_hub(file.parent):
        with written_together() as together:
            copy_beside(file.parent, folder, together)
    where = str(files[0]) if len(files) == 1 else f"{len(files)} files, {files[0]} to {files[-1].name}"
    out.print(f"Wrote {n} tensors to {where}.")


def parsed_size(text: str) -> int:
    """Bytes. As Hugging Face has it, 1 GB is 10^9 bytes, and 1 GiB is 2^30."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Z]*)", text.strip().upper())
    if not found or found[2] not in UNITS or float(found[1]) * UNITS[found[2]] < 1:
        raise ConfigError(f"--shards: expected a size such as 2GB, 500MB or 1GiB, got {text!r}")
    return int(float(found[1]) * UNITS[found[2]])


def _require_absent(target: Path, overwrite: bool, with_shards: bool) -> None:
    from softshare._util.files import require_plain
    from softshare.network.checkpoint import saved_files

    known = saved_files(target) if with_shards else [target]
    present = [path for path in known if require_plain(path) is not None]
    if present and not overwrite:
        raise ConfigError(f"{present[0]} already exists. Give --overwrite or another name")


def _kind(kind: Tensor, dtype: Dtype | None) -> Tensor:
    import torch

    return kind.to(getattr(torch, dtype)) if dtype and kind.is_floating_point() else kind


def converted(tensors: Iterable[tuple[str, Tensor]], dtype: Dtype | None) -> Iterator[tuple[str, Tensor]]:
    """The tensors with their floats in another precision. Names of one tensor keep one tensor."""
    before: Tensor | None = None
    for name, tensor in tensors:
        if before is None or tensor is not before:
            before, after = tensor, _kind(tensor, dtype)
            if after is not tensor and bool((tensor.isfinite() & ~after.isfinite()).any()):
                raise ModelError(f"tensor {name}: some of its values are too large for {dtype}. Give another --dtype")
        yield name, after
