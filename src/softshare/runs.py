"""A run's folder: what it holds, and how it is filled without leaving halves behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from softshare.errors import ConfigError, FormatError
from softshare.files import read_bytes, write_atomic

MODEL, RESULT, HISTORY = "model.sws", "result.json", "history.csv"
PRETRAINED, RETRAINED, LAST_GOOD = "pretrained.safetensors", "retrained.safetensors", "last_good.safetensors"


@contextlib.contextmanager
def output_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """Make the folder, refuse to touch an earlier run without `overwrite`, and leave no empty folder after an error."""
    names = (MODEL, RESULT, HISTORY, PRETRAINED, RETRAINED, LAST_GOOD)
    earlier = [path / name for name in names if (path / name).exists()]
    if earlier and not overwrite:
        raise ConfigError(f"{path} holds an earlier run ({earlier[0].name}); give --overwrite or another --out")
    made = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_atomic(path / RESULT, b"")  # learn now, not after an hour of training, whether it can be written
        (path / RESULT).unlink()
        for file in earlier:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to the folder {path}: {error.strerror or error}") from error
    try:
        yield path
    finally:
        if made:
            with contextlib.suppress(OSError):
                path.rmdir()  # does nothing where there is something in it


def save_checkpoint(path: Path, state: Mapping[str, Tensor]) -> None:
    """A state dict as safetensors; tied tensors are written under each of their names."""
    write_atomic(path, safetensors.torch.save({name: t.detach().cpu().clone() for name, t in state.items()}))


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    data = read_bytes(path)
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        hint = "; a .pt or .pth file must be saved again by safetensors.torch.save_file(model.state_dict(), ...)"
        raise FormatError(f"{os.fspath(path)} is not a safetensors file ({error}){hint}") from None
