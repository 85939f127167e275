"""Which names of a state dict belong to one tensor, and which tensors share memory in part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from softshare.distributed.shards import is_sharded
from softshare.errors import ModelError


def names_of_each(state: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of each tensor, in the order of the state dict.

    Two names belong to one tensor if their values lie in the same memory. Tensors that overlap in part are refused: a
    file would hold them twice, and loading one would change the other.
    """
    names: dict[Any, list[str]] = {}
    for name, value in state.items():
        names.setdefault(_place(value), []).append(name)
    for aliases in names.values():
        other = next((name for name in aliases if state[name] is not state[aliases[0]]), None)
        if other:  # a copy of the network would untie them
            raise ModelError(f"{aliases[0]} and {other} share memory; tie them by giving both modules one parameter")
    require_apart({aliases[0]: state[aliases[0]] for aliases in names.values()})
    return list(names.values())


def _place(tensor: Tensor) -> Any:
    """What tells one tensor from another: its memory, or the object itself if it has none."""
    if is_lazy(tensor) or tensor.is_meta or tensor.layout != torch.strided or not tensor.numel():
        return id(tensor)
    if is_sharded(tensor):  # a process may hold nothing of it
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def require_apart(tensors: Mapping[str, Tensor]) -> None:
    """Raise if two of the tensors share memory in part, or in another order. Only those over one storage can."""
    storages: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        if not isinstance(place := _place(tensor), int):
            storages.setdefault((place[0], tensor.untyped_storage().data_ptr()), []).append(name)
    for names in storages.values():
        reaching: list[tuple[int, str]] = []  # the ends of earlier spans, and whose they are
        for start, end, second in sorted((*_span(tensors[name]), name) for name in names):
            reaching = [(reach, first) for reach, first in reaching if start < reach]
            for _, first in reaching:
                a, b = tensors[first], tensors[second]
                if _place(a) != _place(b) and _overlap(a, b):
                    raise ModelError(
                        f"{first} and {second} share memory, but are not the same tensor (one is a view of the other); "
                        "clone one of them, or keep only one in the state dict"
                    )
            reaching.append((end, second))


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors over one storage have an element in common. Columns of a matrix interleave without one."""
    places = torch.arange(a.untyped_storage().nbytes() // a.element_size())
    own, other = (places.as_strided(t.shape, t.stride(), t.storage_offset()).flatten() for t in (a, b))
    return a.dtype != b.dtype or bool(torch.isin(own, other).any())


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first byte and the end of what a tensor reaches."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def tied_names(names: Sequence[Sequence[str]]) -> dict[str, str]:
    return {alias: aliases[0] for aliases in names for alias in aliases[1:]}
