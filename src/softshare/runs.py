"""A run's folder: what it holds, and how it is filled without leaving halves behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from softshare.errors import ConfigError, DivergedError, FormatError, SoftShareError
from softshare.files import read_bytes, write_atomic

MODEL, RESULT, HISTORY = "model.sws", "result.json", "history.csv"
PRETRAINED, RETRAINED, LAST_GOOD = "pretrained.safetensors", "retrained.safetensors", "last_good.safetensors"
FILES = (MODEL, RESULT, HISTORY, PRETRAINED, RETRAINED, LAST_GOOD)


def earlier_files(path: Path) -> list[str]:
    """The files of a run that are in the folder already."""
    return [name for name in FILES if (path / name).exists()]


@contextlib.contextmanager
def output_folder(path: Path, overwrite: bool, keep: Sequence[str] = ()) -> Iterator[Path]:
    """Make the folder and refuse to touch an earlier run without `overwrite`; files named in `keep` are left alone.

    An error of the user's takes the run's files and every folder made away again. Training that diverged, and a crash
    or a stop, leave what there is.
    """
    names = [name for name in FILES if name not in keep]
    earlier = [path / name for name in earlier_files(path) if name in names]
    if earlier and not overwrite:
        raise ConfigError(f"{path} holds an earlier run ({earlier[0].name}); give --overwrite or another --out")
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_atomic(path / RESULT, b"")  # learn now, not after an hour of training, whether it can be written
            for file in (path / RESULT, *earlier):
                file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write to the folder {path}: {error.strerror or error}") from error
        try:
            yield path
        except SoftShareError as error:
            if not isinstance(error, DivergedError):
                for name in names:
                    (path / name).unlink(missing_ok=True)
            raise
    finally:
        with contextlib.suppress(OSError):  # the first that is not empty ends it
            for folder in made:
                folder.rmdir()


def save_checkpoint(path: Path, state: Mapping[str, Tensor]) -> None:
    """A state dict as safetensors; tied tensors are written under each of their names."""
    dense = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in state.items()}
    write_atomic(path, safetensors.torch.save(dense))


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    data = read_bytes(path)
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        hint = "; a .pt or .pth file must be saved again by safetensors.torch.save_file(model.state_dict(), ...)"
        raise FormatError(f"{os.fspath(path)} is not a safetensors file ({error}){hint}") from None
