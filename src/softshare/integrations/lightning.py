"""Lightning: a callback that compresses the network while `Trainer.fit` trains it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from softshare.compressed import Compressed
from softshare.config import CompressConfig
from softshare.distributed.group import ALONE, world
from softshare.errors import ConfigError, NotAvailableError
from softshare.integrations.session import Sharing, checked
from softshare.prior.prior import MixturePrior
from softshare.train.hooks import Hook

if TYPE_CHECKING:
    from pytorch_lightning import Callback, LightningModule, Trainer
else:
    # Lightning has two package names, and neither accepts the other's classes. Prefer the imported one.
    names = ["pytorch_lightning", "lightning.pytorch"]
    names.sort(key=lambda name: name not in sys.modules)
    found = [name for name in names if find_spec(name.partition(".")[0])]
    if not found:
        raise NotAvailableError("the Lightning callback needs Lightning: pip install 'softshare[lightning]'")
    Callback = import_module(found[0]).Callback

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed")
STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy")


class SoftShareCallback(Callback):  # type: ignore[misc]
    """Trains the module under the prior, writes `path` at the end, and loads the file back into the module.

    `n_examples` is the number of examples per epoch that the loss averages over (default: the length of the dataset).
    `gentleness` says how much gentler than `config` the run is (default: by its number of steps; 0: as `config` says).
    `hooks` are those of `compress`, and see a record per look.

    Under DDP and FSDP2, every process has the callback. The first one has the hooks and result, and writes the file.

    In the hard phase, validation uses the quantized network. After `fit`, `compressed` is what `compress` would return,
    with its messages, outcome, summary and report. The metric is the validation loss, if there is one before and at the
    end, and otherwise the training loss. How much of a change is chance is known if `validation_step` returns the loss.
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
        self._validated: Any = None  # the loss of a validation before training
        self._sharing: Sharing | None = None
        self._loaded: dict[str, Any] | None = None  # from a checkpoint, until training starts
        self._clipped = ExitStack()  # the module's clipping, as it is without us

    @property
    def prior(self) -> MixturePrior | None:
        """The prior during training; None at other times."""
        return self._sharing.prior if self._sharing else None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _check_supported(trainer, pl_module)
        self._sharing = Sharing(
            pl_module,
            self.config,
            range(trainer.global_step, int(trainer.estimated_stepping_batches)),
            trainer.optimizers[0],
            trainer.train_dataloader,
            trainer.accumulate_grad_batches,
            self.n_examples,
            self.gentleness,
            self._loaded,
            self.hooks,
            world() if trainer.world_size > 1 else ALONE,
            skips=_scaler(trainer) is not None,
        )
        self._follow_clipping(trainer, pl_module)
        if self._validated is not None and not self._loaded:
            self._sharing.note_before_(self._validated)
        self._loaded = self._validated = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._sharing:
            self._sharing.quantize_(trainer.global_step)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._sharing:
            self._sharing.restore_()

    def _follow_clipping(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the prior's gradients once those of the task are clipped. No callback is told when that is."""
        clip = pl_module.configure_gradient_clipping

        def then(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            scaler = _scaler(trainer)
            if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
                scaler.unscale_(optimizer)  # a fused optimizer would do it in its step
            clip(optimizer, *args, **kwargs)
            if self._sharing:
                self._sharing.step_(trainer.global_step)

        pl_module.configure_gradient_clipping = then
        self._clipped.callback(delattr, pl_module, "configure_gradient_clipping")

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._sharing:  # for each batch, because at the start another callback may put in the mean of the weights
            self._sharing.quantize_(trainer.global_step - 1)  # as in the last step

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._sharing:
            self._sharing.restore_()
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if isinstance(loss, torch.Tensor) and not dataloader_idx:
                self._sharing.validation.note_batch_(loss)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._sharing:
            if isinstance(outputs, Mapping) and "loss" in outputs:
                loss = outputs["loss"] * trainer.accumulate_grad_batches  # by which Lightning has divided it
                self._sharing.note_(self._sharing.training, loss, trainer.global_step - 1)
            self._sharing.end_step_(trainer.global_step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loss = trainer.callback_metrics.get("val_loss")
        if self._sharing:
            if loss is not None:
                self._sharing.note_(self._sharing.validation, loss, trainer.global_step - 1)
        elif loss is not None and not trainer.sanity_checking:
            self._validated = loss

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._sharing:
            self._sharing.end_epoch_()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._clipped.close()
        if self._sharing:
            self._sharing.close_()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._clipped.close()
        if self._sharing:  # not in on_train_end: other callbacks may then still save a checkpoint to resume from
            self.compressed = self._sharing.finish_(self.path)
            self._sharing = None

    def state_dict(self) -> dict[str, Any]:
        return self._sharing.state_dict() if self._sharing else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict


def _scaler(trainer: Trainer) -> Any:
    """The gradient scaler, if the precision has one."""
    return getattr(trainer.precision_plugin, "scaler", None)


def _check_supported(trainer: Trainer, module: LightningModule) -> None:
    strategy = type(trainer.strategy).__name__
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {strategy}")
    if trainer.precision not in PRECISIONS:
        raise ConfigError(f"precision: expected one of {', '.join(PRECISIONS)}, got {trainer.precision}")
    if not module.automatic_optimization:
        raise ConfigError(
            "automatic_optimization: expected True, got False; in your own loop, use softshare.MixturePrior"
        )
    if isinstance(trainer.optimizers[0], torch.optim.LBFGS):
        raise ConfigError("LBFGS computes several gradients per step, which no callback sees; use another optimizer")
    if trainer.estimated_stepping_batches == float("inf"):
        raise ConfigError(
            "expected a run with an end, over which tau warms up; give the Trainer max_epochs or max_steps"
        )
