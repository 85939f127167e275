"""Networks inside wrappers, and copies of networks that `copy.deepcopy` refuses."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from softshare.errors import ModelError
from softshare.network.memory import names_of_each

WRAPPERS = ("module", "_orig_mod")  # what DataParallel and its like, and torch.compile, put into names
T = TypeVar("T")


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside `torch.compile`, `DataParallel` and `DistributedDataParallel`, whose names have no prefix."""
    while True:
        if isinstance(inner := model.__dict__.get("_modules", {}).get("_orig_mod"), nn.Module):
            model = inner
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model


def under_names(state: Mapping[str, T], known: Collection[str]) -> Mapping[str, T]:
    """The state under the network's own names, where the two differ only by wrappers, of the whole or of a part.

    A name that fits no name of the network stays as it is. So do all names if without wrappers two of them are one.
    """
    own = {_bare(name): name for name in known}
    found = {name if name in known else own.get(_bare(name), name): value for name, value in state.items()}
    return found if len(own) == len(known) and len(found) == len(state) else state


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def copied(model: nn.Module) -> nn.Module:
    """A deep copy, also of networks with old-style `weight_norm`, `spectral_norm` or `prune`.

    These keep computed tensors as attributes, which torch refuses to copy. A network is refused if its tensors share
    memory without being tied, because a copy of each would be a tensor by itself.
    """
    state = {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    require_ordinary(state)
    names_of_each(state)
    with _detached(model):
        try:
            return copy.deepcopy(model)
        except (RuntimeError, TypeError) as problem:
            raise ModelError(
                f"the network cannot be copied ({problem}); softshare retrains a copy, so copy.deepcopy must work on it"
            ) from problem


@contextmanager
def _detached(model: nn.Module) -> Any:
    """Within, no attribute of a module is a tensor with a history; the next forward pass computes them again."""
    found = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and value.grad_fn is not None
    ]
    try:
        for module, name, value in found:
            vars(module)[name] = value.detach()
        yield
    finally:
        for module, name, value in found:
            vars(module)[name] = value


def require_ordinary(state: Mapping[str, Tensor]) -> None:
    """Raise for tensors that cannot be stored or loaded: lazy, sparse, nested, quantized, expanded, or on meta."""
    lazy = [name for name, tensor in state.items() if is_lazy(tensor)]
    if lazy:
        raise ModelError(
            f"expected an initialized model, but these tensors are lazy: {', '.join(lazy)}. Run one batch through the "
            "model first"
        )
    problems = []
    for name, tensor in state.items():
        if tensor.is_meta:
            problems.append(f"{name} is on the meta device; give it memory first, as by model.to_empty(device='cpu')")
        elif tensor.is_nested:
            problems.append(f"{name} is a nested tensor; make it dense first, by .to_padded_tensor(0)")
        elif tensor.layout != torch.strided:
            problems.append(f"{name} is {tensor.layout}; make it dense first, by .to_dense()")
        elif tensor.is_quantized:
            problems.append(f"{name} is a quantized tensor ({tensor.dtype}); expected the network before quantizing")
        elif any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            problems.append(f"{name} has one value in many places (it is expanded); copy it first, by .contiguous()")
    if problems:
        raise ModelError("tensors that softshare cannot compress:\n  " + "\n  ".join(problems))
