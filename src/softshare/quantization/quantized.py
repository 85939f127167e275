"""Quantized weights: indices into codebooks, and the tensors that are not shared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softshare.distributed.group import Group, shared_out
from softshare.errors import ModelError
from softshare.prior.kernels import index_dtype as index_dtype  # files use the same one
from softshare.quantization.scales import factors

_CHUNK = 1 << 20  # weights whose narrow indices are widened at a time


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """One shared tensor as indices into a codebook. `codebook[0]` is 0.0, so a weight of index 0 is pruned."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype  # what it decodes to
    # (numel,) on the CPU, each in [0, len(codebook)), of the dtype `index_dtype(len(codebook))`. On meta if another
    # process holds them.
    indices: Tensor
    codebook: Tensor  # (K,), float32 on the CPU, finite, ordered by magnitude from 0.0
    row_scales: Tensor | None = None  # (rows,) int8 exponents (see `scales`), for each entry of the first dimension
    column_scales: Tensor | None = None  # (numel / rows,) int8

    @property
    def n_nonzero(self) -> int:
        return int(torch.count_nonzero(self.indices))

    def counts(self) -> Tensor:
        """The number of weights that have each value of the codebook, `(K,)`."""
        counts = torch.zeros(len(self.codebook), dtype=torch.int64)
        for part in self.indices.split(_CHUNK):
            counts += part.long().bincount(minlength=len(counts))
        return counts

    def dense(self) -> Tensor:
        if self.row_scales is not None or self.column_scales is not None:
            return self._scaled()
        values, out = self.codebook.to(self.dtype), torch.empty(self.indices.numel(), dtype=self.dtype)
        for part, target in zip(self.indices.split(_CHUNK), out.split(_CHUNK), strict=True):
            torch.index_select(values, 0, part.int(), out=target)
        return out.reshape(self.shape)

    def _scaled(self) -> Tensor:
        """The product of value and factor is rounded to float32, and then to the tensor's dtype."""
        n_rows, n_columns = self.shape[0], math.prod(self.shape[1:])
        out = torch.empty(n_rows, n_columns, dtype=self.dtype)
        at_a_time = max(1, _CHUNK // max(1, n_columns))
        for start in range(0, n_rows, at_a_time):
            index = self.indices.reshape(n_rows, n_columns)[start : start + at_a_time]
            rows = None if self.row_scales is None else self.row_scales[start : start + at_a_time]
            scale = factors(rows, self.column_scales, (len(index), n_columns))
            out[start : start + at_a_time] = (self.codebook[index.int()] * scale).to(self.dtype)
        return out.reshape(self.shape)


def _sent(values: Tensor, group: Group, owner: int) -> Tensor:
    return group.send_(torch.empty_like(values, device="cpu") if values.is_meta else values, owner)


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """All that a file holds: the quantized shared tensors, the other tensors unchanged, and names of tied tensors."""

    shared: tuple[QuantizedTensor, ...]
    rest: Mapping[str, Tensor]  # it may read a tensor each time that it is asked for one
    tied: dict[str, str]  # second name of a tied tensor -> the name under which it is stored
    order: tuple[str, ...] = ()  # names of shared and rest, in the network's order; by default, shared before rest
    dropped: tuple[str, ...] = ()  # tensors of the network that are left out; a decoded file does not know them
    base: bytes = b""  # digest of the checkpoint that the shared tensors are differences from, if they are
    alone: tuple[str, ...] = ()  # shared tensors that are no differences all the same

    @property
    def tensors(self) -> dict[str, QuantizedTensor | Tensor]:
        """Every stored tensor by its name, in order."""
        return dict(self.items())

    def items(self) -> Iterator[tuple[str, QuantizedTensor | Tensor]]:
        """Every stored tensor with its name, in order, one by one."""
        shared = {t.name: t for t in self.shared}
        for name in self.order or (*shared, *self.rest):
            yield name, shared[name] if name in shared else self.rest[name]

    def owners(self, n: int) -> list[int]:
        """Which of n processes holds, encodes or decodes each tensor, in order."""
        return shared_out([math.prod(t.shape) for t in self.tensors.values()], n)

    def gathered(self, group: Group) -> QuantizedWeights:
        """The same weights, all of them on each process."""
        if group.size == 1:
            return self
        owners = dict(zip(self.tensors, self.owners(group.size), strict=True))
        shared = (replace(t, indices=_sent(t.indices, group, owners[t.name])) for t in self.shared)
        rest = {name: _sent(t, group, owners[name]) for name, t in self.rest.items()}
        return replace(self, shared=tuple(shared), rest=rest)

    @property
    def n_shared(self) -> int:
        return sum(t.indices.numel() for t in self.shared)

    @property
    def n_nonzero(self) -> int:
        return sum(t.n_nonzero for t in self.shared)

    @property
    def n_components(self) -> int:
        """The number of values in all different codebooks, zero included."""
        return sum(len(codebook) for codebook in {tuple(t.codebook.tolist()) for t in self.shared})

    def state_dict(self) -> dict[str, Tensor]:
        self.require_whole()
        out = {name: t.clone() if isinstance(t, Tensor) else t.dense() for name, t in self.tensors.items()}
        return out | {alias: out[name] for alias, name in self.tied.items()}

    def require_whole(self) -> None:
        """Raise if these are differences, which are no weights by themselves."""
        if self.base:
            raise ModelError("these are differences from a base; softshare.load(path, base=...) puts both together")

    def __repr__(self) -> str:
        return (
            f"QuantizedWeights({len(self.shared)} shared tensors, {self.n_nonzero:,} of {self.n_shared:,} weights "
            f"non-zero, {self.n_components} components; {len(self.rest)} unchanged tensors)"
        )
