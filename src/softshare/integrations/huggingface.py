"""Hugging Face: a callback that compresses the network while `Trainer.train` trains it, and folders to keep it in."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from softshare._util.files import read_bytes, write_atomic
from softshare.compressed import Compressed
from softshare.config import CompressConfig
from softshare.errors import ConfigError, NotAvailableError
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

    In the hard phase, evaluation uses the quantized network. After `train`, `compressed` is what `compress` would
    return, with its messages, outcome, summary and report. The metric is the validation loss, if there is one before
    and at the end, and otherwise the training loss.
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
        _check_supported(args, state)
        self._sharing = sharing = Sharing(
            model,
            self.config,
            range(state.global_step, state.max_steps),
            optimizer,
            train_dataloader,
            args.gradient_accumulation_steps,
            self.n_examples,
            self.gentleness,
            _loaded(Path(args.resume_from_checkpoint or _checkpoint(args, state)) / STATE)
            if state.global_step
            else None,
            self.hooks,
        )
        if self._evaluated is not None and not state.global_step:
            sharing.note_before_(self._evaluated)
        self._evaluated = None

        def before(module: nn.Module, inputs: Any) -> None:
            if not module.training:  # evaluation: no callback is told that it starts
                sharing.quantize_(state.global_step - 1)  # as in the last step

        def after(module: nn.Module, inputs: Any, outputs: Any) -> None:
            if not module.training:
                sharing.restore_()
            elif isinstance(outputs, Mapping) and outputs.get("loss") is not None:
                sharing.note_(sharing.training, outputs["loss"], state.global_step)

        self._hooks = [model.register_forward_pre_hook(before), model.register_forward_hook(after, always_call=True)]

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if self._sharing:
            self._sharing.quantize_(state.global_step)

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        if self._sharing:
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
        **others: Any,
    ) -> None:
        loss = metrics.get("eval_loss")
        if loss is not None and self._sharing:
            self._sharing.note_(self._sharing.validation, loss, state.global_step - 1)
        elif loss is not None:
            self._evaluated = loss

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if self._sharing:
            buffer = io.BytesIO()
            torch.save(self._sharing.state_dict(), buffer)
            write_atomic(_checkpoint(args, state) / STATE, buffer.getvalue())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        sharing = self._let_go_()
        if sharing:
            self.compressed = sharing.finish_(self.path)

    def _let_go_(self) -> Sharing | None:
        sharing, self._sharing = self._sharing, None
        if sharing:
            sharing.close_()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        return sharing


def _loaded(file: Path) -> dict[str, Any] | None:
    if file.exists():
        state: dict[str, Any] = torch.load(io.BytesIO(read_bytes(file)), map_location="cpu", weights_only=True)
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


def _check_supported(args: TrainingArguments, state: TrainerState) -> None:
    if args.parallel_mode.value != "not_parallel" or args.deepspeed or args.fsdp:
        raise ConfigError(
            "expected training on one device, got several, DeepSpeed or FSDP; the callback supports one device only"
        )
    if args.fp16:
        raise ConfigError("fp16: it scales the gradients of the task, but not those of the prior; use bf16 or float32")
    if args.load_best_model_at_end:
        raise ConfigError(
            "load_best_model_at_end: the mixture would belong to another step than the model; set it to False"
        )
    if state.is_hyper_param_search:
        raise ConfigError("hyperparameter_search: all trials would write the same file; use softshare tune")
