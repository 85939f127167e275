"""Unread: units whose output no layer reads, with all that only they have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from softshare.network.groups import Group
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.symmetries import cleared


def clear_unread_(
    tensors: Mapping[str, Tensor],  # of all slices; values, or indices where 0 is the value 0
    groups: Sequence[Group],
) -> list[Tensor]:  # (units,) bool, one for each group
    """Zero all that a unit has if nothing reads it. Returns which units these are.

    A unit that goes may leave others unread, so this repeats until nothing changes.
    """
    dead = [torch.zeros(group.n_units, dtype=torch.bool) for group in groups]
    changed = True
    while changed:
        changed = False
        for group, gone in zip(groups, dead, strict=True):
            unread = ~_read(tensors, group)
            if (unread & ~gone).any():
                gone |= unread
                changed = True
                for s in group.slices:  # what a unit without readers computes is of no use
                    own = s.of(tensors[s.name], group.n_units)
                    own.index_fill_(s.dim + 1, unread.nonzero()[:, 0].to(own.device), cleared(s.name))
    return dead


def _read(tensors: Mapping[str, Tensor], group: Group) -> Tensor:  # (units,), bool
    read = torch.zeros(group.n_units, dtype=torch.bool)
    for s in group.slices:
        if s.read:
            own = s.of(tensors[s.name], group.n_units)
            read |= (own != 0).movedim(s.dim + 1, 0).flatten(1).any(1).cpu()
    return read


def without_unread(quantized: QuantizedWeights, groups: Sequence[Group]) -> tuple[QuantizedWeights, int, int]:
    """The network without the weights of units that nothing reads, the number of those units, and of all units.

    Groups with a tensor that the file leaves out stay as they are.
    """
    tensors = {t.name: t.indices.clone().reshape(t.shape) for t in quantized.shared}
    tensors |= {name: t.clone() for name, t in quantized.rest.items()}
    tensors |= {alias: tensors[name] for alias, name in quantized.tied.items()}
    whole = [group for group in groups if all(s.name in tensors for s in group.slices)]
    dead = clear_unread_(tensors, whole)
    shared = tuple(dataclasses.replace(t, indices=tensors[t.name].flatten()) for t in quantized.shared)
    rest = {name: tensors[name] for name in quantized.rest}
    n_dead = sum(int(gone.sum()) for gone in dead)
    if not n_dead:
        return quantized, 0, sum(group.n_units for group in whole)
    bare = dataclasses.replace(quantized, shared=shared, rest=rest)
    return bare, n_dead, sum(group.n_units for group in whole)
