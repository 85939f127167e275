"""A mixture for every layer, each with components, means and widths of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from softshare.config import PriorConfig
from softshare.errors import ConfigError
from softshare.prior import MixturePrior
from softshare.weights import WeightView


class LayerPriors(nn.Module):
    """The product of one `MixturePrior` per layer, a layer being the shared tensors of one module.

    To `retrain_` and `compress` it is what a `MixturePrior` is.
    """

    def __init__(self, model: nn.Module, config: PriorConfig | None = None) -> None:
        super().__init__()
        self.config = config or PriorConfig()
        self._model = (model,)  # in a tuple, so that it is not registered as a part of the prior
        view = self.current_view()
        view.check()
        layers = view.layers()
        self.mixtures = nn.ModuleList(MixturePrior(model, self.config, names) for names in layers)
        self.view = WeightView(tuple(s for part in self.parts for s in part.view.shared), {}, {})

    @property
    def parts(self) -> Sequence[MixturePrior]:
        return [part for part in self.mixtures if isinstance(part, MixturePrior)]

    @property
    def way(self) -> Any:
        return tuple(part.way for part in self.parts)

    def current_view(self) -> WeightView:
        return WeightView.of(self._model[0], self.config.rules)

    def choose_method(self) -> None:
        for part in self.parts:
            part.choose_method()

    def neg_log_prior(self) -> Tensor:
        """-log p(w, theta) in nats, a 0-d tensor: the sum over the layers."""
        return torch.stack([part.neg_log_prior() for part in self.parts]).sum()

    def loss(self, tau: float, n_examples: int) -> Tensor:
        """The term to add to a *mean* task loss: tau / N * -log p(w, theta). 0-d."""
        return torch.stack([part.loss(tau, n_examples) for part in self.parts]).sum()

    def add_scaled_gradients_(
        self,
        scale: Tensor,  # 0-d
        weight_grads: Sequence[Tensor] | None = None,  # in the order of `view`
    ) -> Tensor:  # 0-d
        grads = None if weight_grads is None else iter(weight_grads)
        losses = []
        for part in self.parts:
            own = None if grads is None else [next(grads) for _ in part.view.shared]
            losses.append(part.add_scaled_gradients_(scale, own))
        return torch.stack(losses).sum()

    def param_groups(self) -> list[dict[str, Any]]:
        """Groups for the optimizer: the layers' means in one, log-variances in another, mixings in a third."""
        groups = [part.param_groups() for part in self.parts]
        joined = ({**same[0], "params": list(chain(*(g["params"] for g in same)))} for same in zip(*groups, strict=True))
        return list(joined)


Prior = MixturePrior | LayerPriors


def make_prior(model: nn.Module, config: PriorConfig) -> Prior:
    """One mixture over all weights or one for each layer, as the config has it."""
    if config.mixtures == "layer" and config.sample_one_in > 1:
        raise ConfigError("sample_one_in: samples are drawn from one mixture's weights; take mixtures 'global'")
    return LayerPriors(model, config) if config.mixtures == "layer" else MixturePrior(model, config)
