"""Quantized weights: indices into codebooks, and the tensors that are not shared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softshare.prior.kernels import index_dtype as index_dtype  # files use the same one

_CHUNK = 1 << 20  # weights whose narrow indices are widened at a time


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """One shared tensor as indices into a codebook. `codebook[0]` is 0.0, so a weight of index 0 is pruned."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype  # what it decodes to
    indices: Tensor  # (numel,) on the CPU, each in [0, len(codebook)), of the dtype `index_dtype(len(codebook))`
    codebook: Tensor  # (K,), float32 on the CPU, finite, ordered by magnitude from 0.0

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
        values, out = self.codebook.to(self.dtype), torch.empty(self.indices.numel(), dtype=self.dtype)
        for part, target in zip(self.indices.split(_CHUNK), out.split(_CHUNK), strict=True):
            torch.index_select(values, 0, part.int(), out=target)
        return out.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """All that a file holds: the quantized shared tensors, the other tensors unchanged, and names of tied tensors."""

    shared: tuple[QuantizedTensor, ...]
    rest: dict[str, Tensor]
    tied: dict[str, str]  # second name of a tied tensor -> the name under which it is stored
    order: tuple[str, ...] = ()  # names of shared and rest, in the network's order; by default, shared before rest
    dropped: tuple[str, ...] = ()  # tensors of the network that are left out; a decoded file does not know them

    @property
    def tensors(self) -> dict[str, QuantizedTensor | Tensor]:
        """Every stored tensor by its name, in order."""
        named = {t.name: t for t in self.shared} | self.rest
        return {name: named[name] for name in self.order} if self.order else named

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
        out = {name: t.clone() if isinstance(t, Tensor) else t.dense() for name, t in self.tensors.items()}
        return out | {alias: out[name] for alias, name in self.tied.items()}

    def __repr__(self) -> str:
        return (
            f"QuantizedWeights({len(self.shared)} shared tensors, {self.n_nonzero:,} of {self.n_shared:,} weights "
            f"non-zero, {self.n_components} components; {len(self.rest)} unchanged tensors)"
        )
