"""What the tests of Lightning's callback run in each of several processes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import softshare as ss
from callbacks_together import CLIP, GENTLE, SETTINGS, SHORT, STEPS, VARIANTS, as_torchrun, found_of
from softshare.integrations.lightning import SoftShareCallback
from trained import BATCH, EPOCHS, RATE, N, data, make_net


class Module(pl.LightningModule):  # type: ignore[misc]
    """Its learning rate falls as in the route. Its first layer is sharded by itself, if the strategy shards."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            mesh = self.device_mesh["data_parallel"]
            fully_shard(self.net.first, mesh=mesh)
            fully_shard(self.net, mesh=mesh)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss: Tensor = self.net(*batch)["loss"]
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("val_loss", self.net(*batch)["loss"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), RATE)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cosine, "interval": "step"}}


class Counting(ss.Hook):
    n = 0

    def on_epoch(self, record: Any) -> None:
        self.n += 1


def run(
    folder: Path,
    name: str,
    strategy: Any,
    n: int,
    resumed: Path | None = None,
    others: Sequence[pl.Callback] = (),
    settings: ss.CompressConfig = SETTINGS,
    **options: Any,
) -> dict[str, Any]:
    """The training of `trained`, whose batches n processes share."""
    module, counting = Module(), Counting()
    callback = SoftShareCallback(folder / f"{name}.sws", settings, gentleness=0.0, hooks=[counting])
    often: dict[str, Any] = {"every_n_epochs": EPOCHS // 2, "save_top_k": -1, "filename": "{epoch}"}
    arguments: dict[str, Any] = {
        "accelerator": "cpu",
        "strategy": strategy,
        "devices": n,
        "callbacks": [callback, *others, pl.callbacks.ModelCheckpoint(folder / name, **often)],
        "max_epochs": EPOCHS,
        "default_root_dir": folder,
        "use_distributed_sampler": False,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **options,
    }
    trainer = pl.Trainer(**arguments)
    examples, share = TensorDataset(*data()), BATCH // n // options.get("accumulate_grad_batches", 1)
    in_turn = torch.arange(N).view(-1, BATCH // 2, 2).transpose(1, 2).flatten().tolist()  # the shares of two processes
    sampler: Any = DistributedSampler(examples, shuffle=False) if n > 1 else in_turn
    train = DataLoader(examples, batch_size=share, sampler=sampler)
    trainer.fit(module, train, DataLoader(TensorDataset(*data(1)), batch_size=N // n), ckpt_path=resumed)
    return {**found_of(callback, module), "looks that hooks saw": counting.n}


def sharding() -> ModelParallelStrategy:
    return ModelParallelStrategy(data_parallel_size=dist.get_world_size(), tensor_parallel_size=1)


def variant(folder: Path, kind: str, way: str = "one") -> dict[str, Any]:
    """A short run with what changes the gradients, or the weights in the end. One process takes the shares in turn."""
    options: dict[str, Any] = {"settings": GENTLE, "max_epochs": SHORT, "accumulate_grad_batches": 1 + (way == "one")}
    if kind == "clipped":
        options["gradient_clip_val"] = CLIP
    elif kind == "bf16":
        options["precision"] = "bf16-mixed"
    elif kind == "fp16":
        options["plugins"] = pl.plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=64.0))
    elif kind == "mean":
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        options["others"] = [pl.callbacks.WeightAveraging(multi_avg_fn=average)]
    strategy = {"one": lambda: "auto", "ddp": lambda: "ddp", "fsdp": sharding}[way]()
    return run(folder, f"{kind}-{way}", strategy, 1 if way == "one" else dist.get_world_size(), **options)


def variants(folder: Path) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    as_torchrun()
    return {f"{kind} {way}": variant(folder, kind, way) for kind, way in VARIANTS["lightning"]}


def runs(folder: Path) -> dict[str, Any]:
    """By DDP in half batches, by FSDP2, and each of them from a checkpoint."""
    warnings.simplefilter("ignore")
    as_torchrun()
    n, half = dist.get_world_size(), f"epoch={EPOCHS // 2 - 1}.ckpt"
    return {
        "ddp": run(folder, "ddp", "ddp", n, accumulate_grad_batches=2),
        "ddp again": run(folder, "ddp-again", "ddp", n, folder / "ddp" / half, accumulate_grad_batches=2),
        "fsdp": run(folder, "fsdp", sharding(), n),
        "fsdp again": run(folder, "fsdp-again", sharding(), n, folder / "fsdp" / half),
    }
