"""Layers: both methods have thresholds and codebooks per layer. A layer is the shared tensors of one module."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softshare.errors import ModelError
from softshare.network.weights import WeightView


@dataclass(frozen=True, eq=False)
class Layer:
    name: str  # of the module
    tensors: tuple[Tensor, ...]  # the live parameters: weights, and biases if they are shared too

    @property
    def is_conv(self) -> bool:
        """As in the codec 'han', a tensor of more than two dimensions belongs to a convolution."""
        return any(t.dim() > 2 for t in self.tensors)

    def flat(self) -> Tensor:  # (n,)
        """A copy of all its weights."""
        return torch.cat([t.detach().reshape(-1) for t in self.tensors])


def layers_of(view: WeightView) -> list[Layer]:
    groups: dict[str, list[Tensor]] = {}
    for s in view.shared:
        if s.tensor.numel():
            groups.setdefault(s.name.rpartition(".")[0], []).append(s.tensor)
    return [Layer(name, tuple(tensors)) for name, tensors in groups.items()]


def require_weights(layers: list[Layer], remedy: str) -> None:
    """Raise `ModelError` if all weights of a network have been pruned."""
    if not any(bool(t.any()) for layer in layers for t in layer.tensors):
        raise ModelError(f"every weight has been pruned ({', '.join(layer.name for layer in layers)}): {remedy}")
