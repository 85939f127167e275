"""Networks that several processes train: replicated by DDP, or sharded by FSDP2."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from softshare.distributed.group import Group
from softshare.distributed.shards import Sharded, copy_, is_sharded, whole

CONTAINERS = (nn.ModuleList, nn.Sequential)  # each entry with parameters is gathered by itself


def has_shards(model: nn.Module) -> bool:
    return any(is_sharded(p) for p in model.parameters())


def shard_(model: nn.Module) -> nn.Module:
    """Shard the network in place over all processes, one group for each entry of a container, one for the rest."""
    from torch.distributed.fsdp import fully_shard

    entries = [entry for m in model.modules() if isinstance(m, CONTAINERS) for entry in m.children()]
    for module in reversed(entries):  # a module before those that contain it
        if any(True for _ in module.parameters()) and not isinstance(module, CONTAINERS):
            fully_shard(module)
    fully_shard(model)
    return model


def synchronized(model: nn.Module, group: Group) -> nn.Module:
    """What the loss must call so that gradients are means over all processes: the network itself, or DDP around it."""
    if group.size == 1 or has_shards(model):
        return model
    return _Replica(model)


class _Replica(nn.parallel.DistributedDataParallel):
    """DDP that has the network's own attributes too, because a loss may read them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def state_of(module: nn.Module) -> dict[str, Any]:
    """A copy of the state. What is sharded stays sharded."""
    state = module.state_dict()
    if not any(isinstance(v, Tensor) and is_sharded(v) for v in state.values()):
        return copy.deepcopy(state)
    return {name: v.detach().clone() if isinstance(v, Tensor) else copy.deepcopy(v) for name, v in state.items()}


@torch.no_grad()
def restore_(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Give a module the state of `state_of`, or one whose tensors are whole."""
    own = module.state_dict()
    if not any(isinstance(v, Tensor) and is_sharded(v) for v in own.values()):
        module.load_state_dict(state)
        return
    for name, value in own.items():
        if isinstance(value, Tensor):
            copy_(value, state[name])
    Sharded(module).settle_()


def whole_state(state: Any, group: Group) -> Any:
    """A nested state with whole tensors in place of sharded ones: on the first process. Others have those on meta."""
    if isinstance(state, Mapping):
        return {name: whole_state(value, group) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(whole_state(value, group) for value in state)
    return whole(state, group, owner=0) if isinstance(state, Tensor) and is_sharded(state) else state
