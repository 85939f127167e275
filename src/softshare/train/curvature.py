"""The curvature of the loss by each shared weight, estimated from the gradients of the hard steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from softshare.prior.prior import MixturePrior

DECAY = 0.999  # of the running mean, which remembers about a thousand steps


class Curvature:
    """Estimated curvature of the mean task loss by each shared weight: batch size times mean square of its gradient.

    It is infinite for a weight that is not trained, because nothing is known about it.
    """

    def __init__(self, prior: MixturePrior) -> None:
        self._weights = prior.view.tensors
        self._squares = [torch.zeros_like(w, dtype=torch.float32) for w in self._weights]
        self._share = torch.zeros((), device=prior.means.device)  # of the running means that steps have filled

    @torch.no_grad()
    def note_(self) -> None:
        """Take in the present gradients of the weights. They must be those of the task loss alone."""
        noted = [(s, w.grad.float()) for s, w in zip(self._squares, self._weights, strict=True) if w.grad is not None]
        squares, grads = [s for s, _ in noted], [g for _, g in noted]
        torch._foreach_mul_(self._squares, DECAY)
        if noted:  # torch refuses an empty list
            torch._foreach_addcmul_(squares, grads, grads, 1 - DECAY)
        self._share.mul_(DECAY).add_(1 - DECAY)

    def estimate(self, batch_size: float) -> list[Tensor]:
        return [
            batch_size * s / self._share if w.requires_grad else torch.full_like(s, torch.inf)
            for s, w in zip(self._squares, self._weights, strict=True)
        ]

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {"squares": self._squares, "share": [self._share]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        for own, loaded in zip([*self._squares, self._share], [*state["squares"], *state["share"]], strict=True):
            own.copy_(loaded)
