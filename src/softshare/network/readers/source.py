"""Open a checkpoint of any format. How a file begins says which it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from softshare._util.files import cannot_read, require_readable
from softshare.network.readers.folder import INDEX, joined, shards, weights_file
from softshare.network.readers.gguf_file import MAGIC, open_gguf
from softshare.network.readers.onnx_file import open_onnx
from softshare.network.readers.safetensors_file import open_safetensors
from softshare.network.readers.torch_file import is_torch_file, load_torch_file

FORMATS = "safetensors, a folder of shards with its index, a Hugging Face folder, GGUF, torch.save or ONNX"


def open_tensors(path: str | os.PathLike[str]) -> Mapping[str, Tensor]:
    """The tensors of a file or folder, each read when it is asked for.

    A file of `torch.save` from before 2020 is read at once. One of today's is mapped.
    """
    require_readable(path)
    if Path(path).is_dir():
        path = weights_file(Path(path))
    if os.fspath(path).endswith(INDEX):
        names = shards(Path(path))
        parts = {file: open_file(Path(path).parent / file) for file in names}
        return joined(Path(path), parts, names)
    return open_file(path)


def open_file(path: str | os.PathLike[str]) -> Mapping[str, Tensor]:
    if is_gguf(path):
        return open_gguf(path)
    if is_onnx(path):
        return open_onnx(path)
    return load_torch_file(path) if is_torch_file(path) else open_safetensors(path)


def is_gguf(path: str | os.PathLike[str]) -> bool:
    return _start(path).startswith(MAGIC)


def is_onnx(path: str | os.PathLike[str]) -> bool:
    """A model of ONNX begins with its version, field 1 of protobuf. The header of safetensors begins at byte 8."""
    start = _start(path)
    if len(start) < 9 or start[8:] == b"{":
        return False
    return os.fspath(path).endswith(".onnx") or (start[0] == 8 and 1 <= start[1] < 64)


def is_lazy(path: str | os.PathLike[str]) -> bool:
    """Whether only the tensors that are asked for can be read: not of what was saved by `torch.save`, and no pipe."""
    require_readable(path)
    return Path(path).is_dir() or os.fspath(path).endswith(INDEX) or is_gguf(path) or is_onnx(path)


def _start(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(9)
    except OSError as error:
        raise cannot_read(path, error) from error
