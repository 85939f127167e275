"""Hyper-priors on the mixture's own parameters (paper, appendix B).

Each is a small frozen value. Its method `neg_log_density` returns a 0-d tensor, without the normalizing constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softshare.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def _require_positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{owner}: {name} must be a finite number above 0, got {value}")


@dataclass(frozen=True)
class Gamma:
    """Gamma(alpha, beta) on a precision: -log p = -(alpha - 1) log precision + beta * precision + const.

        held = softshare.Gamma.from_std(0.02, strength=70)
        config = softshare.CompressConfig().override(width=None, free_precision_prior=held)

    For alpha above 1 the Gamma has a mode, and the constant makes the density 1 at that mode.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        _require_positive("Gamma", alpha=self.alpha, beta=self.beta)

    @classmethod
    def from_std(cls, std: float, strength: float) -> Gamma:
        """The Gamma whose mode is the precision of a standard deviation `std`.

        The mode is m = 1 / std^2. `strength` is m divided by the Gamma's own standard deviation: at 70, the precision
        is known to about one part in 70. Mode (alpha - 1) / beta = m and variance alpha / beta^2 = (m / strength)^2
        give beta as the positive root of (m / strength)^2 beta^2 - m beta - 1 = 0, and alpha = 1 + m beta.

        Args:
            std: the wanted standard deviation of a component.
            strength: how strongly it is held.

        Returns:
            The Gamma.
        """
        _require_positive("Gamma.from_std", std=std, strength=strength)
        mode = 1 / std / std  # std**-2 would raise on an overflow
        _require_positive("Gamma.from_std", **{"1 / std^2": mode})
        beta = strength * (strength + math.hypot(strength, 2)) / (2 * mode)
        return cls(alpha=1 + mode * beta, beta=beta)

    @property
    def std(self) -> float:
        """The standard deviation at the mode of the precision. It is infinite for alpha <= 1: the mode is then 0."""
        return math.sqrt(self.beta / (self.alpha - 1)) if self.alpha > 1 else math.inf

    @property
    def strength(self) -> float:
        """The mode of the precision divided by the Gamma's own standard deviation, as in `from_std`."""
        return (self.alpha - 1) / math.sqrt(self.alpha)

    def neg_log_density(
        self,
        log_var: Tensor,  # any shape
    ) -> Tensor:
        """-log p of the precisions, without its constant.

        Args:
            log_var: the log-variances.

        Returns:
            The sum over them, 0-d.
        """
        if self.alpha <= 1:
            return ((self.alpha - 1) * log_var + self.beta * (-log_var).exp()).sum()
        # The value at the mode, where beta * precision = alpha - 1, is subtracted: for a strong prior it is so large
        # that float32 would lose the rest.
        off_mode = log_var - 2 * math.log(self.std)
        return (self.alpha - 1) * (off_mode + (-off_mode).expm1()).sum()

    def __str__(self) -> str:
        return f"alpha={self.alpha:g},beta={self.beta:g}"


@dataclass(frozen=True)
class Beta:
    """Beta(alpha, beta) on the mixing of the zero component:

        prior = softshare.Beta.from_mode(free=0.01, count=1e5)
        config = softshare.CompressConfig().override(mixing_prior=prior)

    The pseudo-count is alpha + beta.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        _require_positive("Beta", alpha=self.alpha, beta=self.beta)

    @classmethod
    def from_mode(cls, free: float, count: float) -> Beta:
        """The Beta with a wanted mode.

        Args:
            free: the share that the mode leaves to the other components.
            count: how strongly it is held, as a number of pseudo-observations, above 2.

        Returns:
            The Beta.
        """
        return cls(alpha=1 + (1 - free) * (count - 2), beta=1 + free * (count - 2))

    @property
    def free(self) -> float:
        """The share that the mode leaves to the other components."""
        return (self.beta - 1) / (self.count - 2)

    @property
    def count(self) -> float:
        """The number of pseudo-observations, as in `from_mode`."""
        return self.alpha + self.beta

    def neg_log_density(
        self,
        log_mixing: Tensor,  # (..., J + 1), the zero component first; several mixtures are summed
    ) -> Tensor:
        """-log p of the mixing, without its constant.

        Args:
            log_mixing: the logarithms of the mixing, the zero component first.

        Returns:
            The sum over the mixtures, 0-d.
        """
        log_free = log_mixing[..., 1:].logsumexp(-1)
        return (-(self.alpha - 1) * log_mixing[..., 0] - (self.beta - 1) * log_free).sum()

    def __str__(self) -> str:
        return f"alpha={self.alpha:g},beta={self.beta:g}"


@dataclass(frozen=True)
class Dirichlet:
    """Dirichlet on all mixings:

        config = softshare.CompressConfig().override(mixing_prior=softshare.Dirichlet(zero=1e5, free=10))

    The concentration is `zero` for the zero component, and `free` for each of the others.
    """

    zero: float
    free: float

    def __post_init__(self) -> None:
        _require_positive("Dirichlet", zero=self.zero, free=self.free)

    def neg_log_density(
        self,
        log_mixing: Tensor,  # (..., J + 1), the zero component first; several mixtures are summed
    ) -> Tensor:
        """-log p of the mixing, without its constant.

        Args:
            log_mixing: the logarithms of the mixing, the zero component first.

        Returns:
            The sum over the mixtures, 0-d.
        """
        return -(self.zero - 1) * log_mixing[..., 0].sum() - (self.free - 1) * log_mixing[..., 1:].sum()

    def __str__(self) -> str:
        return f"zero={self.zero:g},free={self.free:g}"
