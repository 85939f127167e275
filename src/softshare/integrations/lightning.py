"""Lightning: a callback that compresses the network while `Trainer.fit` trains it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from softshare.compressed import Compressed
from softshare.config import CompressConfig
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

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")  # without a gradient scaler


class SoftShareCallback(Callback):  # type: ignore[misc]
    """Trains the module under the prior, writes `path` at the end, and loads the file back into the module.

    `n_examples` is the number of examples per epoch that the loss averages over (default: the length of the dataset).
    `gentleness` says how much gentler than `config` the run is (default: by its number of steps; 0: as `config` says).
    `hooks` are those of `compress`, and see a record per look.

    In the hard phase, validation uses the quantized network. After `fit`, `compressed` is what `compress` would return,
    with its messages, outcome, summary and report. The metric is the validation loss, if there is one before and at the
    end, and otherwise the training loss.
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
        )
        if self._validated is not None and not self._loaded:
            self._sharing.note_before_(self._validated)
        self._loaded = self._validated = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._sharing:
            self._sharing.quantize_(trainer.global_step)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._sharing:
            self._sharing.restore_()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if self._sharing:
            self._sharing.step_(trainer.global_step)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._sharing:
            self._sharing.quantize_(trainer.global_step - 1)  # as in the last step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._sharing:
            if isinstance(outputs, Mapping) and "loss" in outputs:
                self._sharing.note_(self._sharing.training, outputs["loss"], trainer.global_step - 1)
            self._sharing.end_step_(trainer.global_step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loss = trainer.callback_metrics.get("val_loss")
        if self._sharing:
            self._sharing.restore_()
            if loss is not None:
                self._sharing.note_(self._sharing.validation, loss, trainer.global_step - 1)
        elif loss is not None and not trainer.sanity_checking:
            self._validated = loss

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._sharing:
            self._sharing.end_epoch_()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._sharing:
            self._sharing.close_()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._sharing:  # not in on_train_end: other callbacks may then still save a checkpoint to resume from
            self.compressed = self._sharing.finish_(self.path)
            self._sharing = None

    def state_dict(self) -> dict[str, Any]:
        return self._sharing.state_dict() if self._sharing else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict


def _check_supported(trainer: Trainer, module: LightningModule) -> None:
    strategy = type(trainer.strategy).__name__
    if strategy != "SingleDeviceStrategy":
        raise ConfigError(f"strategy: expected SingleDeviceStrategy, got {strategy}; the callback trains on one device")
    if trainer.precision not in PRECISIONS:
        raise ConfigError(
            f"precision: expected one without a gradient scaler ({', '.join(PRECISIONS)}), got {trainer.precision}"
        )
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
