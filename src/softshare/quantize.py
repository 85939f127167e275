"""Quantize: every shared weight takes the mean of its most responsible component (paper, algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from softshare.kernels import index_dtype as index_dtype  # also the files' own
from softshare.prior import Mixture
from softshare.weights import SharedTensor, WeightView

_CHUNK = 1 << 20  # weights at a time, where narrow indices must be widened


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """One shared tensor as indices into a codebook. `codebook[0]` is 0.0, and index 0 is a pruned weight."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype  # what it decodes to
    indices: Tensor  # (numel,) on the CPU, each in [0, len(codebook)), of the dtype `index_dtype(len(codebook))`
    codebook: Tensor  # (K,), float32 on the CPU, finite, ordered by magnitude from 0.0

    @property
    def n_nonzero(self) -> int:
        return int(torch.count_nonzero(self.indices))

    def counts(self) -> Tensor:
        """How many weights have each value of the codebook, `(K,)`."""
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
    """All that a file holds: the shared tensors quantized, the rest as it is, and further names of tied tensors."""

    shared: tuple[QuantizedTensor, ...]
    rest: dict[str, Tensor]
    tied: dict[str, str]  # second name of a tied tensor -> the name under which it is stored
    order: tuple[str, ...] = ()  # names of shared and rest as the network has them; by default, shared before rest
    unordered: QuantizedWeights | None = None  # the same with units where the network has them, if they are elsewhere

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
        """Values of all different codebooks, zero included."""
        return sum(len(codebook) for codebook in {tuple(t.codebook.tolist()) for t in self.shared})

    def state_dict(self) -> dict[str, Tensor]:
        out = {name: t.clone() if isinstance(t, Tensor) else t.dense() for name, t in self.tensors.items()}
        return out | {alias: out[name] for alias, name in self.tied.items()}

    def __repr__(self) -> str:
        return (
            f"QuantizedWeights({len(self.shared)} shared tensors, {self.n_nonzero:,} of {self.n_shared:,} weights "
            f"non-zero, {self.n_components} components; {len(self.rest)} tensors as they are)"
        )


def quantize(
    view: WeightView,
    mixtures: Mapping[str, Mixture],  # of each shared tensor; several may have the same one
    values: Mapping[str, Tensor] | None = None,  # of its mixture's components, (J + 1,); by default their means
) -> QuantizedWeights:
    """Assign every shared weight to its most responsible component, under the prior's own responsibilities."""
    groups: dict[int, list[SharedTensor]] = {}
    for s in view.shared:
        groups.setdefault(id(mixtures[s.name]), []).append(s)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for group in groups.values():
        name = group[0].name
        own = values[name] if values else mixtures[name].mean
        found |= zip((s.name for s in group), _quantize(group, mixtures[name], own.detach().float()), strict=True)
    return assemble(view, found)


def _quantize(shared: Sequence[SharedTensor], mixture: Mixture, values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The tensors of one mixture, with one codebook: the values in use; one of exactly 0 is the zero component's."""
    assigned = [mixture.assign(s.tensor).to(index_dtype(len(values))) for s in shared]
    used = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    for components in assigned:
        used[components.unique().long()] = True
    codebook, index_of = order_values(torch.where(used, values, 0.0))  # an unused one is never looked up
    index_of = index_of.to(index_dtype(len(codebook)))
    codebook = codebook.cpu()
    return [(index_of[a.long()].cpu(), codebook) for a in assigned]


def order_values(
    values: Tensor,  # (m,)
) -> tuple[Tensor, Tensor]:  # (K,) and (m,)
    """A codebook of them, each once, by magnitude from 0.0 on; and the index of each."""
    values = F.pad(values, (1, 0)) + 0.0  # no -0.0
    rising, place = values.unique(return_inverse=True)
    order = rising.abs().argsort(stable=True)
    return rising[order], order.argsort()[place[1:]]


def assemble(
    view: WeightView,
    found: Mapping[str, tuple[Tensor, Tensor]],  # indices and codebook of each shared tensor
) -> QuantizedWeights:
    """With the rest as it is now."""
    shared = (QuantizedTensor(s.name, tuple(s.tensor.shape), s.tensor.dtype, *found[s.name]) for s in view.shared)
    rest = {name: t.detach().cpu().clone() for name, t in view.rest.items()}
    return QuantizedWeights(tuple(shared), rest, dict(view.tied), view.order)


def complexity_bits(quantized: QuantizedWeights, mixtures: Mapping[str, Mixture]) -> float:
    """The mixtures' estimate: -log2 of the mixing of each weight's value (components of one mean taken together)."""
    bits = 0.0
    for tensor in quantized.shared:
        mixture = mixtures[tensor.name]
        mean, log_mixing = mixture.mean.detach().float().cpu(), mixture.log_mixing.detach().double().cpu()
        counts = tensor.counts().double()
        same = torch.where(tensor.codebook[:, None] == mean, log_mixing, -torch.inf)
        bits -= float((counts * torch.logsumexp(same, 1))[counts > 0].sum()) / math.log(2)
    return bits
