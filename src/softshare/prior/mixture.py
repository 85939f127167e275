"""Mixture: the normalized density that everything downstream of training reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softshare.prior.kernels import log_joint, mixture_assign


@dataclass(frozen=True, eq=False)
class Mixture:
    """p(w) = sum_j mixing_j N(w | mean_j, var_j), normalized. Component 0 is the zero component: its mean is 0.

        mixture = softshare.MixturePrior(model).mixtures()[0]
        print(mixture.mean, mixture.std, mixture.mixing)

    Everything downstream of training reads this, never the raw parameters.
    """

    log_mixing: Tensor  # (J + 1,)
    mean: Tensor  # (J + 1,)
    log_var: Tensor  # (J + 1,)

    @property
    def mixing(self) -> Tensor:
        """The share of each component. They sum to 1."""
        return self.log_mixing.exp()

    @property
    def std(self) -> Tensor:
        """The standard deviation of each component."""
        return torch.exp(0.5 * self.log_var)

    def __len__(self) -> int:
        return len(self.mean)

    def responsibilities(
        self,
        w: Tensor,  # (n,)
    ) -> Tensor:  # (J + 1, n)
        """How far each component is responsible for each weight. They sum to 1 over the components.

        Args:
            w: weights.

        Returns:
            A row for each component, with a column for each weight.
        """
        return torch.softmax(log_joint(w, self.log_mixing, self.mean, self.log_var), 0)

    def assign(
        self,
        w: Tensor,  # any shape
    ) -> Tensor:  # (w.numel(),) int64
        """The most responsible component of each weight.

        Args:
            w: weights.

        Returns:
            The index of the component, weight by weight.
        """
        return mixture_assign(w, self.log_mixing, self.mean, self.log_var)

    def detach(self) -> Mixture:
        """The same values without a history of gradients."""
        return Mixture(self.log_mixing.detach(), self.mean.detach(), self.log_var.detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> Mixture:
        """Of the values. That of a prior has a history of gradients, which torch refuses to copy."""
        return Mixture(self.log_mixing.detach().clone(), self.mean.detach().clone(), self.log_var.detach().clone())

    def __repr__(self) -> str:
        rows = zip(self.mixing.tolist(), self.mean.tolist(), self.std.tolist(), strict=True)
        return "Mixture(" + ", ".join(f"{p:.3g} N({m:.4f}, {s:.4f}^2)" for p, m, s in rows) + ")"
