"""Hugging Face: a callback that compresses the network while `Trainer.train` trains it, and folders to keep it in."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from softshare._util.files import read_bytes, write_atomic
from softshare.compressed import Compressed
from softshare.config import CompressConfig
from softshare.distributed.group import ALONE, Group, world
from softshare.errors import ConfigError, NotAvailableError
from softshare.integrations.evaluation import Evaluation, by_accuracy
from softshare.integrations.pretrained import from_pretrained, save_pretrained
from softshare.integrations.session import Sharing, checked
from softshare.prior.prior import MixturePrior
from softshare.train.hooks import Hook

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise NotAvailableError(
        "the Trainer's callback needs transformers and accelerate: pip install 'softshare[huggingface]'"
    ) from error

__all__ = ["SoftShareCallback", "from_pretrained", "save_pretrained"]

STATE = "softshare.pt"  # in a checkpoint's folder


class SoftShareCallback(TrainerCallback):  # type: ignore[misc]
    """Trains the model under the prior, writes `path` at the end, and loads the file back into the model.

    `n_examples` is the number of examples per epoch that the loss averages over (default: the length of the dataset).
    For a language model, whose loss is a mean over tokens, give the number of tokens. `gentleness` says how much
    gentler than `config` the run is (default: by its number of steps; 0: as `config` says). `hooks` are those of
    `compress`, and see a record per look.

    Under DDP and FSDP2, every process has the callback. The first one has the hooks and result, and writes the file.

    In the hard phase, evaluation uses the quantized network. After `train`, `compressed` is what `compress` would
    return, with its messages, outcome, summary and report. The metric is the accuracy of `compute_metrics`, if the
    Trainer evaluates before training and at its end, or directly after it. Otherwise it is the validation loss, and
    without one the training loss.
    """

    compressed: Compressed | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: CompressConfig | None = None,
        n_examples: int | None = None,
        gentleness: float | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self.path, self.config, self.n_examples = path, checked(config, path), n_examples
        self.gentleness, self.hooks = gentleness, hooks
        self._evaluated: float | None = None  # the loss of an evaluation before training
        self._before: Evaluation | None = None
        self._after: Evaluation | None = None  # of the network that the file holds
        self._last: Evaluation | None = None  # outside of training or at its end
        self._sharing: Sharing | None = None
        self._hooks: list[Any] = []

    @property
    def prior(self) -> MixturePrior | None:
        """The prior during training; None at other times."""
        return self._sharing.prior if self._sharing else None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        train_dataloader: Any,
        **others: Any,
    ) -> None:
        self._let_go_()  # of an earlier run that ended with an error
        self._before, self._after = None if state.global_step else self._last, None
        _check_supported(args, state, model)
        group = world() if args.world_size > 1 else ALONE
        kept = None
        if state.global_step:
            kept = _loaded(Path(args.resume_from_checkpoint or _checkpoint(args, state)) / STATE, group)
        if kept and (measured := kept.pop("evaluation", None)):
            self._before = Evaluation(*measured)
        self._sharing = sharing = Sharing(
            model,
            self.config,
            range(state.global_step, state.max_steps),
            optimizer,
            train_dataloader,
            args.gradient_accumulation_steps,
            self.n_examples,
            self.gentleness,
            kept,
            self.hooks,
            group,
            skips=getattr(optimizer, "scaler", None) is not None,
        )
        if self._evaluated is not None and not state.global_step:
            sharing.note_before_(self._evaluated)
        self._evaluated = None

        def before(module: nn.Module, inputs: Any) -> None:
            if not module.training:  # evaluation: no callback is told that it starts
                sharing.quantize_(state.global_step - 1)  # as in the last step

        def after(module: nn.Module, inputs: Any, outputs: Any) -> None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
            if not module.training:
                sharing.restore_()
                if loss is not None:
                    sharing.validation.note_batch_(loss)
            elif loss is not None:
                sharing.note_(sharing.training, loss, state.global_step)

        self._hooks = [
            model.register_forward_pre_hook(before, prepend=True),  # before FSDP2 gathers the weights
            model.register_forward_hook(after, always_call=True),
        ]

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if self._sharing:
            self._sharing.quantize_(state.global_step)

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        optimizer: Any = None,
        **others: Any,
    ) -> None:
        if self._sharing:
            scaler = getattr(optimizer, "scaler", None)
            if scaler is not None:
                with suppress(RuntimeError):  # the Trainer may have done it, to clip the gradients or to log their norm
                    scaler.unscale_(optimizer.optimizer)
            self._sharing.step_(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if self._sharing:
            self._sharing.end_step_(state.global_step)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if self._sharing:
            self._sharing.end_epoch_()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float],
        eval_dataloader: Any = None,
        **others: Any,
    ) -> None:
        measured = Evaluation.of(metrics, eval_dataloader)
        if self._sharing is None:
            if self.compressed is not None and self._after is None:
                self.compressed, self._after = by_accuracy(self.compressed, self._before, measured), measured
            self._last = measured
        elif state.global_step == 0:
            self._before = measured
        elif state.global_step >= state.max_steps:
            self._after = self._last = measured
        loss = metrics.get("eval_loss")
        if loss is not None and self._sharing:
            self._sharing.note_(self._sharing.validation, loss, state.global_step - 1)
        elif loss is not None:
            self._evaluated = loss

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if self._sharing:
            found = self._sharing.state_dict()
            if self._before:
                found["evaluation"] = [self._before.values, self._before.n_examples]
            if self._sharing.group.is_first:
                buffer = io.BytesIO()
                torch.save(found, buffer)
                write_atomic(_checkpoint(args, state) / STATE, buffer.getvalue())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        sharing = self._let_go_()
        if sharing:
            self.compressed = sharing.finish_(self.path, self._before, self._after)

    def _let_go_(self) -> Sharing | None:
        sharing, self._sharing = self._sharing, None
        if sharing:
            sharing.close_()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        return sharing


def _loaded(file: Path, group: Group) -> dict[str, Any] | None:
    """What the first process reads, for all."""
    state: dict[str, Any] | None = None
    if group.is_first and file.exists():
        state = torch.load(io.BytesIO(read_bytes(file)), map_location="cpu", weights_only=True)
    state = group.first(state)
    if state is not None or not group.is_first:
        return state
    warnings.warn(
        f"there is no {file}: the mixture starts again from the checkpoint's weights, and tau warms up over the "
        "remaining steps. If the checkpoint is in another folder, also give that folder as "
        "TrainingArguments(resume_from_checkpoint=...), because the Trainer does not pass it to callbacks",
        stacklevel=2,
    )
    return None


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _is_first_fsdp(module: nn.Module) -> bool:
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    return kind is not None and isinstance(module, kind)


def _check_supported(args: TrainingArguments, state: TrainerState, model: nn.Module) -> None:
    mode = args.parallel_mode.value
    if mode not in ("not_parallel", "distributed") or args.deepspeed or any(map(_is_first_fsdp, model.modules())):
        raise ConfigError(
            f"expected one device for each process, by DDP or FSDP2, got {mode}, DeepSpeed or the first FSDP; start "
            "the script with torchrun"
        )
    if args.load_best_model_at_end:
        raise ConfigError(
            "load_best_model_at_end: the mixture would belong to another step than the model; set it to False"
        )
    if state.is_hyper_param_search:
        raise ConfigError("hyperparameter_search: all trials would write the same file; use softshare tune")
