"""The prior: a learned Gaussian mixture over the weights (paper, sections 2 and 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.config import Gamma, MergeConfig, PriorConfig
from softshare.distributed.shards import Sharded
from softshare.errors import ConfigError
from softshare.network.groups import Group
from softshare.network.weights import WeightView
from softshare.prior.kernels import find_sweep, mixture_grads, mixture_nll, mixture_nll_grad_, sampled
from softshare.prior.kernels.choice import available_backends
from softshare.prior.kernels.sweep import Sweep
from softshare.prior.kernels.table import CAPACITY, n_points, reach_of
from softshare.prior.mixture import Mixture
from softshare.prior.units import UnitPrior

if TYPE_CHECKING:
    from softshare import Compressed

# Weights times components from which the table takes less of the device than the exact sweep (benchmarks/README.md).
TABLE_FROM = {"cpu": 2**20, "cuda": 2**27}
LARGEST = 2.0**100  # weights in a table are below this: its reach must be a float32
# The hyper-priors that hold a width count as this many weights: HELD, or HELD_FOR_EACH for each weight of the largest
# part, whichever is more. From 19 for each, no weights move a width of 0.45 by more than 5% (docs/math.md).
HELD, HELD_FOR_EACH = 1e6, 20
USUAL_WEIGHT = 0.05  # root mean square of the weights that learning rates are made for
MOST_SORTED = 2**20  # weights for a quantile: torch takes no more than 2^24
OUTLIER = 10.0  # times the 99th percentile of the magnitudes: the initial means do not reach further
LOOK_EVERY = 256  # training steps between two checks that the table still fits; each check synchronises the GPU


class MixturePrior(nn.Module):
    """The parameters of one mixture over all shared weights, or of one mixture for each layer, and their loss:

        prior = softshare.MixturePrior(model)
        optimizer = torch.optim.Adam([*prior.param_groups(), {"params": model.parameters()}])

    The prior reads the model's own parameters and never registers them.

    Args:
        model: the network that is trained.
        config: components, initial values, hyper-priors and learning rates.
        relative: the means are parameters in proportion to the weights of their layer, and so is their rate.
        groups: units that have a prior of their own too, of the weight that `config.units` says.
    """

    def __init__(
        self,
        model: nn.Module,
        config: PriorConfig | None = None,
        *,
        relative: bool = False,
        groups: Sequence[Group] = (),
    ) -> None:
        super().__init__()
        self.config = config = config or PriorConfig()
        self._model = (model,)  # a tuple, so that torch does not register the model as part of the prior
        self.gathered = Sharded(model)
        view = self.current_view()
        view.check()
        names = view.layers() if config.mixtures == "layer" else [[s.name for s in view.shared]]
        self.parts = tuple(view.only(of_one) for of_one in names)  # the weights of each mixture
        in_order = tuple(s for part in self.parts for s in part.shared)
        self.view = WeightView(in_order, {}, {}, processes=view.group)
        means = torch.stack([_initial_means(part, config).to(view.dtype) for part in self.parts])
        units = [_power_of_two(part.size() / USUAL_WEIGHT) if relative else 1.0 for part in self.parts]
        self.register_buffer("mean_units", means.new_tensor(units)[:, None], persistent=relative)  # (parts, 1)
        self.mean_units: Tensor
        self.means = nn.Parameter(means / self.mean_units)  # (parts, J)
        stds = [_initial_std(part, config) for part in self.parts]
        log_vars = self.means.new_tensor([[2 * math.log(std)] for std in stds])
        self.log_vars = nn.Parameter(log_vars.repeat(1, config.components + 1))  # (parts, J + 1)
        if config.width is None:
            self.precision_priors = (config.zero_precision_prior, config.free_precision_prior)
        else:
            most = max(part.n_weights for part in self.parts)
            self.precision_priors = (Gamma.from_std(1.0, math.sqrt(max(HELD, HELD_FOR_EACH * most))),) * 2
            self.register_buffer("_log_held", log_vars)  # in the state dict: the weights it comes from soon change
        self._log_held: Tensor  # (parts, 1), the log-variances that a width holds
        self.mixing_logits = nn.Parameter(torch.zeros_like(self.means))  # (parts, J)
        odds = math.log(config.zero_mixing / (1 - config.zero_mixing))
        zero_logit = self.means.new_full((len(self.parts),), odds)
        self.zero_logit: Tensor  # (parts,)
        if config.mixing_prior is None:
            self.register_buffer("zero_logit", zero_logit)
        else:
            self.zero_logit = nn.Parameter(zero_logit)
        self.units = UnitPrior(self.view, groups) if groups and config.units else None
        self.reaches: list[float | None] = [None] * len(self.parts)  # of each part's table; None: the exact sweep
        self.steps = 0
        self.choose_method()

    def choose_method(self) -> None:
        """Choose between the table and the exact sweep, by the present weights and mixtures. Synchronises the GPU.

        Training calls this by itself: `retrain_` before each epoch, and every `LOOK_EVERY` steps that are not replayed
        from a graph. If a table cannot resolve the mixture, the method 'table' raises before training and keeps a
        coarser table later; 'auto' takes the exact sweep.
        """
        with torch.no_grad():
            mixtures = self.mixtures()
        self.reaches = [self._reach(part, m) for part, m in zip(self.parts, mixtures, strict=True)]

    def _reach(self, part: WeightView, mixture: Mixture) -> float | None:
        wanted = self.config.method
        if wanted == "exact" or (wanted == "auto" and not self._table_is_faster(part)):
            return None
        largest = max(abs(end) for end in part.range())
        if not largest < LARGEST:  # or it is not finite, which the loss will report
            return None
        reach = reach_of(largest)
        find_sweep(self.means, self.config.backend, reach)  # raises now if the backend is not available
        points = n_points(mixture.mean, mixture.log_var, reach)
        if points > CAPACITY and wanted == "table" and self.steps == 0:
            raise ConfigError(
                f"method 'table': expected at most {CAPACITY} points, got a mixture whose narrowest component needs at "
                f"least {points}. Use 'auto' or 'exact', or hold the variances with stronger hyper-priors"
            )
        return reach if points <= CAPACITY or wanted == "table" else None

    def _table_is_faster(self, part: WeightView) -> bool:
        here = available_backends(self.means)
        backend = here[0] if self.config.backend == "auto" else self.config.backend
        size = part.n_weights // self.config.sample_one_in * (self.config.components + 1)
        return backend != "torch" and backend in here and size >= TABLE_FROM[self.means.device.type]

    def current_view(self) -> WeightView:
        """The model's present tensors: since `view` was made, training may have replaced buffers."""
        return WeightView.of(self._model[0], self.config.rules)

    def mixtures(self) -> tuple[Mixture, ...]:
        """The normalized mixture of each part, differentiable: the only way from parameters to densities."""
        return tuple(Mixture(*rows) for rows in zip(*(p.unbind() for p in self._normalized()), strict=True))

    def mixture(self) -> Mixture:
        """The mixture of a prior that has one for all weights."""
        if len(self.parts) > 1:
            raise ConfigError(f"mixture: expected one for all weights, got {len(self.parts)} layers. Use mixtures()")
        return self.mixtures()[0]

    def _normalized(self) -> tuple[Tensor, Tensor, Tensor]:  # (parts, J + 1) each
        """Log-mixings, means and log-variances of all components."""
        log_free = F.logsigmoid(-self.zero_logit)[:, None] + torch.log_softmax(self.mixing_logits, 1)
        return (
            torch.cat([F.logsigmoid(self.zero_logit)[:, None], log_free], 1),
            F.pad(self.means * self.mean_units, (1, 0)),
            self.log_vars + 0,  # a copy: a Mixture must not change while training continues
        )

    def neg_log_prior(self) -> Tensor:
        """-log p(w, theta) in nats, a 0-d tensor: the mixtures on all shared weights, the units and the hyper-priors.

        The hyper-priors leave out their constants, which have no gradient. Under `torch.no_grad` the value is exact and
        covers all weights, whatever the method and the sample.
        """
        if torch.is_grad_enabled() and self.view.group.size > 1:
            raise ConfigError(
                "the weights are sharded, and autograd would add to gradients that are still being reduced. Call "
                "prior.add_gradients_(tau, n_examples) after loss.backward() instead of adding prior.loss(...)"
            )
        log_mixing, mean, log_var = self._normalized()
        exact = [find_sweep(self.means, self.config.backend)] * len(self.parts)
        sweeps = self._training_sweeps() if torch.is_grad_enabled() else exact
        losses = [
            mixture_nll(sweep, part.counted_locals, log_mixing[k], mean[k], log_var[k])
            for k, (part, sweep) in enumerate(zip(self.parts, sweeps, strict=True))
        ]
        total = self.view.group.sum_(torch.stack(losses)).sum()
        if self.units:
            total = total + self.config.units * self.units.neg_log_prior()
        return total + self._hyper_priors(log_mixing, log_var)

    def _hyper_priors(
        self,
        log_mixing: Tensor,  # (parts, J + 1)
        log_var: Tensor,  # (parts, J + 1)
    ) -> Tensor:  # 0-d
        loss = log_mixing.new_zeros(())
        held = log_var if self.config.width is None else log_var - self._log_held
        for precision_prior, own in zip(self.precision_priors, (held[:, :1], held[:, 1:]), strict=True):
            if precision_prior is not None:
                loss = loss + precision_prior.neg_log_density(own)
        if self.config.mixing_prior is not None:
            loss = loss + self.config.mixing_prior.neg_log_density(log_mixing)
        return loss

    def count_step(self) -> None:
        """Count a training step, and choose the method again if enough have passed since the last time."""
        self.steps += 1
        if self.steps % LOOK_EVERY == 0 and not _capturing():
            self.choose_method()

    def _training_sweeps(self) -> list[Sweep]:
        one_in = self.config.sample_one_in
        return [sampled(find_sweep(self.means, self.config.backend, r), one_in) for r in self.reaches]

    def loss(self, tau: float, n_examples: int) -> Tensor:
        """The term to add to a *mean* task loss, tau / N * -log p(w, theta):

            (loss_fn(model(x), y) + prior.loss(tau=0.003, n_examples=60_000)).backward()

        Args:
            tau: the weight of the prior.
            n_examples: N, the examples that tau is counted against.

        Returns:
            A 0-d tensor.
        """
        if torch.is_grad_enabled():
            self.count_step()
        return scaled_tau(tau, n_examples) * self.neg_log_prior()

    def add_gradients_(self, tau: float, n_examples: int) -> Tensor:
        """Do what `loss(tau, n_examples).backward()` does, faster and without a second gradient in memory:

            loss_fn(model(x), y).backward()
            prior.add_gradients_(tau=0.003, n_examples=60_000)

        Call it after the backward of the task loss: it adds to the gradients.

        Args:
            tau: the weight of the prior.
            n_examples: N, the examples that tau is counted against.

        Returns:
            The loss, detached.
        """
        scale = self.means.new_full((), scaled_tau(tau, n_examples))
        self.count_step()
        return self.add_scaled_gradients_(scale)

    def add_scaled_gradients_(
        self,
        scale: Tensor,  # 0-d
        weight_grads: Sequence[Tensor] | None = None,  # added to in place of the weights' own, in the order of `view`
    ) -> Tensor:  # 0-d
        """Like `add_gradients_`, with tau / N in a tensor, as a captured step needs it. The caller counts the step.

        Args:
            scale: tau / N.
            weight_grads: added to in place of the gradients of the weights, in the order of `view`.

        Returns:
            The loss, detached.
        """
        if weight_grads is None:
            for w in self.view.tensors:
                if w.grad is None and w.requires_grad:
                    w.grad = torch.zeros_like(w)
            held = zip(self.view.locals, self.view.local_grads, strict=True)
            weight_grads = [torch.zeros_like(w) if grad is None else grad for w, grad in held]
        parameters = self._normalized()
        with torch.no_grad():
            squares = self.units.squares() if self.units else self.means.new_empty(0)
        loss, sums, squares = self._swept(weight_grads, [p.detach() for p in parameters], scale, squares)
        grads = scale * mixture_grads(sums, self.means)  # (3, parts, J + 1)
        hyper = self._hyper_priors(parameters[0], parameters[2])
        pushed = [(p, g) for p, g in zip(parameters, grads, strict=True) if p.requires_grad]
        if hyper.requires_grad:
            pushed.append((hyper, scale))
        torch.autograd.backward([p for p, _ in pushed], [g for _, g in pushed])
        loss = scale * (loss.to(scale.dtype) + hyper.detach())
        if not self.units:
            return loss
        return loss + self.units.add_gradients_(self.config.units * scale, weight_grads, squares)

    def _swept(
        self,
        weight_grads: Sequence[Tensor],  # added to
        parameters: Sequence[Tensor],  # (parts, J + 1) each
        scale: Tensor,  # 0-d
        squares: Tensor,  # (units,)
    ) -> tuple[Tensor, Tensor, Tensor]:  # 0-d; (3, parts, J + 1); (units,)
        """The loss of all parts, their sums of a `Sweep`, and the squares: of all processes, in one message."""
        remaining, together = iter(weight_grads), self.config.sample_one_in == 1
        losses, sums = [], []
        rows = (p.unbind() for p in parameters)
        for part, sweep, log_mixing, mean, log_var in zip(self.parts, self._training_sweeps(), *rows, strict=True):
            held = list(zip(part.locals, [next(remaining) for _ in part.shared], part.counted, strict=True))
            found = mixture_nll_grad_(sweep, *_columns(held, True), log_mixing, mean, log_var, scale, together)
            losses.append(found[0])
            sums.append(found[1])
            if not all(part.counted):  # copies, which another process counts
                mixture_nll_grad_(sweep, *_columns(held, False), log_mixing, mean, log_var, scale, together)
        loss, of_each = torch.stack(losses).sum(), torch.stack(sums, 1)
        if self.view.group.size > 1:
            message = self.view.group.sum_(torch.cat([loss[None], of_each.flatten(), squares.to(loss.dtype)]))
            loss, of_each = message[0], message[1 : 1 + of_each.numel()].view_as(of_each)
            squares = message[1 + of_each.numel() :].to(squares.dtype)
        return loss, of_each, squares

    def param_groups(self) -> list[dict[str, Any]]:
        """Groups for the optimizer, each with its own learning rate (paper, 4.1).

        Returns:
            The parameters of the mixtures, to add to those of the network.
        """
        mixing = [p for p in (self.mixing_logits, self.zero_logit) if isinstance(p, nn.Parameter)]
        return [
            {"params": [self.means], "lr": self.config.lr_means, "weight_decay": 0.0},
            {"params": [self.log_vars], "lr": self.config.lr_log_vars, "weight_decay": 0.0},
            {"params": mixing, "lr": self.config.lr_mixing, "weight_decay": 0.0},
        ]

    def quantize(self, config: MergeConfig | None = None, *, hard: bool = False) -> Compressed:
        """Merge and quantize the network as trained so far. A training loop of your own ends with this:

            prior.quantize().save("model.sws")

        Args:
            config: how components are merged.
            hard: whether the last steps were hard ones. Each weight then keeps the component that they gave it.

        Returns:
            The network as it will be written, with `save`.
        """
        import softshare  # through the package, because `Compressed` lives in a layer above this one

        return softshare.quantize_prior(self, config or MergeConfig(), hard)


def _columns(held: Sequence[tuple[Tensor, Tensor, bool]], counts: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The weights and their gradients that count, or those that do not."""
    return [w for w, _, c in held if c is counts], [g for _, g, c in held if c is counts]


def scaled_tau(tau: float, n_examples: int) -> float:
    if not 0 <= tau < math.inf:
        raise ConfigError(f"tau: expected a number of at least 0, got {tau}")
    if n_examples < 1:
        raise ConfigError(f"n_examples: expected the size of the training set, at least 1, got {n_examples}")
    return tau / n_examples


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _power_of_two(value: float) -> float:
    return 2.0 ** round(math.log2(value)) if 0 < value < math.inf else 1.0


def _initial_std(view: WeightView, config: PriorConfig) -> float:
    if config.width is not None:
        return config.width * (view.size() or 1.0)
    low, high = view.range()
    spacing = (high - low) / max(1, config.components - 1) or abs(high) or 1.0  # all weights of a layer may be equal
    return config.init_std if config.init_std is not None else spacing


def _bulk(view: WeightView) -> tuple[float, float]:
    """The range of the weights without outliers, which would spread the means over a range that has no weight."""
    low, high = view.range()
    far = OUTLIER * float(torch.quantile(view.sample(MOST_SORTED).abs(), 0.99))
    return (max(low, -far), min(high, far)) if max(-low, high) > far > 0 else (low, high)


def _initial_means(view: WeightView, config: PriorConfig) -> Tensor:  # (components,)
    dtype, device = view.dtype, view.tensors[0].device
    if config.init == "range":
        return torch.linspace(*_bulk(view), config.components, dtype=dtype, device=device)
    centres = (torch.arange(config.components, dtype=dtype, device=device) + 0.5) / config.components
    return torch.quantile(view.sample(MOST_SORTED), centres)
