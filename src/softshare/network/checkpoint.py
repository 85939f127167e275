"""A checkpoint without its network: tensors read one by one, tied ones found, and which of them are shared."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from softshare._util.files import cannot_read, no_safetensors, read_bytes, write_atomic
from softshare.config import Rule
from softshare.errors import ConfigError, ModelError


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Every tensor once, in order; it is read anew each time it is asked for."""

    tensors: Mapping[str, Tensor]
    shared: tuple[str, ...]
    rest: tuple[str, ...]
    tied: dict[str, str]  # further name -> the name of the same tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].detach().cpu()


class SafetensorsFile(Mapping[str, Tensor]):
    """A safetensors file: its header is read once, each tensor when asked for, as a copy.

    The tensors of an open `safe_open` are parts of the mapped file: what was read of them would stay in memory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        try:
            with safetensors.safe_open(path, "pt") as file:
                self.metadata = dict(file.metadata() or {})
                names, order = file.keys(), file.offset_keys()
                self._kinds = {name: torch.empty_like(file.get_tensor(name), device="meta") for name in names}
            start = os.path.getsize(path) - sum(kind.nbytes for kind in self._kinds.values())  # there are no gaps
        except OSError as error:
            raise cannot_read(path, error) from error
        except safetensors.SafetensorError as error:
            raise no_safetensors(path, error) from None
        sizes = (self._kinds[name].nbytes for name in order)
        self._starts = dict(zip(order, itertools.accumulate(sizes, initial=start), strict=False))

    def __getitem__(self, name: str) -> Tensor:
        kind = self._kinds[name]
        if not kind.numel():
            return torch.empty_like(kind, device="cpu")
        try:
            data = np.fromfile(self._path, np.uint8, kind.nbytes, offset=self._starts[name])
        except OSError as error:
            raise cannot_read(self._path, error) from error
        return torch.from_numpy(data).view(kind.dtype).reshape(kind.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._kinds  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def open_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Tensor],  # a safetensors file, or a state dict
    rules: Sequence[Rule] = (),
) -> Checkpoint:
    """Shared are floating-point tensors of at least two dimensions, unless a rule says otherwise: the first counts.

    Tied are tensors of the same bytes, and those that `safetensors.torch.save_model` left out for being tied.
    """
    if not isinstance(source, Mapping):
        file = SafetensorsFile(source)
        return _checkpoint(file, file.metadata, rules)
    wrong = [str(name) for name, value in source.items() if not isinstance(value, Tensor)]
    if wrong:
        raise ModelError(f"the state dict must hold tensors only, but these are not: {', '.join(wrong)}")
    return _checkpoint(source, {}, rules)


def _checkpoint(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], rules: Sequence[Rule]) -> Checkpoint:
    tied = {a: name for a, name in metadata.items() if name in tensors and a not in tensors and a != "format"}
    names: dict[str, list[str]] = {}
    kinds: dict[str, Tensor] = {}  # shapes and dtypes, to read each tensor once
    seen: dict[tuple[object, ...], str] = {}
    for name in tensors:
        tensor = tensors[name]
        first = seen.setdefault((tensor.shape, tensor.dtype, _checksum(tensor)), name) if tensor.dim() > 1 else name
        if first != name and torch.equal(tensors[first], tensor):
            tied[name] = first
        else:
            names[name] = [name]
            kinds[name] = torch.empty_like(tensor, device="meta")
    tied = {alias: tied.get(name, name) for alias, name in tied.items()}
    for alias, name in tied.items():
        names[name].append(alias)
    for rule in rules:
        if not any(fnmatchcase(alias, rule.pattern) for aliases in names.values() for alias in aliases):
            raise ConfigError(f"rule {rule}: no tensor matches; the names are {', '.join([*names, *tied])}")
    shared = {name: _is_shared(kinds[name], aliases, rules) for name, aliases in names.items()}
    rest = tuple(name for name in shared if not shared[name])
    return Checkpoint(tensors, tuple(name for name in shared if shared[name]), rest, tied)


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _is_shared(tensor: Tensor, aliases: Sequence[str], rules: Sequence[Rule]) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return False
    for rule in rules:
        if any(fnmatchcase(name, rule.pattern) for name in aliases):
            return rule.share
    return tensor.dim() > 1


def save_checkpoint(path: Path, state: Mapping[str, Tensor]) -> None:
    """A state dict as safetensors; tied tensors are written under each of their names."""
    if "__metadata__" in state:
        raise ConfigError(f"cannot write {path}: safetensors keeps the name '__metadata__' for itself")
    dense = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in state.items()}
    write_atomic(path, safetensors.torch.save(dense))


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    data = read_bytes(path)
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise no_safetensors(path, error) from None
