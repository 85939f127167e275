"""Hold pruned weights at zero while the others train."""

from __future__ import annotations

import torch
from torch import Tensor

from softshare.paper.baselines.layers import Layer
from softshare.train.step import Latent


class Masked(Latent):
    """The optimizer trains the weights themselves; those that are zero now get no gradient and no update."""

    def __init__(self, layers: list[Layer]) -> None:
        self.tensors = [t for layer in layers for t in layer.tensors]
        self.masks: list[Tensor] = [t.detach() != 0 for t in self.tensors]

    def pull_(self) -> None:
        for tensor, mask in zip(self.tensors, self.masks, strict=True):
            if tensor.grad is not None:
                tensor.grad.mul_(mask)

    @torch.no_grad()
    def push_(self) -> None:
        """Zero the pruned weights. Adam would not move them, but another optimizer might."""
        for tensor, mask in zip(self.tensors, self.masks, strict=True):
            tensor.mul_(mask)
