"""Quantize: every shared weight takes the mean of its most responsible component (paper, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from softshare.distributed.group import Group
from softshare.distributed.shards import assembled, local, whole
from softshare.network.weights import SharedTensor, WeightView
from softshare.prior.kernels import index_dtype
from softshare.prior.mixture import Mixture
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights


def quantize(
    view: WeightView,
    mixtures: Mapping[str, Mixture],  # of each shared tensor; several tensors may have the same mixture
    values: Mapping[str, Tensor] | None = None,  # of each mixture's components, (J + 1,); by default their means
) -> QuantizedWeights:
    """Assign every shared weight to its most responsible component, by the prior's own responsibilities.

    If the weights are sharded, each process gets the indices of whole tensors that it owns, by
    `QuantizedWeights.owners`, and has the others on meta.
    """
    groups: dict[int, list[SharedTensor]] = {}
    for s in view.shared:
        groups.setdefault(id(mixtures[s.name]), []).append(s)
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for group in groups.values():
        name = group[0].name
        own = values[name] if values else mixtures[name].mean
        quantized = _quantize(group, mixtures[name], own.detach().float(), view.group)
        found |= zip((s.name for s in group), quantized, strict=True)
    return assemble(view, found)


def _quantize(
    shared: Sequence[SharedTensor], mixture: Mixture, values: Tensor, group: Group
) -> list[tuple[Tensor, Tensor]]:
    """The indices of one mixture's tensors that this process holds, and their one codebook: 0 and the values in use."""
    assigned = [mixture.assign(local(s.tensor)).to(index_dtype(len(values))) for s in shared]
    used = torch.zeros(len(values), dtype=torch.uint8, device=values.device)
    for components in assigned:
        used[components.unique().long()] = 1
    used = group.highest_(used).bool()
    codebook, index_of = order_values(torch.where(used, values, 0.0))  # an unused value is never looked up
    index_of = index_of.to(index_dtype(len(codebook)))
    codebook = codebook.cpu()
    return [(index_of[a.long()].cpu(), codebook) for a in assigned]


def order_values(
    values: Tensor,  # (m,)
) -> tuple[Tensor, Tensor]:  # (K,) and (m,)
    """A codebook with each value once, ordered by magnitude from 0.0, and the index of each value in it."""
    values = F.pad(values, (1, 0)) + 0.0  # no -0.0
    rising, place = values.unique(return_inverse=True)
    order = rising.abs().argsort(stable=True)
    return rising[order], order.argsort()[place[1:]]


def assemble(
    view: WeightView,
    found: Mapping[str, tuple[Tensor, Tensor]],  # indices and codebook of each shared tensor
) -> QuantizedWeights:
    """The quantized weights, with copies of the tensors that are not shared."""
    shared = tuple(QuantizedTensor(s.name, tuple(s.tensor.shape), s.tensor.dtype, *found[s.name]) for s in view.shared)
    quantized = QuantizedWeights(shared, view.rest, dict(view.tied), view.order, tuple(view.dropped))
    group = view.group
    if group.size == 1:
        return replace(quantized, rest={name: local(t).detach().cpu().clone() for name, t in view.rest.items()})
    owners = dict(zip(quantized.tensors, quantized.owners(group.size), strict=True))
    indices = (assembled(t.indices, s.tensor, group, owners[t.name]) for t, s in zip(shared, view.shared, strict=True))
    shared = tuple(replace(t, indices=own.flatten()) for t, own in zip(shared, indices, strict=True))
    rest = {name: whole(t, group, owners[name]).clone() for name, t in view.rest.items()}
    return replace(quantized, shared=shared, rest=rest)
