"""The calls that another library's training loop makes to train under the prior and to end with a file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softshare.codec import check, load_into_
from softshare.compressed import Compressed, quantize_prior, simplified
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.prior.prior import MixturePrior
from softshare.train.curvature import Curvature
from softshare.train.hard import add_mean_gradients_, quantized
from softshare.train.supply import length_of
from softshare.train.zeroing import Zeroing, bit_price


def checked(config: CompressConfig | None, path: str | os.PathLike[str]) -> CompressConfig:
    """The config, once it is checked that a callback supports it and that the folder of `path` exists."""
    config = config or CompressConfig()
    given = [name for name in ("distill", "capture") if getattr(config.retrain, name)]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: a callback does not support this; leave it out, or use softshare.compress"
        )
    if not Path(path).parent.is_dir():
        raise ConfigError(f"cannot write {os.fspath(path)}: there is no folder {Path(path).parent}; create it")
    return config


class Sharing:
    """A training run under the prior. Another library owns the loop, the loss and the network's optimizer.

    Steps are those of that optimizer, counted from 0. The mixture has its own Adam, with the learning rates of
    `config.prior`. Only tau, its warm-up, the schedule, the hard phase and zeroing of `config.retrain` have an effect.
    """

    def __init__(
        self,
        model: nn.Module,
        config: CompressConfig,
        steps: range,  # of the run
        optimizer: torch.optim.Optimizer,  # of the network
        batches: Iterable[Any],  # of one epoch
        accumulated: int,  # batches in a step
        n_examples: int | None,  # in an epoch; None: the length of the batches' dataset
    ) -> None:
        self.model, self.config, self.steps = model, config, steps
        self.n_examples = _examples_in(batches) if n_examples is None else n_examples
        n_batches = length_of(batches)
        self._steps_per_epoch = math.ceil(n_batches / accumulated) if n_batches else None  # None: it will be counted
        self._most_steps = self._steps_since_end = 0  # in the longest epoch so far, and since the last epoch ended
        self.prior = MixturePrior(model, config.prior)
        _check_trained(self.prior, optimizer)
        check(self.compressed().quantized, config.encode)  # if no file can hold the network, say so before training
        self._optimizer = torch.optim.Adam(self.prior.param_groups())
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        wanted = config.retrain.zeroing and config.retrain.hard_from < 1
        self._curvature = Curvature(self.prior) if wanted else None
        self._assigned: list[Tensor] = []
        self._quantized = ExitStack()

    def _progress(self, step: int) -> float:
        return min(1.0, (step - self.steps.start) / max(1, len(self.steps)))

    def _is_hard(self, step: int) -> bool:
        return self._progress(step) >= self.config.retrain.hard_from

    def quantize_(self, step: int) -> None:
        """In the hard phase, give the network its quantized weights until `restore_`."""
        self.restore_()
        if self._is_hard(step):
            self._assigned = self._quantized.enter_context(quantized(self.prior))

    def restore_(self) -> None:
        """Give the network its unquantized weights back, for the optimizer and for checkpoints."""
        self._quantized.close()

    def step_(self, step: int) -> None:
        """Add the prior's gradients to those of the task, and train the mixture. The network's optimizer comes next.

        The gradients of the weights must be those of a mean loss over all batches of the step.
        """
        self.restore_()
        self._optimizer.zero_grad()
        if self._is_hard(step):
            add_mean_gradients_(self.prior, self._assigned)
            if self._curvature:
                self._curvature.note_()
        self.prior.add_gradients_(self.config.retrain.tau_at(self._progress(step)), self.n_examples)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self.config.retrain.decay_at(self._progress(step))
        self._optimizer.step()
        self._steps_since_end += 1

    @property
    def is_at_an_end(self) -> bool:
        """Whether all steps of an epoch are done and `end_epoch_` was not called yet."""
        return self._steps_since_end == self._steps_per_epoch

    def end_epoch_(self, steps_done: int) -> None:
        """End an epoch as the route does: weights that are not worth their bits become 0."""
        self.restore_()
        last = steps_done - 1
        self._most_steps, self._steps_since_end = max(self._most_steps, self._steps_since_end), 0
        if self._curvature and last in self.steps and self._is_hard(last):
            curvatures = self._curvature.estimate(self.n_examples / (self._steps_per_epoch or self._most_steps))
            price = bit_price(self.config.retrain.tau_at(self._progress(last)), self.n_examples)
            Zeroing(self.config.retrain.zeroing).zero_(self.prior, curvatures, price, self._progress(steps_done))
        self.prior.choose_method()

    def compressed(self) -> Compressed:
        return quantize_prior(self.prior, self.config.merge, hard=self.config.retrain.hard_from < 1)

    def finish_(self, path: str | os.PathLike[str]) -> Compressed:
        """Merge, quantize, simplify and write the file; the network is then what the file decodes to."""
        self.restore_()
        self.prior.to(self.prior.view.tensors[0].device)  # Lightning has moved the network off the GPU
        self.prior.current_view().check()  # after a NaN loss there are no weights to write
        compressed = simplified(self.model, self.compressed(), self.config)
        compressed.save(path)
        load_into_(self.model, path)
        return compressed

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the network, in tensors and plain values."""
        return {
            "start": self.steps.start,
            "most_steps": self._most_steps,
            "steps_since_end": self._steps_since_end,
            "prior": self.prior.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "curvature": self._curvature.state_dict() if self._curvature else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps = range(state["start"], self.steps.stop)
        self._most_steps, self._steps_since_end = state["most_steps"], state["steps_since_end"]
        self.prior.load_state_dict(state["prior"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._curvature and state["curvature"]:  # the checkpoint may come from a run without zeroing
            self._curvature.load_state_dict(state["curvature"])


def _examples_in(batches: Any) -> int:
    n_examples = length_of(getattr(batches, "dataset", None))  # type: ignore[arg-type]
    if n_examples is None:
        raise ConfigError("n_examples: the training data have no length; give the number to the callback")
    return n_examples


def _check_trained(prior: MixturePrior, optimizer: torch.optim.Optimizer) -> None:
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left = [s.name for s in prior.view.shared if s.tensor.requires_grad and id(s.tensor) not in trained]
    if left:
        raise ConfigError(
            f"{', '.join(left)}: the optimizer does not train these shared tensors; freeze them "
            "by requires_grad_(False), or keep them by a rule such as softshare.Rule('encoder.*', share=False)"
        )
