"""The prior: a learned Gaussian mixture over the weights (paper, sections 2 and 4.1)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.config import MergeConfig, PriorConfig
from softshare.errors import ConfigError
from softshare.hyperpriors import Gamma
from softshare.kernels import find_sweep, log_joint, mixture_assign, mixture_nll, mixture_nll_grad_, sampled
from softshare.kernels.choice import available_backends
from softshare.kernels.mixture import Sweep
from softshare.kernels.mixture_table import CAPACITY, n_points, reach_of
from softshare.weights import WeightView

if TYPE_CHECKING:
    from softshare.route import Compressed

# Weights times components from which the table takes less of the device than the exact sweep (benchmarks/README.md).
TABLE_FROM = {"cpu": 2**20, "cuda": 2**27}
LARGEST = 2.0**100  # weight in a table: its reach must be a float
HELD = 1000  # strength of the hyper-priors that hold a width: a precision is known to one part in so many
LOOK_EVERY = 256  # training steps between looks at whether the table still fits: each makes a GPU wait


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
    """One mixture's parameters and its loss. The model's own parameters are read, never registered here.

    It is over all shared weights, or over those named. (`LayerPriors` has a mixture for every layer.)
    """

    def __init__(
        self, model: nn.Module, config: PriorConfig | None = None, names: Collection[str] | None = None
    ) -> None:
        super().__init__()
        self.config = config = config or PriorConfig()
        self._model = (model,)  # in a tuple, so that it is not registered as a part of the prior
        self._names = names
        self.view = self.current_view()
        if names is None:
            self.view.check()
        weights = self.view.gather()
        low, high = self.view.range()
        spacing = (high - low) / max(1, config.components - 1) or abs(high) or 1.0  # one layer may be all alike
        std = config.init_std if config.init_std is not None else spacing
        self._precision_priors = (config.zero_precision_prior, config.free_precision_prior)
        if config.width is not None:
            std = config.width * (float(weights.double().square().mean().sqrt()) or 1.0)
            self._precision_priors = (Gamma.from_std(std, HELD),) * 2
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
        self.reach: float | None = None  # of the table; None: the exact sweep
        self._steps = 0
        self.choose_method()

    def choose_method(self) -> None:
        """Look at weights and mixture, and choose between the table and the exact sweep; makes a GPU wait.

        Training does so by itself: every `LOOK_EVERY` steps that are not replayed from a graph, and `retrain_` before
        each epoch. A table that does not resolve the mixture is refused before training; later 'auto' leaves it, and
        'table' keeps it, coarser.
        """
        wanted = self.config.method
        if wanted == "exact" or (wanted == "auto" and not self._table_is_faster()):
            self.reach = None
            return
        largest = max(abs(end) for end in self.view.range())
        if not largest < LARGEST:  # or not finite: the loss will say so
            self.reach = None
            return
        reach = reach_of(largest)
        find_sweep(self.means, self.config.backend, reach)  # what is not available is better known now
        with torch.no_grad():
            points = n_points(self.mixture().mean, self.log_vars, reach)
        if points > CAPACITY and wanted == "table" and self._steps == 0:
            raise ConfigError(
                f"method 'table': this mixture needs at least {points} points, more than {CAPACITY}, to resolve its "
                "narrowest component; take 'auto' or 'exact', or hold the variances by stronger hyper-priors"
            )
        self.reach = reach if points <= CAPACITY or wanted == "table" else None

    def _table_is_faster(self) -> bool:
        here = available_backends(self.means)
        backend = here[0] if self.config.backend == "auto" else self.config.backend
        size = self.view.n_weights // self.config.sample_one_in * len(self.log_vars)
        return backend != "torch" and backend in here and size >= TABLE_FROM[self.means.device.type]

    def current_view(self) -> WeightView:
        """The model's tensors as they are now: training may have put new buffers in place of those in `view`."""
        view = WeightView.of(self._model[0], self.config.rules)
        return view if self._names is None else view.only(self._names)

    @property
    def parts(self) -> Sequence[MixturePrior]:
        """The mixtures, each with its view: this one."""
        return (self,)

    @property
    def way(self) -> Any:
        """In which way training computes the prior now; a captured step is captured again where it changes."""
        return self.reach

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

        The hyper-priors are without their constants, which no gradient sees. Under `torch.no_grad` it is exact and on
        all weights, whatever the method and the sample.
        """
        mixture = self.mixture()
        sweep = self._training_sweep() if torch.is_grad_enabled() else find_sweep(self.means, self.config.backend)
        loss = mixture_nll(sweep, self.view.tensors, mixture.log_mixing, mixture.mean, mixture.log_var)
        return loss + self._hyper_priors(mixture)

    def _hyper_priors(self, mixture: Mixture) -> Tensor:
        loss = mixture.mean.new_zeros(())
        zero, free = self._precision_priors
        if zero is not None:
            loss = loss + zero.neg_log_density(mixture.log_var[:1])
        if free is not None:
            loss = loss + free.neg_log_density(mixture.log_var[1:])
        if self.config.mixing_prior is not None:
            loss = loss + self.config.mixing_prior.neg_log_density(mixture.log_mixing)
        return loss

    def _training_sweep(self) -> Sweep:
        self._steps += 1
        if self._steps % LOOK_EVERY == 0 and not _capturing():
            self.choose_method()
        sweep = find_sweep(self.means, self.config.backend, self.reach)
        return sampled(sweep, self.config.sample_one_in, self.config.sample_schedule)

    def loss(self, tau: float, n_examples: int) -> Tensor:
        """The term to add to a *mean* task loss: tau / N * -log p(w, theta). 0-d."""
        return _scale(tau, n_examples) * self.neg_log_prior()

    def add_gradients_(self, tau: float, n_examples: int) -> Tensor:
        """`loss(tau, n_examples).backward()`, faster, with no second gradient in memory; returns the loss, detached.

        To be called after the backward of the task loss: it adds to the gradients that are there.
        """
        return self.add_scaled_gradients_(self.means.new_full((), _scale(tau, n_examples)))

    def add_scaled_gradients_(
        self,
        scale: Tensor,  # 0-d
        weight_grads: Sequence[Tensor] | None = None,  # to add to instead of the weights' own
    ) -> Tensor:  # 0-d
        """The same with tau / N in a tensor, as a captured step needs it."""
        mixture, weights = self.mixture(), self.view.tensors
        if weight_grads is None:
            for w in weights:
                if w.grad is None and w.requires_grad:
                    w.grad = torch.zeros_like(w)
            weight_grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        parameters = (mixture.log_mixing, mixture.mean, mixture.log_var)
        loss, mixture_grads = mixture_nll_grad_(
            self._training_sweep(), weights, weight_grads, *parameters, scale, together=self.config.sample_one_in == 1
        )
        hyper = self._hyper_priors(mixture)
        pushed = [(p, g) for p, g in zip(parameters, scale * mixture_grads, strict=True) if p.requires_grad]
        if hyper.requires_grad:
            pushed.append((hyper, scale))
        torch.autograd.backward([p for p, _ in pushed], [g for _, g in pushed])
        return scale * (loss + hyper.detach())

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


def _scale(tau: float, n_examples: int) -> float:
    if not 0 <= tau < math.inf:
        raise ConfigError(f"tau: expected a number of at least 0, got {tau}")
    if n_examples < 1:
        raise ConfigError(f"n_examples: expected the size of the training set, at least 1, got {n_examples}")
    return tau / n_examples


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


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
