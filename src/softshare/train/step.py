"""One training step. `captured` has the same step as a CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softshare._util.user_code import call, length_of
from softshare.config import RetrainConfig
from softshare.distributed.shards import is_sharded, sharded_as
from softshare.distributed.wrap import synchronized
from softshare.errors import ConfigError, ModelError
from softshare.prior.prior import MixturePrior
from softshare.task import Task, require_mean_loss
from softshare.train.curvature import Curvature
from softshare.train.prior_step import PriorStep, ReplayedPriorStep
from softshare.train.rates import network_groups


class Latent:
    """What the optimizer trains in place of the network's parameters, and how the parameters follow from it.

    This one is the identity: the optimizer trains the parameters themselves. A subclass may hold some of them to a mask
    or a codebook. A graph may capture what it does in a step, so it must not synchronise the GPU, and must keep the
    same tensors.
    """

    def parameters(self, model: nn.Module) -> list[Tensor]:
        return list(model.parameters())

    def pull_(self) -> None:
        """Compute the latent parameters' gradients from the network's. Called before the optimizer's step."""

    def push_(self) -> None:
        """Compute the network's parameters from the latent ones. Called before training and after each step."""


class Step:
    """Gradients of the task loss and of the prior, and the optimizer's step.

    On a GPU the prior's part is replayed from CUDA graphs, unless the network is large. Never synchronises, except on
    the first steps and when the prior re-selects its method.
    """

    _captured = False

    def __init__(
        self, task: Task, prior: MixturePrior | None, config: RetrainConfig, latent: Latent | None = None
    ) -> None:
        self.task, self.prior, self.latent, self.config = task, prior, latent or Latent(), config
        if task.group.size > 1:
            _check_group(task, prior, config)
        self.curvature = Curvature(prior) if prior and config.zeroing and config.hard_from < 1 else None
        self._prior_step = self._make_prior_step(prior) if prior else None
        parameters = self.latent.parameters(task.model)
        network = [{"params": parameters, "lr": config.lr_weights, "weight_decay": config.weight_decay}]
        if prior and config.relative:
            network = network_groups(task.model, parameters, config)
        self.optimizers = self._make_optimizers(network, self._prior_step.param_groups() if self._prior_step else [])
        self._groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self._base_rates = [float(group["lr"]) for group in self._groups]
        trained = [p for group in self._groups for p in group["params"]]
        self._with_grad = list(dict.fromkeys([*trained, *task.model.parameters()]))  # the optimizer may not have all
        self.sums = torch.zeros(2, device=_device(task))  # of the losses that steps returned since it was set to 0
        self._network = synchronized(task.model, task.group)
        self._first = True
        self.hard = False  # whether the network runs on quantized weights

    def _make_prior_step(self, prior: MixturePrior) -> PriorStep:
        return (ReplayedPriorStep if ReplayedPriorStep.fits(prior) else PriorStep)(prior, self.curvature)

    def _make_optimizers(
        self, network: list[dict[str, Any]], mixture: list[dict[str, Any]]
    ) -> list[torch.optim.Optimizer]:
        """The mixture always has Adam: a component's gradients grow with the number of its weights."""
        fused = _device(self.task).type in ("cpu", "cuda")
        if self.config.optimizer == "adam":
            return [torch.optim.Adam(network + mixture, fused=fused, capturable=self._captured)]
        sgd = torch.optim.SGD(network, momentum=0.9, nesterov=True, fused=fused)
        return [sgd, torch.optim.Adam(mixture, fused=fused, capturable=self._captured)] if mixture else [sgd]

    def set(self, tau: float, decay: float) -> None:
        """Set the prior's weight, and the factor of all learning rates, from the next step on."""
        if self._prior_step:
            self._prior_step.set(tau / self.config.counted(self.task.n_examples), decay)
        self._set_rates([base * decay for base in self._base_rates])

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizers": [optimizer.state_dict()["state"] for optimizer in self._all_optimizers()],
            "curvature": self.curvature and self.curvature.state_dict(),
            "sums": self.sums,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The learning rates stay: they follow from the progress of the run."""
        for optimizer, loaded in zip(self._all_optimizers(), state["optimizers"], strict=True):
            groups = optimizer.param_groups
            loaded = _sharded(loaded, [p for group in groups for p in group["params"]])
            optimizer.load_state_dict({"state": loaded, "param_groups": optimizer.state_dict()["param_groups"]})
            optimizer.param_groups = groups  # torch has made others, but the rates are set in these
        if self.curvature:
            self.curvature.load_state_dict(state["curvature"])
        self.sums.copy_(state["sums"])
        self._first = False

    def _all_optimizers(self) -> list[torch.optim.Optimizer]:
        return [*self.optimizers, *(self._prior_step.optimizers if self._prior_step else [])]

    def _set_rates(self, rates: list[float]) -> None:
        for group, rate in zip(self._groups, rates, strict=True):
            group["lr"] = rate

    def __call__(self, batch: Any) -> tuple[Tensor, Tensor]:  # 0-d each, detached
        """Take a step. Returns the task loss, and the loss of task and prior together."""
        for p in self._with_grad:
            p.grad = None
        task_loss, loss = self._gradients(batch)
        self.latent.pull_()
        for optimizer in self.optimizers:
            optimizer.step()
        self.latent.push_()
        self.sums += torch.stack([task_loss, loss])
        return task_loss, loss

    def _gradients(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Of task and prior. Returns the losses, as `__call__`."""
        if self._prior_step is None:
            task_loss = self._task_gradients(batch)
            return task_loss, task_loss
        self._prior_step.before_(self.hard)
        try:
            task_loss = self._task_gradients(batch)
            return task_loss, task_loss + self._prior_step.after_()
        except BaseException:
            self._prior_step.restore_()
            raise

    def _task_gradients(self, batch: Any) -> Tensor:
        task_loss, first = require_mean_loss(self.task.loss(self._network, batch)), self._first
        self._check(task_loss)
        if task_loss.requires_grad:
            call("the gradient of Task.loss", task_loss.backward)
        if first and self.prior:
            _require_gradients(self.prior)
        return task_loss.detach()

    def _check(self, task_loss: Tensor) -> None:
        if self._first and not math.isfinite(value := float(task_loss.detach())):
            raise ConfigError(
                f"Task.loss returned {value} on the first batch, before any training; expected a finite loss. "
                "Check the model's weights and the data"
            )
        self._first = False


def _sharded(state: dict[int, dict[str, Any]], parameters: Sequence[Tensor]) -> dict[int, dict[str, Any]]:
    """The state of an optimizer, sharded as its parameters are."""
    return {
        k: {
            name: sharded_as(parameters[k], v) if is_sharded(parameters[k]) and v.shape == parameters[k].shape else v
            for name, v in own.items()
        }
        for k, own in state.items()
    }


def _check_group(task: Task, prior: MixturePrior | None, config: RetrainConfig) -> None:
    """Raise for settings that several processes cannot keep in step."""
    if config.capture:
        raise ConfigError("capture: expected False on several processes, whose messages a graph cannot replay")
    if prior and prior.config.sample_one_in > 1 and prior.view.group.size == 1:
        raise ConfigError(
            "sample_one_in: expected 1 where each process has all weights, because each would draw others"
        )
    task.group.require_same("Task.n_examples", task.n_examples)
    task.group.require_same("the number of batches in Task.train", length_of(task.train))


def _require_gradients(prior: MixturePrior) -> None:
    """Raise if the loss has reached no shared weight: the prior alone would shrink them all to 0."""
    trained = [w for w in prior.view.tensors if w.requires_grad]
    if trained and all(w.grad is None for w in trained):
        names = ", ".join(s.name for s in prior.view.shared[:3])
        raise ModelError(
            f"the loss has no gradient for any shared weight ({names}, ...); Task.loss must use the model that it is "
            "given, not another one, and not under torch.no_grad"
        )


def _device(task: Task) -> torch.device:
    return next(task.model.parameters()).device
