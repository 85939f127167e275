"""A checkpoint as its differences from another one, the base: a fine-tuned network, or a later one of the same run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor

from softshare.codec.base import Base, differs_from
from softshare.errors import ConfigError, ModelError
from softshare.network.checkpoint import Checkpoint
from softshare.network.readers.lazy import LazyTensors

_CHUNK = 1 << 20  # weights at a time


@dataclass(frozen=True, eq=False)
class Delta:
    base: Base
    differing: set[str] = field(default_factory=set)  # shared tensors that are described by their differences
    alone: set[str] = field(default_factory=set)  # those that could be, but are not: the base is no nearer than zero

    def _split_(self, checkpoint: Checkpoint, name: str) -> None:
        of, tensor = self.base.get(name), checkpoint[name]
        if of is None or not tensor.is_floating_point() or not differs_from(of, tuple(tensor.shape)):
            return
        near = _square(self._difference(name, tensor)) < _square(tensor)
        (self.differing if near else self.alone).add(name)

    def changed(self, checkpoint: Checkpoint) -> Checkpoint:
        """The tensors that are not the base's own, bit for bit. Those that are shared become differences."""
        if checkpoint.dropped:
            raise ConfigError(
                f"base: a reader takes a tensor that the file lacks from the base, so a rule cannot drop "
                f"{checkpoint.dropped[0]}. Leave the rule out"
            )
        known = {*checkpoint.kinds, *checkpoint.tied}
        missing = [name for name in self.base.names if name not in known]
        if missing:
            raise ModelError(
                f"base: it has tensors that the checkpoint lacks ({', '.join(missing[:5])}), so it is no base for it"
            )
        same = {name for name in checkpoint.kinds if self._is_same(checkpoint, name)}
        kept = {name: kind for name, kind in checkpoint.kinds.items() if name not in same}
        shared = tuple(name for name in checkpoint.shared if name in kept)

        def read(name: str) -> Tensor:
            tensor = checkpoint[name]
            return self._difference(name, tensor) if name in self.differing else tensor

        for name in shared:
            self._split_(checkpoint, name)
        kinds = {name: kind.float() if name in self.differing else kind for name, kind in kept.items()}
        return dataclasses.replace(
            checkpoint,
            tensors=LazyTensors(kinds, read),
            kinds=kinds,
            shared=shared,
            rest=tuple(name for name in checkpoint.rest if name in kept),
            tied={alias: name for alias, name in checkpoint.tied.items() if name in kept},
        )

    def _is_same(self, checkpoint: Checkpoint, name: str) -> bool:
        """Under each of its names."""
        names = [name, *(alias for alias, of in checkpoint.tied.items() if of == name)]
        tensor = checkpoint[name]
        return all(of is not None and _equal_bits(tensor, of) for of in map(self.base.get, names))

    def _difference(self, name: str, tensor: Tensor) -> Tensor:
        of = self.base[name]
        wide = torch.promote_types(torch.promote_types(tensor.dtype, of.dtype), torch.float32)
        return (tensor.to(wide) - of.to(wide)).float()


def _square(tensor: Tensor) -> float:
    return sum(float(part.double().square().sum()) for part in tensor.reshape(-1).split(_CHUNK))


def _equal_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    x, y = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(x, y)
