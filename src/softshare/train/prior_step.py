"""The prior's part of a training step: what comes before the network runs, and what follows its backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softshare.prior.kernels.sweep import on
from softshare.prior.prior import MixturePrior
from softshare.train.curvature import Curvature
from softshare.train.hard import add_mean_gradients_, quantize_network_, restore_
from softshare.train.replayed import Replayed, silenced

SMALL = 2**24  # weights up to which a second gradient may be kept; a larger network's step is not bound by launches


class PriorStep:
    """Quantizes the network for a hard step; adds the prior's gradients, and the means' own, to those of the task."""

    def __init__(self, prior: MixturePrior, curvature: Curvature | None) -> None:
        self._prior, self._curvature = prior, curvature
        self._scale = torch.zeros_like(prior.means[0, 0])  # tau / N
        self._hard = False
        self._assigned: list[Tensor] = []  # the component of each weight in a hard step, and the weights behind
        self._kept: list[Tensor] = []

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that are not the network's."""
        return []

    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the mixture that the network's optimizer must train."""
        return self._prior.param_groups()

    def set(self, scale: float, decay: float) -> None:
        """Set tau / N, and the factor of the learning rates that are not the network optimizer's."""
        self._scale.fill_(scale)

    def before_(self, hard: bool) -> None:
        """Called before the network runs. The gradients of all parameters must be None."""
        self._prior.count_step()
        self._hard = hard
        self._assigned, self._kept = self._quantize() if hard else ([], [])

    def restore_(self) -> None:
        """Give the network its weights back. `after_` does this itself; call it if the network fails."""
        restore_(self._prior, self._kept)
        self._kept = []

    def after_(self) -> Tensor:  # 0-d
        """Called once the weights have the task's gradients. Returns the prior's loss."""
        if self._hard:
            self.restore_()
            add_mean_gradients_(self._prior, self._assigned)
            self._assigned = []
            if self._curvature:
                self._curvature.note_()
        return self._add_prior()

    def _quantize(self) -> tuple[list[Tensor], list[Tensor]]:
        return quantize_network_(self._prior)

    def _add_prior(self) -> Tensor:
        return self._prior.add_scaled_gradients_(self._scale)


class ReplayedPriorStep(PriorStep):
    """The same in two launches: each half is replayed from a CUDA graph. It trains the mixture too.

    The network's gradients move from step to step, but a graph needs them in one place. They are copied there.
    """

    def __init__(self, prior: MixturePrior, curvature: Curvature | None) -> None:
        super().__init__(prior, curvature)
        self._weights = prior.view.tensors
        self._grads = [torch.zeros_like(w) for w in self._weights]
        groups = prior.param_groups()
        self._base_rates = [float(group["lr"]) for group in groups]
        self._rates = torch.tensor(self._base_rates, device=prior.means.device)
        rated = [{**group, "lr": rate} for group, rate in zip(groups, self._rates, strict=True)]
        self._optimizer = silenced(torch.optim.Adam(rated, fused=True, capturable=True))
        self._stream = torch.cuda.Stream(prior.means.device)
        self._way: object = None

    @staticmethod
    def fits(prior: MixturePrior) -> bool:
        """Whether this is faster than single launches, and possible: a graph would draw the same sample each time.

        Messages between processes are not replayed.
        """
        small = prior.view.n_weights <= SMALL and prior.config.sample_one_in == 1
        return small and prior.means.device.type == "cuda" and prior.view.group.size == 1

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self._optimizer]

    def param_groups(self) -> list[dict[str, Any]]:
        return []

    def set(self, scale: float, decay: float) -> None:
        super().set(scale, decay)
        self._rates.copy_(torch.tensor([base * decay for base in self._base_rates]), non_blocking=True)

    def before_(self, hard: bool) -> None:
        super().before_(hard)
        if hard:
            torch.autograd.graph.increment_version(self._weights)  # a replay writes past autograd

    def _quantize(self) -> tuple[list[Tensor], list[Tensor]]:
        self._renew()
        with on(self._rates.device):
            return self._replayed_quantize()

    def after_(self) -> Tensor:
        moved = self._renew() and self._hard  # the task has moved its weights since they were quantized
        with on(self._rates.device):
            self._hold_gradients()
            return self._after() if moved else self._replayed_after()

    def _renew(self) -> bool:
        """Drop the graphs if they do not do what this step must do, or not to the same tensors. Returns whether so."""
        tensors = (*self._weights, *self._prior.parameters())
        way = (self._hard, list(self._prior.reaches), [(t.data_ptr(), t.requires_grad) for t in tensors])
        if way == self._way:
            return False
        self._way = way
        self._replayed_quantize = Replayed(super()._quantize, self._stream)
        self._replayed_after = Replayed(self._after, self._stream)
        return True

    def _hold_gradients(self) -> None:
        """Copy the gradients to where the graph reads them, and make those the weights' own."""
        copied = [(own, w.grad) for own, w in zip(self._grads, self._weights, strict=True) if w.grad is not None]
        missing = [own for own, w in zip(self._grads, self._weights, strict=True) if w.grad is None]
        if copied:
            torch._foreach_copy_([own for own, _ in copied], [grad for _, grad in copied])
        if missing:
            torch._foreach_zero_(missing)
        for own, w in zip(self._grads, self._weights, strict=True):
            if w.requires_grad:
                w.grad = own

    def _after(self) -> Tensor:
        self._optimizer.zero_grad()
        loss = super().after_()
        self._optimizer.step()
        return loss

    def _add_prior(self) -> Tensor:
        return self._prior.add_scaled_gradients_(self._scale, self._grads)
