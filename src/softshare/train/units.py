"""A prior over whole hidden units, in addition to the one over weights (paper, section 7: future work).

All weights of a unit choose their component together: a narrow one, which pulls the unit to zero, or a broad one, which
leaves it alone. `shrink` then removes the units that are zero from the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from softshare._util.schema import require, require_types
from softshare.errors import ModelError
from softshare.network.chains import Link, find_links
from softshare.prior.prior import scaled_tau
from softshare.task import Task


@dataclass(frozen=True)
class UnitPriorConfig:
    """Standard deviations are relative to each layer: to the root mean square of its pre-trained weights.

    A unit of n weights falls to the narrow component if its mean square is below
    (2 log(broad / narrow) + 2 / n log(zero_mixing / (1 - zero_mixing))) / (1 / narrow^2 - 1 / broad^2):
    the two widths decide, and with hundreds of weights the mixing hardly counts.
    """

    tau: float = 0.1  # weight against the error, with the meaning it has for the weights' prior
    narrow: float = 0.25  # standard deviation of the weights of a unit that is removed
    broad: float = 1.0  # of a unit that stays: as before training
    zero_mixing: float = 0.9  # share of units that are expected to be removed
    outgoing: bool = True  # whether a unit has its outgoing weights too, beside its incoming ones and its bias

    def __post_init__(self) -> None:
        require_types(self)
        require(0 <= self.tau < math.inf, "tau", "a number of at least 0", self.tau)
        require(0 < self.broad < math.inf, "broad", "a number above 0", self.broad)
        require(0 < self.narrow < self.broad, "narrow", f"a number above 0 and below broad, {self.broad}", self.narrow)
        require(0 < self.zero_mixing < 1, "zero_mixing", "a number between 0 and 1, both excluded", self.zero_mixing)


@dataclass(frozen=True, eq=False)
class _Part:
    """Some of the weights of each unit of a layer: a tensor, the dimension that holds its units, and their scale."""

    name: str
    n_units: int
    dim: int  # 0: a unit is a row or a filter; 1: it is a column, a block of columns, or an input channel
    scale: float

    def squares(self, model: nn.Module) -> Tensor:  # (units,)
        """The sum of squares of each unit, relative to the scale."""
        tensor = model.get_parameter(self.name)
        rows = 1 if self.dim == 0 else tensor.shape[0]
        return (tensor.reshape(rows, self.n_units, -1) / self.scale).square().sum((0, 2))


@dataclass(frozen=True, eq=False)
class _Layer:
    """The hidden units of one layer."""

    parts: tuple[_Part, ...]
    n_weights: int  # of one unit
    log_scales: float  # logarithms of the scales, summed over the weights of one unit

    def neg_log_density(self, model: nn.Module, config: UnitPriorConfig) -> Tensor:  # 0-d
        squares = torch.stack([part.squares(model) for part in self.parts]).sum(0)  # (units,)
        constant = 0.5 * self.n_weights * math.log(2 * math.pi) + self.log_scales
        of_each = [
            math.log(mixing) - self.n_weights * math.log(std) - squares / (2 * std**2)
            for mixing, std in ((config.zero_mixing, config.narrow), (1 - config.zero_mixing, config.broad))
        ]
        return (constant - torch.logsumexp(torch.stack(of_each), 0)).sum()


class UnitPrior:
    """log p(unit) = logsumexp(log pi + sum_i log N(w_i | 0, narrow^2), log(1 - pi) + sum_i log N(w_i | 0, broad^2)).

    It covers all hidden units of a network's chains of Linear and Conv2d. The scales are those of the weights when the
    prior is made. A weight between two hidden units counts in both, as outgoing and as incoming: a product of two
    experts.
    """

    def __init__(self, model: nn.Module, config: UnitPriorConfig | None = None) -> None:
        self.config = config or UnitPriorConfig()
        self._model = model
        links, reasons = find_links(model)
        if not links:
            why = "".join(f"\n  {layer}: {reason}" for layer, reason in reasons.items())
            raise ModelError(
                f"expected hidden units in chains of Linear and Conv2d, got a model without any{why and ':'}{why}"
            )
        self._layers = tuple(_layer(model, link, self.config.outgoing) for link in links)

    def neg_log_prior(self, model: nn.Module | None = None) -> Tensor:
        """-log p of all units in nats, 0-d, differentiable. `model` may be another copy, whose weights then count."""
        model = self._model if model is None else model
        return torch.stack([layer.neg_log_density(model, self.config) for layer in self._layers]).sum()

    def loss(self, tau: float, n_examples: int, model: nn.Module | None = None) -> Tensor:
        """The term to add to a *mean* task loss: tau / N * -log p. 0-d. It never synchronises the GPU."""
        return scaled_tau(tau, n_examples) * self.neg_log_prior(model)


def with_unit_prior(task: Task, config: UnitPriorConfig | None = None) -> Task:
    """The same task with the units' prior in its loss. The scales are those of `task.model` now.

    Measure with the original task: the loss of this one is no longer that of the data alone.
    """
    prior = UnitPrior(task.model, config)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return task.loss(model, batch) + prior.loss(prior.config.tau, task.n_examples, model)

    return replace(task, loss=loss)


def _layer(model: nn.Module, link: Link, outgoing: bool) -> _Layer:
    parts = tuple(_parts(model, link, outgoing))
    sizes = [model.get_parameter(part.name).numel() // link.n_units for part in parts]
    return _Layer(parts, sum(sizes), sum(n * math.log(part.scale) for n, part in zip(sizes, parts, strict=True)))


def _parts(model: nn.Module, link: Link, outgoing: bool) -> Iterator[_Part]:
    incoming = f"{link.source}.weight"
    scale = _root_mean_square(model, incoming)
    yield _Part(incoming, link.n_units, 0, scale)
    if link.has_bias:
        yield _Part(f"{link.source}.bias", link.n_units, 0, scale)
    if outgoing:
        name = f"{link.target}.weight"
        yield _Part(name, link.n_units, 1, _root_mean_square(model, name))


def _root_mean_square(model: nn.Module, name: str) -> float:
    scale = float(model.get_parameter(name).detach().double().square().mean().sqrt())
    if not 0 < scale < math.inf:
        raise ModelError(f"tensor {name}: expected trained weights, got a root mean square of {scale}")
    return scale
