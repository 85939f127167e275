"""The calls that another library's training loop makes to train under the prior and to end with a file."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from softshare._util.files import write_atomic
from softshare._util.user_code import length_of
from softshare.api import Record
from softshare.codec import check, load_into_
from softshare.compressed import Compressed, dead_layers, dead_messages, quantize_prior, simplified
from softshare.config import CompressConfig, RetrainConfig
from softshare.distributed.group import ALONE, Group
from softshare.distributed.shards import is_sharded, local
from softshare.errors import ConfigError
from softshare.integrations.evaluation import UNKNOWN, Evaluation, by_accuracy
from softshare.integrations.history import History
from softshare.integrations.outcome import outcome_of, result_of
from softshare.integrations.watch import Losses
from softshare.network.groups import find_groups
from softshare.prior.prior import MixturePrior
from softshare.simplify.changes import Changes
from softshare.simplify.trial import Call, allowed_by_outputs
from softshare.target.gentleness import gentler
from softshare.train.curvature import Curvature
from softshare.train.hard import add_mean_gradients_, quantized
from softshare.train.hooks import Hook
from softshare.train.spared import spared
from softshare.train.zeroing import bit_price, least_worth, spare_bits_

SHORT = 0.5  # of the recipe's steps: a shorter run gets a warning
MOST_GENTLE = 5.0

GUESSED = (
    "the losses of single validation batches are not known, so a rise of 15% is taken for chance; return the loss from "
    "validation_step, or evaluate the network"
)


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


def gentleness_for(n_steps: int, config: CompressConfig) -> float:
    """How much gentler than `config` a run of this length is made, for `softshare.target.search.gentler`.

    A network that is quantized all at once needs time to recover, and a callback has one run, not a search: it is 1
    gentler at the recipe's length, and 1 more each time the run is half as long.
    """
    if config.retrain.hard_from == 1:
        return 0.0
    return min(MOST_GENTLE, max(0.0, 1 + math.log2(RetrainConfig.steps / max(1, n_steps))))


class Sharing:
    """A training run under the prior. Another library owns the loop, the loss and the network's optimizer.

    Steps are those of that optimizer, counted from 0. The mixture has its own Adam, with the learning rates of
    `config.prior`. Only tau, its warm-up, the schedule, the hard phase and zeroing of `config.retrain` have an effect.
    With the `state_dict` of an earlier run, the run continues.

    All processes of a group make the same calls. The first one has the hooks and the result, and writes the file.
    """

    def __init__(
        self,
        model: nn.Module,
        config: CompressConfig,
        steps: range,  # of the run
        optimizer: torch.optim.Optimizer,  # of the network
        batches: Iterable[Any],  # of one epoch
        accumulated: int = 1,  # batches in a step
        n_examples: int | None = None,  # in an epoch; None: the length of the batches' dataset
        gentleness: float | None = None,  # None: by the number of steps
        state: Mapping[str, Any] | None = None,
        hooks: Sequence[Hook] = (),
        group: Group = ALONE,  # that trains the network together
        skips: bool = False,  # whether a gradient scaler leaves out a step whose gradients overflow
    ) -> None:
        self.group, self._skips, self._trained = group, skips, optimizer
        self.steps = range(state["start"], steps.stop) if state else steps
        if state:
            gentleness = state["gentleness"]
        elif gentleness is None:
            gentleness = gentleness_for(len(self.steps), config)
        self.model, self.gentleness = model, gentleness
        self.config = config = gentler(config, gentleness) if gentleness else config
        self.n_examples = _examples_in(batches) if n_examples is None else n_examples
        self._counted = config.retrain.counted(self.n_examples)
        length = max(1, len(self.steps))
        looks = dataclasses.replace(config.retrain, steps=length, epochs=None).looks
        self._look_after = {self.steps.start + length * look // looks for look in range(1, looks + 1)}
        n_batches = length_of(batches, "the training data")
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
        self._is_stepping = False  # the network's optimizer has not made its step yet
        self._is_checked = group.size == 1  # that the processes train one network
        self.training, self.validation = Losses("training", group), Losses("validation", group)
        self._call: Call | None = None
        self._hook = model.register_forward_pre_hook(self._keep_call, with_kwargs=True)
        self._short = _short(len(self.steps), gentleness)
        if state:
            self._load(state)
        elif self._short and group.is_first:
            warnings.warn(self._short, stacklevel=2)
        self.history = History(
            model, self.prior, hooks, looks, max(1, length // looks), state and state.get("history"), group
        )

    def _keep_call(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Keep the first batch, on which the outputs of the network are compared at the end."""
        if module.training:
            self._call = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
            self._hook.remove()

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

        The gradients of the weights must be those of a mean loss over all batches of the step, of all processes. They
        must not be scaled. What clips them must have done so.
        """
        self.restore_()
        self.history.tell_()
        self._steps_since_end += 1
        self._is_stepping = True
        self._check_together()
        if self._skips and self._has_overflowed():  # the scaler skips the step of the weights, so we skip ours
            return
        self._optimizer.zero_grad()
        if self._is_hard(step):
            add_mean_gradients_(self.prior, self._assigned)
            if self._curvature:
                self._curvature.note_()
        self.prior.add_gradients_(self.config.retrain.tau_at(self._progress(step)), self._counted)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self.config.retrain.decay_at(self._progress(step))
        self._optimizer.step()

    def _check_together(self) -> None:
        """Raise in the first step if each process has gradients of its own, and so would train a network of its own."""
        if self._is_checked:
            return
        self._is_checked = True
        held = (w.grad for w in self.prior.view.tensors if w.grad is not None and not is_sharded(w))
        sizes = torch.stack([torch.zeros((), device=self.prior.means.device), *(grad.float().norm() for grad in held)])
        sizes.nan_to_num_()  # they may have overflowed
        if not torch.equal(-self.group.highest_(-sizes), self.group.highest_(sizes)):
            raise ConfigError(
                "the processes have different gradients, so nothing makes one network of theirs. A Trainer of Hugging "
                "Face does not wrap the network for train() if evaluate() was called before. Set eval_on_start=True "
                "instead"
            )

    def _has_overflowed(self) -> bool:
        """Whether a gradient is not finite, in any process: what a scaler asks of the optimizer's gradients."""
        held = (p.grad for group in self._trained.param_groups for p in group["params"] if p.grad is not None)
        wrong = [(~torch.isfinite(local(grad))).any() for grad in held]
        return bool(wrong) and bool(self.group.highest_(torch.stack(wrong).any().float()))

    def end_step_(self, steps_done: int) -> None:
        """After a step of the network's optimizer. As in the route, some steps end with a look at the weights.

        Those that are not worth their bits become 0. Looks are spread evenly over the run, whatever an epoch is.
        """
        if not self._is_stepping:  # a batch that does not end a step
            return
        self._is_stepping = False
        self.restore_()
        last = steps_done - 1
        if steps_done not in self._look_after:
            return
        if self._curvature and last in self.steps and self._is_hard(last):
            per_epoch = self._steps_per_epoch or max(self._most_steps, self._steps_since_end)
            retrain = self.config.retrain
            price = bit_price(retrain.tau_at(self._progress(last)), retrain, self.n_examples)
            curvatures = self._curvature.estimate(self.n_examples / per_epoch)
            spare_bits_(self.prior, curvatures, price, least_worth(retrain))
        self.prior.choose_method()
        self.history.look_(self.config.retrain.tau_at(self._progress(last)), self._is_hard(last))

    def end_epoch_(self) -> None:
        """After the last step of an epoch: its steps are counted, for data without a length."""
        self._most_steps, self._steps_since_end = max(self._most_steps, self._steps_since_end), 0

    def note_(self, losses: Losses, loss: Tensor | float, step: int) -> None:
        """Take in a loss of the network as it is in this step."""
        if losses is self.validation:
            loss = self.group.mean(float(loss))
            self.history.note_validation_(loss)
        else:
            self.history.note_training_(loss)
        losses.note_(loss, self._progress(step), self._is_hard(step))

    def note_before_(self, loss: Tensor | float) -> None:
        """Take in the loss of a validation before training."""
        loss = self.group.mean(float(loss))
        self.validation.note_(loss, 0.0, quantized=False)
        self.history.note_validation_(loss)

    def compressed(self) -> Compressed:
        return quantize_prior(self.prior, self.config.merge, hard=self.config.retrain.hard_from < 1)

    def finish_(
        self, path: str | os.PathLike[str], before: Evaluation | None = None, after: Evaluation | None = None
    ) -> Compressed:
        """Merge, quantize, simplify and write the file; the network is then what the file decodes to.

        Evaluations of the network before training and at its end judge it by their accuracy, if they have one.

        Each process gets all indices, one byte for each weight, because simplifying needs them.
        """
        device = self.prior.view.tensors[0].device
        self.prior.to(device)  # Lightning has moved the network off the GPU
        self.close_()
        self.prior.current_view().check()  # after a NaN loss there are no weights to write
        compressed = self.compressed()
        whole = compressed.quantized.gathered(compressed.group)
        compressed = dataclasses.replace(compressed, quantized=whole, group=self.group)
        calls: list[Call] = [] if self._call is None else [tree_map(lambda leaf: _to(leaf, device), self._call)]
        simplify = self.config.simplify
        groups = find_groups(self.model, *calls[0])[0] if simplify.fold_batchnorm and calls else ()
        changes = Changes.of(simplify, groups)
        if simplify.symmetries or simplify.fold_batchnorm:
            changes = allowed_by_outputs(self.model, calls, changes, compressed.quantized, self.group)
        compressed = simplified(self.model, compressed, self.config, changes)
        data = compressed.to_bytes()
        if self.group.is_first:
            write_atomic(path, data)
        load_into_(self.model, io.BytesIO(data), strict=not compressed.quantized.dropped)
        compressed = dataclasses.replace(compressed, group=ALONE)  # each process has all of it
        for losses in (self.training, self.validation):
            losses.settle_()
        outcome = outcome_of(self.validation, len(data))
        records = self.history.records
        compressed = dataclasses.replace(compressed, history=records, outcome=outcome, counted="look")
        return self._recorded(self._judged(compressed), before, after)

    def _recorded(self, compressed: Compressed, before: Evaluation | None, after: Evaluation | None) -> Compressed:
        """With the result and the film, as `softshare.compress` returns it. The hooks are told of the result."""
        if not self.group.is_first:
            return by_accuracy(compressed, before, after)
        losses = (self.validation, self.training)
        film, result = self.history.film(compressed), None
        with spared("the final measurement", then="The network is kept, without a result"):
            result = result_of(self.model, compressed, self.config, losses, len(self.steps), self.n_examples)
        if result is None:
            return compressed
        compressed = dataclasses.replace(compressed, record=Record(result, film, self.history.filters))
        compressed = by_accuracy(compressed, before, after)
        for hook in self.history.hooks:
            hook.on_result(compressed, compressed.record.result)
        return compressed

    def _judged(self, compressed: Compressed) -> Compressed:
        """With what is known about the quality of the network. Warns if it seems worse than before."""
        known = [losses for losses in (self.validation, self.training) if losses.are_known]
        tables = [f"{name}.weight" for name, m in self.model.named_modules() if isinstance(m, nn.Embedding)]
        dead = dead_layers(compressed, spared=tables)  # what is added may be 0
        problems = [*(str(losses) for losses in known[:1] if losses.rose), *dead]
        if problems and self.group.is_first:
            text = "the compressed network seems worse than before: " + "; ".join(text.rstrip(".") for text in problems)
            advice = "Evaluate it. To lose less, train longer, give the callback a larger gentleness"
            warnings.warn(f"{text}. {advice}, or use softshare.compress", stacklevel=3)
        unknown = "" if self.validation.are_known else UNKNOWN
        if self.validation.are_known and self.validation.is_guessed:
            unknown = GUESSED
        said = [self._short, *map(str, known), unknown, *dead_messages(compressed), *compressed.messages]
        return dataclasses.replace(compressed, messages=tuple(filter(None, said)))

    def close_(self) -> None:
        """Leave the network with its unquantized weights and without hooks."""
        self.restore_()
        self._hook.remove()
        self.history.end_()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the network, in tensors and plain values. All processes must ask for it.

        If the weights are sharded, the first one has it whole.
        """
        return {
            "start": self.steps.start,
            "gentleness": self.gentleness,
            "most_steps": self._most_steps,
            "steps_since_end": self._steps_since_end,
            "prior": self.prior.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "curvature": self._curvature.state_dict() if self._curvature else None,
            "training": self.training.state_dict(),
            "validation": self.validation.state_dict(),
            "history": self.history.state_dict(),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self._most_steps, self._steps_since_end = state["most_steps"], state["steps_since_end"]
        self.prior.load_state_dict(state["prior"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._curvature and state["curvature"]:  # the checkpoint may come from a run without zeroing
            self._curvature.load_state_dict(state["curvature"])
        self.training.load_state_dict(state["training"])
        self.validation.load_state_dict(state["validation"])


def _to(leaf: Any, device: torch.device) -> Any:
    return leaf.to(device) if isinstance(leaf, Tensor) else leaf


def _short(n_steps: int, gentleness: float) -> str:
    """A sentence about a run that is shorter than the recipe; empty for one that is long enough."""
    wanted = RetrainConfig.steps
    if n_steps >= SHORT * wanted:
        return ""
    fate = "they are made gentler, so expect a larger file" if gentleness else "expect a loss"
    return (
        f"the run has {n_steps} steps, and the settings are made for {wanted}: {fate}; train longer, or use "
        "softshare.compress"
    )


def _examples_in(batches: Any) -> int:
    n_examples = length_of(getattr(batches, "dataset", None), "the dataset")
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
