"""The prior: a learned Gaussian mixture over the weights (paper, sections 2 and 4.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.config import MergeConfig, PriorConfig
from softshare.errors import ConfigError
from softshare.kernels import log_joint, mixture_assign, mixture_nll
from softshare.weights import WeightView

if TYPE_CHECKING:
    from softshare.route import Compressed


@dataclass(frozen=True, eq=False)
class Mixture:
    """p(w) = sum_j mixing_j N(w | mean_j, var_j), normalized; component 0 is the zero component, its mean 0.

    Everything downstream of training reads this and no raw parameter.
    """

    log_mixing: Tensor  # (J + 1,)
    mean: Tensor  # (J + 1,)
    log_var: Tensor  # (J + 1,)

    @property
    def mixing(self) -> Tensor:
        return self.log_mixing.exp()

    @property
    def std(self) -> Tensor:
        return torch.exp(0.5 * self.log_var)

    def __len__(self) -> int:
        return len(self.mean)

    def responsibilities(
        self,
        w: Tensor,  # (n,)
    ) -> Tensor:  # (J + 1, n)
        return torch.softmax(log_joint(w, self.log_mixing, self.mean, self.log_var), 0)

    def assign(
        self,
        w: Tensor,  # any shape
    ) -> Tensor:  # (w.numel(),) int64
        """The most responsible component of each weight."""
        return mixture_assign(w, self.log_mixing, self.mean, self.log_var)

    def detach(self) -> Mixture:
        return Mixture(self.log_mixing.detach(), self.mean.detach(), self.log_var.detach())

    def __repr__(self) -> str:
        rows = zip(self.mixing.tolist(), self.mean.tolist(), self.std.tolist(), strict=True)
        return "Mixture(" + ", ".join(f"{p:.3g} N({m:.4f}, {s:.4f}^2)" for p, m, s in rows) + ")"


class MixturePrior(nn.Module):
    """The mixture's parameters and its loss. The model's own parameters are read, never registered here."""

    def __init__(self, model: nn.Module, config: PriorConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PriorConfig()
        self._model = (model,)  # in a tuple, so that it is not registered as a part of the prior
        self.view = self.current_view()
        self.view.check()
        weights = self.view.gather()
        low, high = self.view.range()
        spacing = (high - low) / max(1, config.components - 1)
        std = config.init_std if config.init_std is not None else spacing
        as_tensor = weights.new_full
        self.means = nn.Parameter(_initial_means(weights, low, high, config))
        self.log_vars = nn.Parameter(as_tensor((config.components + 1,), 2 * math.log(std)))
        self.mixing_logits = nn.Parameter(as_tensor((config.components,), 0.0))
        zero_logit = as_tensor((), math.log(config.zero_mixing / (1 - config.zero_mixing)))
        self.zero_logit: Tensor
        if config.mixing_prior is None:
            self.register_buffer("zero_logit", zero_logit)
        else:
            self.zero_logit = nn.Parameter(zero_logit)

    def current_view(self) -> WeightView:
        """The model's tensors as they are now: training may have put new buffers in place of those in `view`."""
        return WeightView.of(self._model[0], self.config.rules)

    def mixture(self) -> Mixture:
        """The normalized mixture, differentiable: the only way from parameters to densities."""
        log_free = F.logsigmoid(-self.zero_logit) + torch.log_softmax(self.mixing_logits, 0)
        return Mixture(
            log_mixing=torch.cat([F.logsigmoid(self.zero_logit)[None], log_free]),
            mean=torch.cat([self.means.new_zeros(1), self.means]),
            log_var=self.log_vars + 0,  # a copy: a Mixture does not change when training goes on
        )

    def neg_log_prior(self) -> Tensor:
        """-log p(w, theta) in nats, a 0-d tensor: the mixture on all shared weights, plus the hyper-priors.

        The hyper-priors are without their constants, which no gradient sees.
        """
        mixture = self.mixture()
        loss = mixture_nll(self.view.tensors, mixture.log_mixing, mixture.mean, mixture.log_var, self.config.backend)
        if self.config.zero_precision_prior is not None:
            loss = loss + self.config.zero_precision_prior.neg_log_density(mixture.log_var[:1])
        if self.config.free_precision_prior is not None:
            loss = loss + self.config.free_precision_prior.neg_log_density(mixture.log_var[1:])
        if self.config.mixing_prior is not None:
            loss = loss + self.config.mixing_prior.neg_log_density(mixture.log_mixing)
        return loss

    def loss(self, tau: float, n_examples: int) -> Tensor:
        """The term to add to a *mean* task loss: tau / N * -log p(w, theta). 0-d."""
        if not 0 <= tau < math.inf:
            raise ConfigError(f"tau: expected a number of at least 0, got {tau}")
        if n_examples < 1:
            raise ConfigError(f"n_examples: expected the size of the training set, at least 1, got {n_examples}")
        return (tau / n_examples) * self.neg_log_prior()

    def param_groups(self) -> list[dict[str, Any]]:
        """Groups for the optimizer, each with its own learning rate (paper, 4.1)."""
        mixing = [p for p in (self.mixing_logits, self.zero_logit) if isinstance(p, nn.Parameter)]
        return [
            {"params": [self.means], "lr": self.config.lr_means, "weight_decay": 0.0},
            {"params": [self.log_vars], "lr": self.config.lr_log_vars, "weight_decay": 0.0},
            {"params": mixing, "lr": self.config.lr_mixing, "weight_decay": 0.0},
        ]

    def quantize(self, config: MergeConfig | None = None) -> Compressed:
        """Merge and quantize what has been trained so far: the end of a training loop of your own."""
        from softshare.route import quantize_prior  # the one import against the stream: a convenience for users

        return quantize_prior(self, config or MergeConfig())


def _initial_means(
    weights: Tensor,  # (N,)
    low: float,
    high: float,
    config: PriorConfig,
) -> Tensor:  # (components,)
    if config.init == "range":
        return torch.linspace(low, high, config.components, dtype=weights.dtype, device=weights.device)
    sample = weights[:: math.ceil(len(weights) / 2**20)]  # torch.quantile takes no more than 2^24
    centres = (torch.arange(config.components, dtype=weights.dtype, device=weights.device) + 0.5) / config.components
    return torch.quantile(sample, centres)
