"""A checkpoint without its network: read tensors one by one, find tied ones, and decide which are shared."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import zlib
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from softshare._util.files import kind_of, no_safetensors, read_bytes, write_atomic, written_together
from softshare.config import Rule
from softshare.errors import ConfigError, ModelError
from softshare.network.memory import require_apart
from softshare.network.readers.folder import INDEX
from softshare.network.readers.lazy import LazyTensors
from softshare.network.readers.source import is_lazy, open_tensors
from softshare.network.readers.torch_file import is_torch_file, load_torch_file
from softshare.network.weights import first_match, require_matches
from softshare.network.wrapped import require_ordinary


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Every tensor of a checkpoint once, in order. A tensor is read from the source each time you ask for it."""

    tensors: Mapping[str, Tensor]
    kinds: Mapping[str, Tensor]  # shapes and dtypes of those that are listed, on the device `meta`
    shared: tuple[str, ...]
    rest: tuple[str, ...]
    tied: dict[str, str]  # another name -> the name under which the tensor is listed
    dropped: tuple[str, ...] = ()  # by every name: left out of the file

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].detach().cpu()


def open_checkpoint(
    source: str | os.PathLike[str] | Mapping[str, Tensor],  # a file, a folder, or a state dict
    rules: Sequence[Rule] = (),
    most: int | None = None,  # tensors
) -> Checkpoint:
    """Floating-point tensors of at least two dimensions are shared, unless a rule decides otherwise: the first match.

    A path may have any format of `readers.source`. Tensors of equal bytes are tied, and so are those that
    `safetensors.torch.save_model` has left out as tied.
    """
    if not isinstance(source, Mapping):
        source = open_tensors(source)
    _require_at_most(most, source)
    if isinstance(source, LazyTensors):
        return _checkpoint(source, source.metadata, rules)
    if unnamed := [name for name in source if not isinstance(name, str)]:
        raise ModelError(f"expected a state dict with texts as names, got {unnamed[0]!r} as one")
    wrong = [name for name, value in source.items() if not isinstance(value, Tensor)]
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
    return Checkpoint(tensors, {name: kinds[name] for name in left}, tuple(shared), rest, tied, dropped)


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


def save_shards(
    path: Path, kinds: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]], most: int
) -> list[Path]:
    """Write tensors that come one after another, in files of at most so many bytes, and an index, as Hugging Face does.

    If all fit into one file, it has the given name. A tensor that is larger by itself has a file of its own. Only the
    tensors of one file are in memory at a time. All files get their names at the end, and then those of an earlier
    checkpoint of the same name are removed. So the folder never has the index of one checkpoint and shards of another.
    """
    sizes: list[list[int]] = [[]]  # of the tensors, by file
    for kind in kinds.values():
        if sizes[-1] and sum(sizes[-1]) + kind.nbytes > most:
            sizes.append([])
        sizes[-1].append(kind.nbytes)
    n = len(sizes)
    files = [path.with_name(f"{path.stem}-{k + 1:05}-of-{n:05}{path.suffix}") for k in range(n)] if n > 1 else [path]
    where: dict[str, str] = {}
    following = iter(tensors)
    earlier = [file for file in saved_files(path) if file not in files]
    with written_together() as out:
        if n > 1:  # without an index, nobody takes some of the old and some of the new for a checkpoint
            out.remove(index_of(path))
        for file, own in zip(files, sizes, strict=True):
            state: dict[str, Tensor] = {}
            seen = set[int]()
            for name, tensor in itertools.islice(following, len(own)):
                same = tensor.contiguous()
                state[name] = same.clone() if id(same) in seen else same  # safetensors refuses a tensor of two names
                seen.add(id(same))
            out.write(file, safetensors.torch.save(state, {"format": "pt"}))
            where |= dict.fromkeys(state, file.name)
        if n > 1:
            index = {"metadata": {"total_size": sum(map(sum, sizes))}, "weight_map": where}
            out.write(index_of(path), json.dumps(index, indent=2).encode())
        for file in earlier:
            if n == 1 or file != index_of(path):
                out.remove(file)
    return files


def saved_files(path: Path) -> list[Path]:
    """The files of this name that `save_shards` has written, or another program: one file, or an index and shards."""
    shard = re.compile(re.escape(path.stem) + r"-\d{5}-of-\d{5}" + re.escape(path.suffix))
    there = [file for file in (path, index_of(path)) if kind_of(file)]
    with contextlib.suppress(OSError):  # whoever writes there says what is wrong
        there += sorted(file for file in path.parent.iterdir() if shard.fullmatch(file.name))
    return there


def index_of(path: Path) -> Path:
    """The index of the shards of a file of this name."""
    return path.with_name(f"{path.name}{INDEX}")


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a file or folder of any format that can be read."""
    if is_lazy(path):
        return dict(open_tensors(path))
    if is_torch_file(path):
        return load_torch_file(path)
    data = read_bytes(path)
    try:
        return safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise no_safetensors(path, error) from None
