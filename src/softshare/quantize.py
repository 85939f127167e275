"""Quantize: every shared weight takes the mean of its most responsible component (paper, algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softshare.prior import Mixture
from softshare.weights import WeightView


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """One shared tensor as indices into a codebook. `codebook[0]` is 0.0, and index 0 is a pruned weight."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype  # what it decodes to
    indices: Tensor  # (numel,), int64 on the CPU, each in [0, len(codebook))
    codebook: Tensor  # (K,), float32 on the CPU, distinct, ordered by magnitude from 0.0
    is_conv: bool = False  # appendix A gives convolutions wider relative indices

    @property
    def n_nonzero(self) -> int:
        return int(torch.count_nonzero(self.indices))

    def dense(self) -> Tensor:
        return self.codebook[self.indices].reshape(self.shape).to(self.dtype)


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """All that a file holds: the shared tensors quantized, the rest as it is, and further names of tied tensors."""

    shared: tuple[QuantizedTensor, ...]
    rest: dict[str, Tensor]
    tied: dict[str, str]  # second name of a tied tensor -> the name under which it is stored

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
        out = {t.name: t.dense() for t in self.shared} | {name: t.clone() for name, t in self.rest.items()}
        return out | {alias: out[name] for alias, name in self.tied.items()}

    def __repr__(self) -> str:
        return (
            f"QuantizedWeights({len(self.shared)} shared tensors, {self.n_nonzero:,} of {self.n_shared:,} weights "
            f"non-zero, {self.n_components} components; {len(self.rest)} tensors as they are)"
        )


def quantize(view: WeightView, mixture: Mixture) -> QuantizedWeights:
    """Assign every shared weight to its most responsible component, under the prior's own responsibilities.

    The codebook holds the means that are in use; a mean of exactly 0 is the zero component's.
    """
    mean = mixture.detach().mean.float()
    assigned = [mixture.assign(s.tensor) for s in view.shared]
    used = torch.zeros(len(mean), dtype=torch.bool, device=mean.device)
    for components in assigned:
        used[components] = True
    values = torch.unique(mean[used & (mean != 0)])
    codebook = torch.cat([mean.new_zeros(1), values[values.abs().argsort(stable=True)]])
    index_of = (mean[:, None] == codebook).int().argmax(1)  # component -> index; unused ones are never looked up
    codebook = codebook.cpu()
    shared = tuple(
        QuantizedTensor(s.name, tuple(s.tensor.shape), s.tensor.dtype, index_of[a].cpu(), codebook, s.is_conv)
        for s, a in zip(view.shared, assigned, strict=True)
    )
    rest = {name: t.detach().cpu().clone() for name, t in view.rest.items()}
    return QuantizedWeights(shared, rest, dict(view.tied))
