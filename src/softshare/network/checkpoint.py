"""A checkpoint without its network: read tensors one by one, find tied ones, and decide which are shared."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from softshare._util.files import cannot_read, no_safetensors, read_bytes, require_readable, write_atomic
from softshare.config import Rule
from softshare.errors import ConfigError, ModelError
from softshare.network.memory import require_apart
from softshare.network.torch_file import is_torch_file, load_torch_file
from softshare.network.weights import first_match, require_matches
from softshare.network.wrapped import require_ordinary


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Every tensor of a checkpoint once, in order. A tensor is read from the source each time you ask for it."""

    tensors: Mapping[str, Tensor]
    shared: tuple[str, ...]
    rest: tuple[str, ...]
    tied: dict[str, str]  # another name -> the name under which the tensor is listed
    dropped: tuple[str, ...] = ()  # by every name: left out of the file

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].detach().cpu()


class SafetensorsFile(Mapping[str, Tensor]):
    """A safetensors file. The header is read once. A tensor is read when you ask for it, as a copy.

    Tensors from an open `safe_open` would be views of the mapped file, and everything read from them would stay in
    memory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        require_readable(path)
        try:
            with safetensors.safe_open(path, "pt") as file:
                self.metadata = dict(file.metadata() or {})
                names, order = file.keys(), file.offset_keys()
                self._kinds = {name: torch.empty_like(file.get_tensor(name), device="meta") for name in names}
            start = os.path.getsize(path) - sum(kind.nbytes for kind in self._kinds.values())  # the data has no gaps
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
        return name in self._kinds  # Mapping's own method would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def open_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Tensor],  # a file, or a state dict
    rules: Sequence[Rule] = (),
    most: int | None = None,  # tensors
) -> Checkpoint:
    """Floating-point tensors of at least two dimensions are shared, unless a rule decides otherwise: the first match.

    A file is one of safetensors or of `torch.save`. Tensors of equal bytes are tied, and so are those that
    `safetensors.torch.save_model` has left out as tied.
    """
    if not isinstance(source, Mapping) and is_torch_file(source):
        source = load_torch_file(source)
    if not isinstance(source, Mapping):
        file = SafetensorsFile(source)
        _require_at_most(most, file)
        return _checkpoint(file, file.metadata, rules)
    _require_at_most(most, source)
    wrong = [str(name) for name, value in source.items() if not isinstance(value, Tensor)]
    if wrong:
        raise ModelError(
            f"expected a state dict that holds only tensors, but these entries are not: {', '.join(wrong)}"
        )
    if isinstance(source, dict):  # another mapping may read a tensor each time that it is asked for one
        require_ordinary(plain := dict(source.items()))
        require_apart(plain)
    return _checkpoint(source, {}, rules)


def _require_at_most(most: int | None, names: Collection[str]) -> None:
    """Before any tensor is read: reading takes long if there are many."""
    if most is not None and len(names) > most:
        raise ModelError(f"expected a checkpoint of at most {most:,} tensors, as a file can hold, got {len(names):,}")


def _checkpoint(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], rules: Sequence[Rule]) -> Checkpoint:
    tied = {a: name for a, name in metadata.items() if name in tensors and a not in tensors and a != "format"}
    names: dict[str, list[str]] = {}
    kinds: dict[str, Tensor] = {}  # shapes and dtypes, so that each tensor is read once
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
    require_matches(rules, [*names, *tied])
    decided = {name: first_match(rules, aliases) for name, aliases in names.items()}
    left = {name: rule for name, rule in decided.items() if not (rule and rule.drop)}
    shared = {name: None for name, rule in left.items() if _is_shared(kinds[name], rule)}
    dropped = tuple(alias for name, aliases in names.items() if name not in left for alias in aliases)
    tied = {alias: name for alias, name in tied.items() if name in left}
    rest = tuple(name for name in left if name not in shared)
    return Checkpoint(tensors, tuple(shared), rest, tied, dropped)


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _is_shared(tensor: Tensor, rule: Rule | None) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return False
    return rule.share if rule else tensor.dim() > 1


def magnitudes_of(name: str, known: Container[str]) -> str | None:
    """The tensor of magnitudes beside a direction of `weight_norm`, which is divided by its norm; None for all others.

    There is no network to ask, so the names decide.
    """
    other = ""
    if name.endswith("_v"):
        other = f"{name[:-1]}g"
    elif ".parametrizations." in f".{name}" and name.endswith(".original1"):
        other = f"{name[:-1]}0"
    return other if other in known else None


def save_checkpoint(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a state dict as safetensors. A tied tensor is written under each of its names."""
    if "__metadata__" in state:
        raise ConfigError(
            f"cannot write {path}: a tensor is called '__metadata__', a name that safetensors reserves. Rename it"
        )
    dense: dict[str, Tensor] = {}
    seen = set[int]()  # memory that is written already. What is in no other tensor needs no copy
    for name, t in state.items():
        own = t.detach().cpu().contiguous()
        place = own.untyped_storage().data_ptr()
        dense[name] = own.clone() if place in seen else own
        seen.add(place)
    write_atomic(path, safetensors.torch.save(dense))


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a file of safetensors or of `torch.save`."""
    if is_torch_file(path):
        return load_torch_file(path)
    data = read_bytes(path)
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise no_safetensors(path, error) from None
