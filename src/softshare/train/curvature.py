"""The curvature of the loss by each shared weight, estimated from the gradients of the hard steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from softshare.distributed.shards import assembled, shard_of
from softshare.prior.prior import MixturePrior

DECAY = 0.999  # of the running mean, which remembers about a thousand steps


class Curvature:
    """Estimated curvature of the mean task loss by each shared weight: batch size times mean square of its gradient.

    Of sharded weights a process has those that it holds. The gradient is that of the batches of all processes.
    It is infinite for a weight that is not trained, because nothing is known about it.
    """

    def __init__(self, prior: MixturePrior) -> None:
        self._view = prior.view
        self._squares = [torch.zeros_like(w, dtype=torch.float32) for w in self._view.locals]
        self._share = torch.zeros((), device=prior.means.device)  # of the running means that steps have filled

    @torch.no_grad()
    def note_(self) -> None:
        """Take in the present gradients of the weights. They must be those of the task loss alone."""
        held = zip(self._squares, self._view.local_grads, strict=True)
        noted = [(square, grad.float()) for square, grad in held if grad is not None]
        squares, grads = [s for s, _ in noted], [g for _, g in noted]
        torch._foreach_mul_(self._squares, DECAY)
        if noted:  # torch refuses an empty list
            torch._foreach_addcmul_(squares, grads, grads, 1 - DECAY)
        self._share.mul_(DECAY).add_(1 - DECAY)

    def estimate(self, batch_size: float) -> list[Tensor]:
        return [
            batch_size * s / self._share if w.requires_grad else torch.full_like(s, torch.inf)
            for s, w in zip(self._squares, self._view.tensors, strict=True)
        ]

    def state_dict(self) -> dict[str, list[Tensor]]:
        """If the weights are sharded, the first process has the whole squares."""
        held = zip(self._squares, self._view.tensors, strict=True)
        if self._view.group.size > 1:
            return {"squares": [assembled(s, w, self._view.group, 0) for s, w in held], "share": [self._share]}
        return {"squares": self._squares, "share": [self._share]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        self._share.copy_(state["share"][0])
        for own, w, loaded in zip(self._squares, self._view.tensors, state["squares"], strict=True):
            own.copy_(shard_of(loaded, w))
