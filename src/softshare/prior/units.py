"""A prior over whole units, beside the one over weights (paper, section 7: future work).

All weights of a unit choose their component together: a narrow one, which pulls the unit to zero, or a broad one, which
leaves it alone. A unit is a neuron, a channel or an attention head, with its incoming and outgoing weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softshare.network.groups import Group, Slices
from softshare.network.weights import WeightView

# Standard deviations of the weights of a unit, as multiples of the root mean square of their layer before retraining.
NARROW, BROAD = 0.25, 1.0
ZERO_MIXING = 0.9  # share of units that are expected to be removed; with hundreds of weights it hardly counts


@dataclass(frozen=True)
class _Units:
    """The units of a group, by the tensors that the prior is over."""

    n_units: int
    slices: tuple[tuple[int, Slices], ...]  # each with the place of its tensor in the view
    n_weights: int  # of one unit


class UnitPrior(nn.Module):
    """log p(unit) = logsumexp(log pi + sum_i log N(w_i | 0, narrow^2), log(1 - pi) + sum_i log N(w_i | 0, broad^2)).

    A unit of n weights falls to the narrow component if its mean square is below
    (2 log(broad / narrow) + 2 / n log(pi / (1 - pi))) / (1 / narrow^2 - 1 / broad^2).
    A weight between two hidden units counts in both: a product of two experts. The scales are those of the weights when
    the prior is made. Constants are left out.
    """

    def __init__(self, view: WeightView, groups: Sequence[Group]) -> None:
        super().__init__()
        self._weights = view.tensors
        place = {shared.name: k for k, shared in enumerate(view.shared)}
        self._groups = tuple(own for group in groups if (own := _units(group, view, place)))
        self.register_buffer("squared_scales", _squared_scales(view))  # (tensors,)
        self.squared_scales: Tensor

    def neg_log_prior(self) -> Tensor:  # 0-d
        """-log p of all units in nats, differentiable."""
        return torch.stack([self._densities(group, self._squares(group))[0].sum() for group in self._groups]).sum()

    @torch.no_grad()
    def add_gradients_(
        self,
        scale: Tensor,  # 0-d
        grads: Sequence[Tensor],  # of all tensors of the view
    ) -> Tensor:  # 0-d
        """Add `scale` times the gradient of -log p. Returns `scale` times its value."""
        losses = []
        for group in self._groups:
            density, pull = self._densities(group, self._squares(group))
            losses.append(density.sum())
            for k, slices in group.slices:
                w, grad = (slices.of(t, group.n_units) for t in (self._weights[k], grads[k]))
                shape = [-1 if d == slices.dim + 1 else 1 for d in range(w.dim())]
                grad.addcmul_(w, (scale / self.squared_scales[k] * pull).to(w.dtype).view(shape))
        return scale * torch.stack(losses).sum().to(scale.dtype)

    def _squares(self, group: _Units) -> Tensor:  # (units,)
        """The sum of squares of each unit, relative to the scales."""
        total = self.squared_scales.new_zeros(group.n_units)
        for k, slices in group.slices:
            w = slices.of(self._weights[k], group.n_units)
            others = [d for d in range(w.dim()) if d != slices.dim + 1]
            total = total + w.float().square().sum(others) / self.squared_scales[k]
        return total

    @staticmethod
    def _densities(
        group: _Units,
        squares: Tensor,  # (units,)
    ) -> tuple[Tensor, Tensor]:  # (units,) each
        """-log p of each unit, and the factor of its weights in the gradient: twice the derivative by the squares."""
        of_each = [
            math.log(mixing) - group.n_weights * math.log(std) - squares / (2 * std**2)
            for mixing, std in ((ZERO_MIXING, NARROW), (1 - ZERO_MIXING, BROAD))
        ]
        narrow = torch.sigmoid(of_each[0] - of_each[1])
        return -torch.logaddexp(*of_each), narrow / NARROW**2 + (1 - narrow) / BROAD**2


def _squared_scales(view: WeightView) -> Tensor:  # (tensors,)
    """The mean square of each tensor. A bias has that of the matrix of its layer."""
    largest: dict[str, Tensor] = {}
    for shared, w in zip(view.shared, view.tensors, strict=True):
        layer = shared.name.rpartition(".")[0]
        largest[layer] = max(largest.get(layer, w), w, key=Tensor.numel)
    layers = (largest[shared.name.rpartition(".")[0]] for shared in view.shared)
    squares = torch.stack([w.detach().float().square().mean() for w in layers])
    return torch.where(squares > 0, squares, 1.0)


def _units(group: Group, view: WeightView, place: dict[str, int]) -> _Units | None:
    slices = tuple((place[s.name], s) for s in group.slices if s.name in place)
    n_weights = sum(view.tensors[k].numel() // group.n_units for k, _ in slices)
    return _Units(group.n_units, slices, n_weights) if slices else None
