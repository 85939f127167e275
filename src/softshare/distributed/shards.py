"""The part of a tensor that this process holds: all of it, or its shard of a DTensor (FSDP2, tensor parallel)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from softshare.distributed.group import ALONE, Group, world
from softshare.errors import ModelError


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor. There is none before its module is imported, which takes long."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The values that this process holds, in the tensor's own memory and without a history."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()  # type: ignore[attr-defined, no-any-return]


def local_grad(weights: Tensor) -> Tensor | None:
    """The gradient of the values that this process holds."""
    return None if weights.grad is None else local(weights.grad)


def group_of(tensors: Iterable[Tensor]) -> Group:
    """The processes that hold the tensors together. A process that holds all of each is alone.

    Where FSDP2 shards a network that is tensor parallel, some tensors are on all processes, and some on one dimension.
    """
    meshes: list[Any] = []
    for tensor in filter(is_sharded, tensors):
        mesh = tensor.device_mesh  # type: ignore[attr-defined]
        if mesh not in meshes:
            meshes.append(mesh)
    if not meshes:
        return ALONE
    largest = max(meshes, key=lambda mesh: int(mesh.size()))
    ranks = {tuple(_ranks(mesh)) for mesh in meshes}
    if not all(set(_ranks(largest)).issuperset(own) for own in ranks):
        raise ModelError(f"expected all sharded weights on the same processes, got {sorted(ranks)}")
    if largest.size() == 1:
        return ALONE
    if largest.size() == dist.get_world_size():
        return world()
    if largest.ndim > 1:
        raise ModelError(f"expected weights sharded over one dimension, or over all processes, got {largest}")
    return Group(largest.get_group())


def _ranks(mesh: Any) -> list[int]:
    return sorted(mesh.mesh.flatten().tolist())


def counts_here(tensor: Tensor, group: Group) -> bool:
    """Whether this process counts the values it holds: others may hold copies of them."""
    if group.size == 1:
        return True
    if not is_sharded(tensor):
        return group.is_first
    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    if any(p.is_partial() for p in placements):
        raise ModelError(f"expected weights that are sharded or replicated, got {placements}")
    if group.first_rank not in _ranks(mesh):  # other processes have the same shards of a tensor on one dimension
        return False
    return all(mesh.get_local_rank(d) == 0 for d, p in enumerate(placements) if p.is_replicate())


def spans(tensor: Tensor) -> list[range]:
    """The indices that this process holds, along each dimension of the whole tensor."""
    if not is_sharded(tensor):
        return [range(size) for size in tensor.shape]
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    shape, start = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    return [range(first, first + size) for first, size in zip(start, shape, strict=True)]


def shard_of(whole: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that this process holds of `like`: a view."""
    return narrowed(whole, spans(like))


def narrowed(whole: Tensor, held: Sequence[range]) -> Tensor:
    """The part with these indices along each dimension: a view."""
    for dim, span in enumerate(held):
        whole = whole.narrow(dim, min(span.start, whole.shape[dim]), len(span))
    return whole


def has_some_rows(tensor: Tensor) -> bool:
    """Whether its first dimension is shared out. The answer is the same on each process."""
    return is_sharded(tensor) and any(p.is_shard(0) for p in tensor.placements)  # type: ignore[attr-defined]


def flat_places(held: Sequence[range], shape: Sequence[int]) -> Tensor:  # int64, in the shape of what is held
    """Where the indices that are held of each dimension are in the whole tensor, flattened."""
    places = torch.zeros([len(span) for span in held], dtype=torch.int64)
    step = 1
    for dim in reversed(range(len(held))):
        along = torch.arange(held[dim].start, held[dim].stop) * step
        places += along.view([-1 if d == dim else 1 for d in range(len(held))])
        step *= shape[dim]
    return places


@torch.no_grad()
def whole(tensor: Tensor, group: Group, owner: int | None = None) -> Tensor:
    """The whole tensor on the CPU: on each process, or on the owner alone. The others then have it on meta."""
    return assembled(local(tensor).detach(), tensor, group, owner)


@torch.no_grad()
def assembled(
    values: Tensor,  # of this process, as many as it holds of `like`
    like: Tensor,
    group: Group,
    owner: int | None = None,
) -> Tensor:
    """The whole tensor of values that are sharded as `like` is; on the CPU, as `whole`."""
    if group.size == 1 or not is_sharded(like):
        return values.cpu() if owner in (None, group.rank) else values.to("meta")
    kind = _SENT.get(values.dtype, values.dtype)  # gloo does not send 16-bit whole numbers
    full = torch.zeros(like.shape, dtype=kind, device=values.device)
    if counts_here(like, group):
        shard_of(full, like).copy_(values.reshape([len(span) for span in spans(like)]))
    full = group.sum_(full) if owner is None else group.collect_(full, owner)
    full = full.to(values.dtype)
    return full.cpu() if owner in (None, group.rank) else full.to("meta")


_SENT = {torch.int16: torch.int32, torch.bool: torch.uint8}


@torch.no_grad()
def copy_(target: Tensor, values: Tensor) -> None:
    """Copy a tensor, whole or sharded as the target is, into one that may be sharded."""
    local(target).copy_(local(values) if is_sharded(values) or not is_sharded(target) else shard_of(values, target))


def sharded_as(like: Tensor, values: Tensor) -> Tensor:
    """A new tensor that is sharded as another, of values that may be whole."""
    out = torch.zeros_like(like, dtype=values.dtype)
    copy_(out, values)
    return out


class Sharded:
    """The modules of a network that FSDP2 gathers and shards again, if there are any."""

    def __init__(self, model: nn.Module) -> None:
        module = sys.modules.get("torch.distributed.fsdp")
        kind = getattr(module, "FSDPModule", None)
        self._modules: Sequence[Any] = [m for m in model.modules() if isinstance(m, kind)] if kind else []

    def settle_(self) -> None:
        """Forget gathered weights, because the shards have changed. FSDP2 keeps some after an evaluation."""
        for module in self._modules:
            module.reshard()
