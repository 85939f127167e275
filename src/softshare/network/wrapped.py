"""Networks inside wrappers, and copies of networks that `copy.deepcopy` refuses."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from softshare.errors import ModelError

PREFIXES = ("module.", "_orig_mod.")  # of DataParallel and its like, and of torch.compile
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


def without_prefix(state: Mapping[str, T], known: Mapping[str, Any]) -> Mapping[str, T]:
    """The state with a wrapper's prefix taken off, if every name has it and the network's own names do not."""
    for prefix in PREFIXES:
        if state and all(name.startswith(prefix) for name in state) and not any(n.startswith(prefix) for n in known):
            return without_prefix({name.removeprefix(prefix): value for name, value in state.items()}, known)
    return state


def copied(model: nn.Module) -> nn.Module:
    """A deep copy, also of networks with old-style `weight_norm`, `spectral_norm` or `prune`.

    These keep computed tensors as attributes, which torch refuses to copy.
    """
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
    """Raise for tensors that cannot be stored: lazy, sparse, quantized, on the meta device."""
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
        elif tensor.layout != torch.strided:
            problems.append(f"{name} is {tensor.layout}; make it dense first, by .to_dense()")
        elif tensor.is_quantized:
            problems.append(f"{name} is a quantized tensor ({tensor.dtype}); expected the network before quantizing")
    if problems:
        raise ModelError("tensors that softshare cannot compress:\n  " + "\n  ".join(problems))
