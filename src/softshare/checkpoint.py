"""A checkpoint without its network: tensors read one by one, tied ones found, and which of them are shared."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import safetensors
import torch
from torch import Tensor

from softshare.config import Rule
from softshare.errors import ConfigError, FormatError, ModelError


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Every tensor once, in order; it is read anew each time it is asked for."""

    tensors: Mapping[str, Tensor]
    shared: tuple[str, ...]
    rest: tuple[str, ...]
    tied: dict[str, str]  # further name -> the name of the same tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].detach().cpu()


class _File(Mapping[str, Tensor]):
    """A safetensors file, opened anew for each tensor: what was read of an open one would stay in memory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        with self._open() as file:
            self._names, self.metadata = tuple(file.keys()), dict(file.metadata() or {})

    def _open(self) -> Any:
        try:
            return safetensors.safe_open(self._path, "pt")
        except OSError as error:
            raise ConfigError(f"cannot read {os.fspath(self._path)}: {error.strerror or error}") from error
        except safetensors.SafetensorError as error:
            hint = "; a .pt or .pth file must be saved again by safetensors.torch.save_file(model.state_dict(), ...)"
            raise FormatError(f"{os.fspath(self._path)} is not a safetensors file ({error}){hint}") from None

    def __getitem__(self, name: str) -> Tensor:
        with self._open() as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._names  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def open_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Tensor],  # a safetensors file, or a state dict
    rules: Sequence[Rule] = (),
) -> Checkpoint:
    """Shared are floating-point tensors of at least two dimensions, unless a rule says otherwise: the first counts.

    Tied are tensors of the same bytes, and those that `safetensors.torch.save_model` left out for being tied.
    """
    if not isinstance(source, Mapping):
        file = _File(source)
        return _checkpoint(file, file.metadata, rules)
    wrong = [str(name) for name, value in source.items() if not isinstance(value, Tensor)]
    if wrong:
        raise ModelError(f"the state dict must hold tensors only, but these are not: {', '.join(wrong)}")
    return _checkpoint(source, {}, rules)


def _checkpoint(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], rules: Sequence[Rule]) -> Checkpoint:
    tied = {a: name for a, name in metadata.items() if name in tensors and a not in tensors and a != "format"}
    names: dict[str, list[str]] = {}
    seen: dict[tuple[object, ...], str] = {}
    for name in tensors:
        tensor = tensors[name]
        first = seen.setdefault((tensor.shape, tensor.dtype, _checksum(tensor)), name) if tensor.dim() > 1 else name
        if first != name and torch.equal(tensors[first], tensor):
            tied[name] = first
        else:
            names[name] = [name]
    tied = {alias: tied.get(name, name) for alias, name in tied.items()}
    for alias, name in tied.items():
        names[name].append(alias)
    for rule in rules:
        if not any(fnmatchcase(alias, rule.pattern) for aliases in names.values() for alias in aliases):
            raise ConfigError(f"rule {rule}: no tensor matches; the names are {', '.join([*names, *tied])}")
    shared = [name for name, aliases in names.items() if _is_shared(tensors[name], aliases, rules)]
    return Checkpoint(tensors, tuple(shared), tuple(name for name in names if name not in shared), tied)


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _is_shared(tensor: Tensor, aliases: Sequence[str], rules: Sequence[Rule]) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return False
    for rule in rules:
        if any(fnmatchcase(name, rule.pattern) for name in aliases):
            return rule.share
    return tensor.dim() > 1
