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

from softshare.distributed.group import Group as Processes
from softshare.distributed.shards import counts_here, is_sharded, local, spans
from softshare.network.groups import Group, Slices
from softshare.network.weights import WeightView

# Standard deviations of the weights of a unit, as multiples of the root mean square of their layer before retraining.
NARROW, BROAD = 0.25, 1.0
FLOOR = 2  # units of a group that are alive: with fewer, the prior is as much weaker, and without any it is silent
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
    the prior is made. Constants are left out. A group whose last units would go is spared: its density is weighed by
    the number of its units that are alive, which is the sum of their probabilities to be broad, up to `FLOOR`.
    """

    def __init__(self, view: WeightView, groups: Sequence[Group]) -> None:
        super().__init__()
        self._view = view
        place = {shared.name: k for k, shared in enumerate(view.shared)}
        self._groups = tuple(own for group in groups if (own := _units(group, view, place)))
        self.register_buffer("squared_scales", _squared_scales(view))  # (tensors,)
        self.squared_scales: Tensor

    def neg_log_prior(self) -> Tensor:  # 0-d
        """-log p of all units in nats, differentiable."""
        squares = self._of_each(self._view.group.sum_(self.squares()))
        densities = [self._densities(group, own)[0] for group, own in zip(self._groups, squares, strict=True)]
        return torch.stack([density.sum() for density in densities]).sum()

    def squares(self) -> Tensor:  # (all units,)
        """The sum of squares of each unit, relative to the scales, over the weights that this process counts."""
        return torch.cat([self._squares(group) for group in self._groups])

    @torch.no_grad()
    def add_gradients_(
        self,
        scale: Tensor,  # 0-d
        grads: Sequence[Tensor],  # of all tensors of the view
        squares: Tensor,  # (all units,): those of all processes
    ) -> Tensor:  # 0-d
        """Add `scale` times the gradient of -log p. Returns `scale` times its value."""
        losses = []
        for group, own in zip(self._groups, self._of_each(squares), strict=True):
            density, pull = self._densities(group, own)
            losses.append(density.sum())
            for k, slices in group.slices:
                w, grad, dim, pulls = self._view.tensors[k], grads[k], slices.dim, pull
                if is_sharded(w):
                    w, pulls = local(w), pull[self._units_of(k, slices, group)]
                else:
                    w, grad, dim = slices.of(w, group.n_units), slices.of(grad, group.n_units), dim + 1
                shape = [-1 if d == dim else 1 for d in range(w.dim())]
                grad.addcmul_(w, (scale / self.squared_scales[k] * pulls).to(w.dtype).view(shape))
        return scale * torch.stack(losses).sum().to(scale.dtype)

    def _of_each(self, squares: Tensor) -> tuple[Tensor, ...]:  # (units,) each
        """Those of each group."""
        return tuple(squares.split([group.n_units for group in self._groups]))

    def _squares(self, group: _Units) -> Tensor:  # (units,)
        """Those of one group."""
        total = self.squared_scales.new_zeros(group.n_units)
        for k, slices in group.slices:
            if not self._view.counted[k]:
                continue
            w, dim = self._view.tensors[k], slices.dim
            if is_sharded(w):
                squares = local(w).float().square()
                if others := [d for d in range(w.dim()) if d != dim]:  # without any, `sum` would take all
                    squares = squares.sum(others)
                squares = torch.zeros_like(total).index_add(0, self._units_of(k, slices, group), squares)
            else:
                w = slices.of(w, group.n_units)
                squares = w.float().square().sum([d for d in range(w.dim()) if d != dim + 1])
            total = total + squares / self.squared_scales[k]
        return total

    def _units_of(self, k: int, slices: Slices, group: _Units) -> Tensor:  # int64
        """The unit of each index along the dimension of the units, of those that this process holds of the tensor."""
        held = spans(self._view.tensors[k])[slices.dim]
        places = torch.arange(held.start, held.stop, device=self.squared_scales.device)
        return places // slices.inner % group.n_units

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
        floor = ((1 - narrow.detach()).sum() / min(FLOOR, group.n_units)).clamp(max=1.0)
        return -floor * torch.logaddexp(*of_each), floor * (narrow / NARROW**2 + (1 - narrow) / BROAD**2)


def _squared_scales(view: WeightView) -> Tensor:  # (tensors,)
    """The mean square of each tensor. A bias has that of the matrix of its layer."""
    largest: dict[str, Tensor] = {}
    for shared, w in zip(view.shared, view.tensors, strict=True):
        layer = shared.name.rpartition(".")[0]
        largest[layer] = max(largest.get(layer, w), w, key=Tensor.numel)
    layers = (largest[shared.name.rpartition(".")[0]] for shared in view.shared)
    squares = torch.stack([_mean_square(w, view.group) for w in layers])
    return torch.where(squares > 0, squares, 1.0)


def _mean_square(w: Tensor, processes: Processes) -> Tensor:  # 0-d
    own = local(w.detach()).float().square()
    if processes.size == 1:
        return own.mean()
    return processes.sum_(own.sum() * counts_here(w, processes)) / w.numel()


def _units(group: Group, view: WeightView, place: dict[str, int]) -> _Units | None:
    slices = tuple((place[s.name], s) for s in group.slices if s.name in place)
    n_weights = sum(view.tensors[k].numel() // group.n_units for k, _ in slices)
    return _Units(group.n_units, slices, n_weights) if slices else None
