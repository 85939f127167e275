"""Cut: the tensors of a network without the units that no layer reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from softshare._util.float64 import in_float64
from softshare._util.rounding import TOLERANCES, coarsest
from softshare.network.groups import Group, find_groups
from softshare.network.wrapped import copied
from softshare.simplify.unread import clear_unread_

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def cut(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy without the units that nothing reads, and messages about what stays. The arguments are those of a call.

    A unit is a neuron, channel or attention head, with all its tensors (see `find_groups`). One that goes may leave
    others unread, which go too. A group keeps one unit at least. The network is run on the arguments before and after.
    Units whose loss changes its outputs, or breaks code that has their number written in it, stay.
    """
    groups, alone = find_groups(model, args, kwargs)
    before = _outputs(model, args, kwargs)
    kept = _kept(model, groups)
    smaller = [(group, keep) for group, keep in zip(groups, kept, strict=True) if len(keep) < group.n_units]
    small = _without(model, smaller)
    if not smaller or _agree(small, args, kwargs, before):
        return small, alone
    stay, small = 0, copied(model)
    for group, keep in smaller:
        smaller_still = _without(small, [(group, keep)])
        if _agree(smaller_still, args, kwargs, before):
            small = smaller_still
        else:
            stay += group.n_units - len(keep)
    return small, (*alone, f"{stay} units stay, though nothing reads them: the network does not run without them")


def _kept(model: nn.Module, groups: Sequence[Group]) -> list[Tensor]:
    """The units of each group that are read, in their order."""
    tensors = {name: t.detach().clone() for name, t in _tensors(model).items()}
    dead = clear_unread_(tensors, groups)
    return [torch.tensor([0]) if gone.all() else (~gone).nonzero()[:, 0] for gone in dead]


def _without(model: nn.Module, smaller: Sequence[tuple[Group, Tensor]]) -> nn.Module:
    """A copy that has only these units of these groups."""
    small = copied(model)
    tensors = _tensors(small)
    new = {name: t.detach() for name, t in tensors.items()}
    for group, keep in smaller:
        for s in group.slices:
            own = s.of(new[s.name], group.n_units)
            new[s.name] = own.index_select(s.dim + 1, keep.to(own.device)).flatten(s.dim, s.dim + 2)
    changed = {id(tensors[name]): t.contiguous() for name, t in new.items() if t.shape != tensors[name].shape}
    parameters = {
        id(t): nn.Parameter(changed[id(t)], t.requires_grad)  # one for all names of a tied tensor
        for t in tensors.values()
        if id(t) in changed and isinstance(t, nn.Parameter)
    }
    for module in small.modules():
        for name, parameter in module._parameters.items():
            module._parameters[name] = parameters.get(id(parameter), parameter)
        for name, buffer in module._buffers.items():
            if id(buffer) in changed:
                module._buffers[name] = changed[id(buffer)]
        _describe_(module)
    return small


def _describe_(module: nn.Module) -> None:
    """Make the sizes that a layer states those of its tensors."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, _CONVOLUTIONS):
        if module.groups == module.in_channels > 1:  # depthwise
            module.groups = len(weight)
        module.out_channels, module.in_channels = weight.shape[0], weight.shape[1] * module.groups
    elif isinstance(module, _TRANSPOSED):
        module.in_channels, module.out_channels = weight.shape[:2]
    elif isinstance(module, _NORMS):
        module.num_features = len(weight)
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = weight.shape


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}


def _outputs(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """In evaluation mode."""
    found = tree_leaves(copied(model).eval()(*args, **kwargs))
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


def _agree(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], before: Sequence[Tensor]) -> bool:
    try:
        after = _outputs(model, args, kwargs)
    except Exception:  # the code of the network may count on its sizes
        return False
    if [t.shape for t in after] != [t.shape for t in before]:
        return False
    allowed = TOLERANCES[coarsest([*_tensors(model).values(), *before])]
    pairs = [(in_float64(a), in_float64(b)) for a, b in zip(after, before, strict=True) if b.numel()]
    return all(bool((a - b).abs().max() <= allowed * b.abs().max()) for a, b in pairs)
