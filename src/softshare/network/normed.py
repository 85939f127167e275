"""Tensors from which a module computes its weight: `weight_norm`, `spectral_norm` and other parametrizations."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

# What each divides by its norm. Where that becomes 0 the weight is NaN.
_HOOKS = {"WeightNorm": "_v", "SpectralNorm": "_orig"}  # of torch.nn.utils, by the end of the name
_LISTS = {"_WeightNorm": "original1", "_SpectralNorm": "original"}  # of torch.nn.utils.parametrizations, by the name


def divides_by_norm(module: nn.Module, name: str) -> bool:
    """Whether a tensor of the module is divided by its norm, so that it may not become 0."""
    if isinstance(module, ParametrizationList):
        return any(_LISTS.get(type(step).__name__) == name for step in module)
    return any(name == f"{hook}{_HOOKS[kind]}" for kind, hook in _hooks(module))


def is_computed(module: nn.Module, name: str) -> bool:
    """Whether the weight is computed from this tensor, by a function that may give nothing useful near 0."""
    return isinstance(module, ParametrizationList) or any(name.startswith(f"{hook}_") for _, hook in _hooks(module))


def _hooks(module: nn.Module) -> list[tuple[str, str]]:
    """The kind of each norm that computes a weight before every forward pass, and the name of that weight."""
    hooks = [(type(hook).__name__, hook) for hook in module._forward_pre_hooks.values()]
    return [(kind, str(hook.name)) for kind, hook in hooks if kind in _HOOKS]  # type: ignore[attr-defined]
