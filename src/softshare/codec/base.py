"""The checkpoint that a file differs from: its tensors, the digest that names it, and their sum (docs/format.md 3.5).

A base is read tensor by tensor: once for its digest, and once more for its values.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from softshare.codec.budget import MAX_BYTES
from softshare.codec.header import DTYPES, dtype_name
from softshare.codec.wire import varint
from softshare.errors import ConfigError, ModelError
from softshare.network.readers.lazy import LazyTensors
from softshare.network.readers.source import open_tensors
from softshare.network.wrapped import unwrapped
from softshare.quantization.quantized import QuantizedTensor

BaseSource = str | os.PathLike[str] | Mapping[str, Tensor] | nn.Module
_CHUNK = 1 << 22  # values at a time


@dataclass(frozen=True, eq=False)
class Base:
    tensors: Mapping[str, Tensor]
    digest: bytes
    tied: Mapping[str, str]  # names that the container has left out as tied

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.tied.get(name, name)].detach().cpu()

    def get(self, name: str) -> Tensor | None:
        return self[name] if name in self.tensors or name in self.tied else None

    @property
    def names(self) -> list[str]:
        return [*self.tensors, *self.tied]


def open_base(source: BaseSource, max_bytes: int | None = MAX_BYTES) -> Base:
    """A network, its state dict, or a file or folder of any format; a `.sws` file counts as what it decodes to."""
    if isinstance(source, nn.Module):
        source = unwrapped(source).state_dict()
    if isinstance(source, str | os.PathLike):
        tensors = _of_path(Path(source), max_bytes)
    elif isinstance(source, Mapping):
        tensors = source
    else:
        raise ConfigError(
            f"base: expected a torch.nn.Module, a state dict or the path of a checkpoint, got {type(source).__name__}"
        )
    tied: dict[str, str] = {}
    if isinstance(tensors, LazyTensors):
        tied = {a: name for a, name in tensors.metadata.items() if name in tensors and a not in tensors}
        tied.pop("format", None)
    return Base(tensors, _digest(tensors, tied), tied)


def _of_path(path: Path, max_bytes: int | None) -> Mapping[str, Tensor]:
    from softshare.codec import decoding, opening  # which read deltas by this module

    return decoding.load(path, max_bytes=max_bytes) if opening.is_sws(path) else open_tensors(path)


def _digest(tensors: Mapping[str, Tensor], tied: Mapping[str, str]) -> bytes:
    """SHA-256 of all tensors in the order of their names' bytes, so that no container makes a difference."""
    found = hashlib.sha256()
    for name in sorted([*tensors, *tied], key=lambda name: name.encode(errors="surrogatepass")):
        tensor = tensors[tied.get(name, name)]
        if not isinstance(tensor, Tensor):
            raise ModelError(f"base: expected only tensors, but {name} is not one")
        label = name.encode(errors="surrogatepass")
        found.update(varint(len(label)) + label + bytes([list(DTYPES).index(dtype_name(name, tensor.dtype))]))
        found.update(varint(tensor.dim()) + b"".join(map(varint, tensor.shape)))
        for part in tensor.detach().cpu().contiguous().reshape(-1).split(_CHUNK):
            found.update(part.view(torch.uint8).numpy().data)
    return found.digest()


def restored(
    difference: QuantizedTensor,
    of: Tensor | None,  # the base's tensor of that name
) -> Tensor:
    """Base plus difference, in float32 or wider, rounded to the tensor's dtype. A difference of 0 changes no bit.

    A tensor that the base lacks, or has in another shape, stands alone.
    """
    if of is None or not differs_from(of, difference.shape):
        return difference.dense()
    step = dataclasses.replace(difference, dtype=torch.float32).dense()
    total = of.to(torch.promote_types(of.dtype, torch.float32)) + step
    return _rounded(torch.where(step == 0, of, total), difference.dtype)


def _rounded(values: Tensor, dtype: torch.dtype) -> Tensor:
    """From float64 to half precision by way of float32, on every device."""
    return values.to(torch.promote_types(dtype, torch.float32)).to(dtype)


def differs_from(of: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a shared tensor of this shape is a difference from that tensor of the base."""
    return of.is_floating_point() and tuple(of.shape) == tuple(shape)
