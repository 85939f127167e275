"""The callback in Lightning's real Trainer: the training of the route, files, checkpoints, refusals."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import softshare as ss
from softshare.errors import ConfigError, ModelError
from softshare.integrations import TensorBoardLog
from softshare.integrations.lightning import SoftShareCallback
from softshare.train.curvature import Curvature
from softshare.verdict import verdict
from softshare.zoo.datasets import load_mnist
from trained import BATCH, EPOCHS, RATE, N, config, data, error, make_net, make_task, prior_gradients

pytestmark = [
    pytest.mark.slow,  # Lightning takes seconds to import
    pytest.mark.filterwarnings("ignore:the run has .* steps"),
    pytest.mark.filterwarnings("ignore:the compressed network seems worse"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*is smaller than the logging interval.*"),
]


def as_callback(settings: ss.CompressConfig) -> ss.CompressConfig:
    """For a run of the route like that of a callback: as long, with tau relative to the data."""
    return settings.override(steps=EPOCHS * N // BATCH, scaling="paper")


def make_callback(file: Path, settings: ss.CompressConfig, n_examples: int | None = None) -> SoftShareCallback:
    """One with the settings as they are."""
    return SoftShareCallback(file, as_callback(settings), n_examples, gentleness=0.0)


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss: Tensor = self.net(*batch)["loss"]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), RATE)


def loader(size: int = BATCH) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data()), batch_size=size)


def make_trainer(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    options = {"max_epochs": EPOCHS, "enable_checkpointing": False, **quiet, **options}
    return pl.Trainer(callbacks=list(callbacks), **options)


class Falling(Module):
    """The learning rate of the weights falls by the same cosine as in the route."""

    def configure_optimizers(self) -> Any:
        optimizer, steps = super().configure_optimizers(), EPOCHS * N // BATCH
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}


def test_it_ends_as_the_route_does(tmp_path: Path) -> None:
    """Half batches, two to a step: soft steps, hard steps and zeroing are those of `compress` on whole ones."""
    settings = config(zeroing=30.0, schedule="cosine")
    callback = make_callback(tmp_path / "model.sws", settings)
    make_trainer(callback, accumulate_grad_batches=2).fit(Falling(), loader(BATCH // 2))
    assert callback.compressed is not None
    expected = ss.compress(make_task(), as_callback(settings), target=None).retrained
    other = ss.compress(make_task(), as_callback(config(zeroing=0.0, schedule="cosine")), target=None).retrained
    for name, wanted in expected.items():
        torch.testing.assert_close(callback.compressed.retrained[f"net.{name}"], wanted, atol=1e-3, rtol=1e-3)
    assert any(not torch.allclose(other[name], wanted, atol=1e-2) for name, wanted in expected.items())


def test_the_file_is_sparse_and_the_module_is_what_it_decodes_to(tmp_path: Path) -> None:
    module, file = Module(), tmp_path / "model.sws"
    before = error(module.net)
    callback = make_callback(file, config())
    make_trainer(callback).fit(module, loader())
    assert error(module.net) <= before + 2
    fresh = Module()
    ss.load_into_(fresh, file)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name])
    assert callback.compressed is not None
    assert file.read_bytes() == callback.compressed.to_bytes()
    weight = fresh.net.first.weight
    assert 0 < int((weight != 0).sum()) < 0.25 * weight.numel()
    assert len(weight.unique()) <= 5  # four components and zero


class Recorder(pl.Callback):  # type: ignore[misc]
    """Notes the gradients of the task, and computes those of the prior. The module's optimizer sees the sum."""

    def __init__(self) -> None:
        self.callback: SoftShareCallback | None = None
        self.task: list[Tensor] = []
        self.expected: list[Tensor] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        assert self.callback
        prior = self.callback.prior
        assert prior
        self.task = [w.grad.clone() for w in prior.view.tensors if w.grad is not None]
        self.expected = prior_gradients(prior, tau=0.5)


class Looking(Module):
    added: float = 0.0
    n_seen = 0

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.register_step_post_hook(self.look)
        return optimizer

    def look(self, *_: Any) -> None:
        assert self.recorder.callback
        prior = self.recorder.callback.prior
        assert prior
        most = self.trainer.gradient_clip_val
        size = torch.stack([g.norm() for g in self.recorder.task]).norm()
        share = min(1.0, most / float(size)) if most else 1.0
        for w, task, expected in zip(prior.view.tensors, self.recorder.task, self.recorder.expected, strict=True):
            assert w.grad is not None
            torch.testing.assert_close((w.grad - share * task).double(), expected, atol=1e-6, rtol=1e-3)
            self.added = max(self.added, float(expected.abs().max()))
            self.n_seen += 1


def scaled(scaler: torch.amp.GradScaler | None = None) -> pl.plugins.MixedPrecision:
    """The plugin that Lightning has for 16-mixed on a GPU."""
    return pl.plugins.MixedPrecision("16-mixed", "cpu", scaler or torch.amp.GradScaler("cpu", init_scale=64.0))


@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 1e-3}, {"accumulate_grad_batches": 2}, {"plugins": 1}])
def test_what_is_added_to_the_gradients_is_the_priors(options: dict[str, Any], tmp_path: Path) -> None:
    """Once for a step, after what clips and unscales the gradients of the task."""
    options = {**options, "plugins": scaled()} if options.get("plugins") else options
    recorder = Recorder()
    recorder.callback = make_callback(tmp_path / "model.sws", config(tau=0.5, tau_warmup=0.0))
    module = Looking(recorder)
    make_trainer(recorder, recorder.callback, max_epochs=2, limit_train_batches=4, **options).fit(module, loader())
    assert module.added > 1e-3
    assert module.n_seen == 4 * 8 // options.get("accumulate_grad_batches", 1)
    assert "configure_gradient_clipping" not in vars(module)


class Overflowing(Module):
    """The loss is too large for float16 in the second step."""

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return super().training_step(batch, index) * (float("inf") if index == 1 else 1.0)


class Mixtures(pl.Callback):  # type: ignore[misc]
    def __init__(self, callback: SoftShareCallback) -> None:
        self.callback, self.means, self.weights = callback, list[Tensor](), list[Tensor]()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self.callback.prior
        self.means.append(self.callback.prior.means.detach().clone())
        self.weights.append(pl_module.net.first.weight.detach().clone())


def test_a_step_that_the_scaler_skips_trains_no_mixture(tmp_path: Path) -> None:
    callback = make_callback(tmp_path / "model.sws", config(hard_from=0.0, zeroing=0.0))
    seen = Mixtures(callback)
    trainer = make_trainer(callback, seen, max_epochs=1, limit_train_batches=4, plugins=scaled())
    trainer.fit(Overflowing(), loader())
    for values in (seen.means, seen.weights):
        assert [torch.equal(a, b) for a, b in itertools.pairwise(values)] == [True, False, False]


class Averaging(pl.callbacks.WeightAveraging):  # type: ignore[misc]
    def __init__(self) -> None:
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        super().__init__(multi_avg_fn=average)


def test_the_mean_of_the_weights_is_validated_and_written_as_it_is_quantized(tmp_path: Path) -> None:
    """Lightning puts in the mean before a validation and at the end. Its order among the callbacks does not matter."""
    files = []
    for order in (1, -1):
        module, averaging = Validated(), Averaging()
        callback = make_callback(tmp_path / "model.sws", config(hard_from=0.5))
        trainer = make_trainer(*[averaging, callback][::order], max_epochs=4)
        trainer.fit(module, loader(), loader(N))
        assert [n > 100 for n in module.n_values] == [True, True, True, False, False]
        assert callback.compressed
        mean = dict(averaging._average_model.module.named_parameters())
        for name, values in callback.compressed.retrained.items():
            assert torch.equal(values, mean[name])
        assert len(module.net.first.weight.unique()) <= 5
        files.append((tmp_path / "model.sws").read_bytes())
    assert files[0] == files[1]


class Validated(Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_values: list[int] = []  # of the first layer's weights, at each validation

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.n_values.append(len(self.net.first.weight.unique()))


def test_validation_is_of_the_quantized_network_and_checkpoints_are_not(tmp_path: Path) -> None:
    module = Validated()
    saved = pl.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1)
    callback = make_callback(tmp_path / "model.sws", config(hard_from=0.5))
    trainer = make_trainer(callback, saved, max_epochs=4, enable_checkpointing=True)
    trainer.fit(module, loader(), loader(N))
    # before training, and after each epoch
    assert [n > 100 for n in module.n_values] == [True, True, True, False, False]
    for file in tmp_path.glob("*.ckpt"):
        state = torch.load(file, weights_only=True)["state_dict"]
        assert len(state["net.first.weight"].unique()) > 100


@pytest.mark.filterwarnings("ignore:.*Checkpoint directory.*exists and is not empty")
def test_a_resumed_run_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    settings = config(schedule="cosine", zeroing=30.0)
    whole, again = (make_callback(tmp_path / f"{name}.sws", settings) for name in ("whole", "again"))
    for callback, checkpoint in ((whole, None), (again, tmp_path / "epoch=2.ckpt")):
        saved = pl.callbacks.ModelCheckpoint(tmp_path, every_n_epochs=3, save_top_k=-1, filename="{epoch}")
        trainer = make_trainer(callback, saved, max_epochs=6, enable_checkpointing=True)
        trainer.fit(Module(), loader(), ckpt_path=checkpoint)
    assert whole.compressed
    assert again.compressed
    for name, tensor in whole.compressed.retrained.items():
        assert torch.equal(again.compressed.retrained[name], tensor), name
    assert (tmp_path / "again.sws").read_bytes() == (tmp_path / "whole.sws").read_bytes()


class Failing(Module):
    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss = super().training_step(batch, index)
        if self.trainer.global_step == 20:
            raise RuntimeError("the data are gone")
        return loss


def test_after_an_error_the_weights_are_the_unquantized_ones(tmp_path: Path) -> None:
    module = Failing()
    with pytest.raises(RuntimeError, match="the data are gone"):
        make_trainer(make_callback(tmp_path / "model.sws", config(hard_from=0.0))).fit(module, loader())
    assert len(module.net.first.weight.unique()) > 100
    assert not (tmp_path / "model.sws").exists()


def test_frozen_layers_do_not_change(tmp_path: Path) -> None:
    module = Module()
    module.net.first.requires_grad_(False)
    before = module.net.first.weight.clone()
    make_trainer(make_callback(tmp_path / "model.sws", config()), max_epochs=2).fit(module, loader())
    assert torch.equal(ss.load(tmp_path / "model.sws")["net.first.weight"], before)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions(precision: str, tmp_path: Path) -> None:
    module = Module()
    make_trainer(make_callback(tmp_path / "model.sws", config()), precision=precision).fit(module, loader())
    assert error(module.net.float()) < 10


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Any:
        return iter(zip(*data(), strict=True))


def test_data_without_a_length_need_n_examples(tmp_path: Path) -> None:
    stream = DataLoader(Endless(), batch_size=BATCH)
    with pytest.raises(ConfigError, match=r"n_examples: .* give the number to the callback"):
        make_trainer(make_callback(tmp_path / "model.sws", config()), max_steps=32).fit(Module(), stream)
    make_trainer(make_callback(tmp_path / "model.sws", config(), N), max_steps=32).fit(Module(), stream)
    assert ss.inspect(tmp_path / "model.sws").file_bytes


def test_steps_of_an_epoch_are_counted_if_data_have_no_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeroing needs the size of a batch, and so the steps of an epoch, not of the run. The last epoch is cut short.

    In the first epoch the steps so far count. A batch that is taken for larger than it is saves weights from zeroing.
    """
    sizes, estimate = [], Curvature.estimate

    def noted(curvature: Curvature, batch_size: float) -> list[Tensor]:
        sizes.append(batch_size)
        return estimate(curvature, batch_size)

    monkeypatch.setattr(Curvature, "estimate", noted)
    callback = make_callback(tmp_path / "model.sws", config(zeroing=0.3, hard_from=0.0), N)
    make_trainer(callback, max_steps=5 * N // BATCH // 2).fit(Module(), DataLoader(Endless(), batch_size=BATCH))
    assert sizes == [N / 4, N / 8, N / 12, *[BATCH] * 7]


class Manual(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class ByLBFGS(Module):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.parameters())


class HeadOnly(Module):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.net.last.parameters())


class Other(pl.strategies.SingleDeviceStrategy):  # type: ignore[misc]
    pass


class Broken(Module):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        nn.init.constant_(self.net.first.weight, float("nan"))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After an error in a run by DDP, Lightning leaves a process group and environment variables. Remove both."""
    with patch.dict(os.environ):
        yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.filterwarnings("ignore:.*max_epochs.*:UserWarning")
@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Module, {"precision": "16-true"}, "precision: expected one of .* got 16-true"),
        (Module, {"max_epochs": -1}, "expected a run with an end"),
        (Module, {"strategy": Other(), "devices": 1}, "strategy: expected one of SingleDeviceStrategy, .*, got Other"),
        (Manual, {}, "automatic_optimization: expected True, got False"),
        (ByLBFGS, {}, "LBFGS"),
        (HeadOnly, {}, "net.first.weight, net.first.bias: the optimizer does not train these shared tensors"),
    ],
)
def test_unsupported_options_are_refused_before_any_step(
    module: type[Module], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(make_callback(tmp_path / "model.sws", config()), **options).fit(module(), loader())


def test_weights_that_became_nan_are_not_written(tmp_path: Path) -> None:
    callback = make_callback(tmp_path / "model.sws", config())
    with pytest.raises(ModelError, match=r"net\.first\.weight: .*192 of 192 .*NaN"):
        make_trainer(callback, max_steps=1).fit(Broken(), loader())
    assert not (tmp_path / "model.sws").exists()


def python(code: str, *path: Path) -> str:
    lines = f"import sys; sys.path[:0] = {[str(p) for p in path]}\n{code}"
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True).stdout


def test_without_lightning() -> None:
    code = (
        "sys.modules['pytorch_lightning'] = sys.modules['lightning'] = None\n"
        "from softshare.errors import NotAvailableError\n"
        "try: import softshare.integrations.lightning\n"
        "except NotAvailableError as error: print(error)"
    )
    assert python(code) == "the Lightning callback needs Lightning: pip install 'softshare[lightning]'\n"


def test_lightning_under_its_other_name(tmp_path: Path) -> None:
    (tmp_path / "lightning").mkdir()
    (tmp_path / "lightning" / "__init__.py").touch()
    (tmp_path / "lightning" / "pytorch.py").write_text("class Callback: ...\n")
    code = (
        "import lightning.pytorch\n"
        "from softshare.integrations.lightning import SoftShareCallback\n"
        "print(issubclass(SoftShareCallback, lightning.pytorch.Callback))"
    )
    assert python(code, tmp_path) == "True\n"


@pytest.mark.filterwarnings("ignore:.*Checkpoint directory.*exists and is not empty")
def test_a_run_can_resume_from_the_last_checkpoint(tmp_path: Path) -> None:
    """It may be saved after training has ended. It holds the unquantized weights and the mixture."""
    callback = make_callback(tmp_path / "model.sws", config(hard_from=0.5))
    saved = pl.callbacks.ModelCheckpoint(tmp_path, save_last=True, every_n_epochs=5, save_top_k=0)
    module = Module()
    make_trainer(callback, saved, max_epochs=2, enable_checkpointing=True).fit(module, loader())
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert len(checkpoint["state_dict"]["net.first.weight"].unique()) > 100
    assert len(module.net.first.weight.unique()) <= 5
    again = make_callback(tmp_path / "again.sws", config(hard_from=0.5))
    trainer = make_trainer(again, saved, max_epochs=3, enable_checkpointing=True)
    trainer.fit(Module(), loader(), ckpt_path=tmp_path / "last.ckpt")
    assert trainer.global_step == 3 * N // BATCH
    assert again.compressed


class Digits(pl.LightningModule):  # type: ignore[misc]
    """A network with batch norm for 1,200 small images of digits, trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        first = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        then = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
        self.net = nn.Sequential(first, then, nn.Flatten(), nn.Linear(32, 10))
        (self.train_data, self.others) = (
            TensorDataset(nn.functional.avg_pool2d(part.images[:n], 4), part.labels[:n])
            for part, n in zip(load_mnist(), (1200, 2000), strict=False)
        )

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 2e-3)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train_data, batch_size=32, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.others, batch_size=1000)

    @torch.no_grad()
    def error(self) -> float:
        x, labels = self.others.tensors
        return 100 * float((self.net.eval()(x).argmax(1) != labels).float().mean())


def test_digits_end_as_they_began_or_the_callback_warns(tmp_path: Path) -> None:
    trained = Digits()
    make_trainer(max_epochs=15).fit(trained)
    before = trained.error()
    for gentleness, is_kept in ((None, True), (0.0, False)):
        module = Digits()
        module.load_state_dict(trained.state_dict())
        callback = SoftShareCallback(tmp_path / "model.sws", gentleness=gentleness)
        trainer = make_trainer(callback, max_epochs=4)
        trainer.validate(module, verbose=False)
        with pytest.warns(UserWarning, match="the run has 152 steps") as caught:
            trainer.fit(module)
        worse = [w for w in caught if "seems worse than before: validation loss" in str(w.message)]
        assert callback.compressed
        assert any(text.startswith("validation loss") for text in callback.compressed.messages)
        assert (not worse) == is_kept
        assert (module.error() < before + 1.5) == is_kept
        assert (tmp_path / "model.sws").stat().st_size < 4 * sum(p.numel() for p in module.parameters()) / 3


class LoggingLoss(Module):
    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val_loss", self.net(*batch)["loss"])


def test_it_returns_what_compress_returns(tmp_path: Path) -> None:
    """And shows its hooks a run as the route's. A run that goes on has one history."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    held_out = DataLoader(TensorDataset(*data(1)), batch_size=N)
    module, log = LoggingLoss(), TensorBoardLog(tmp_path / "events", ss.Metric("loss", ""))
    settings = as_callback(config(tau=1e-4))
    callback = SoftShareCallback(tmp_path / "model.sws", settings, gentleness=4.0, hooks=[log])
    trainer = make_trainer(callback, max_epochs=5)
    before = float(trainer.validate(module, held_out, verbose=False)[0]["val_loss"])
    trainer.fit(module, loader(), held_out)
    compressed = callback.compressed
    assert compressed is not None
    assert compressed.outcome is not None
    assert compressed.outcome.before == pytest.approx(before)
    assert compressed.outcome.after == pytest.approx(compressed.history[-1].validation_error)
    assert [record.epoch for record in compressed.history] == list(range(11))
    assert compressed.history[0].validation_error == pytest.approx(before)
    assert verdict(compressed.record.result).fate == ("kept" if compressed.outcome.kept else "lost")
    said = " ".join(compressed.summary().split())
    assert said.startswith(verdict(compressed.record.result).sentence)
    assert compressed.report(tmp_path / "report").exists()
    read = EventAccumulator(str(tmp_path / "events"))
    read.Reload()
    assert len(read.Scalars("validation_loss")) == 11
    assert read.Scalars("final/loss_before")[0].value == pytest.approx(before)
    assert (tmp_path / "events" / "model.sws").read_bytes() == (tmp_path / "model.sws").read_bytes()
