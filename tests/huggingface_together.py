"""What the tests of Hugging Face's callback run in each of several processes."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.state import AcceleratorState, DistributedType
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, SequentialSampler, TensorDataset
from transformers import Trainer, TrainingArguments

import softshare as ss
from callbacks_together import CLIP, GENTLE, SETTINGS, SHORT, STEPS, VARIANTS, as_torchrun, found_of
from softshare.errors import ConfigError
from softshare.integrations.huggingface import SoftShareCallback
from trained import BATCH, EPOCHS, RATE, N, data, make_net


class Points(Dataset[dict[str, Tensor]]):
    def __init__(self, seed: int) -> None:
        self.x, self.labels = data(seed)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.labels[index]}


class InOrder(Trainer):  # type: ignore[misc]
    """Keeps the batches in the order of the data."""

    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


class Scaled(InOrder):
    """With the gradient scaler that Accelerate has for fp16 on a GPU."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        self.accelerator.native_amp = True
        self.accelerator.state._mixed_precision = "fp16"


def run(
    folder: Path,
    name: str,
    n: int,
    resumed: Path | None = None,
    evaluated: bool = False,
    scaled: bool = False,
    settings: ss.CompressConfig = SETTINGS,
    **options: Any,
) -> dict[str, Any]:
    """The training of `trained`, whose batches n processes share."""
    model = make_net()
    callback = SoftShareCallback(folder / f"{name}.sws", settings, gentleness=0.0)
    accumulated = options.get("gradient_accumulation_steps", 1)
    values: dict[str, Any] = {
        "output_dir": str(folder / name),
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH // n // accumulated,
        "per_device_eval_batch_size": N // n,
        "learning_rate": RATE,
        "lr_scheduler_type": "cosine",
        "max_grad_norm": 0.0,
        "weight_decay": 0.0,
        "save_strategy": "steps",
        "save_steps": STEPS // 2,
        "eval_strategy": "epoch",
        "eval_on_start": True,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "resume_from_checkpoint": resumed and str(resumed),
        **options,
    }
    trainer = (Scaled if scaled else InOrder)(
        model=model,
        args=TrainingArguments(**values),
        train_dataset=Points(0),
        eval_dataset=Points(1),
        callbacks=[callback],
    )
    if evaluated:
        trainer.evaluate()
    trainer.train(resume_from_checkpoint=resumed and str(resumed))
    return found_of(callback, model)


def apart(folder: Path, n: int) -> str:
    """What is said if the network was evaluated before."""
    try:
        run(folder, "apart", n, evaluated=True)
    except ConfigError as problem:
        return str(problem)
    return ""


@contextlib.contextmanager
def as_gpus() -> Iterator[None]:
    """Within, Accelerate takes the processes for those of GPUs. It shards for no others."""
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    try:
        yield
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def own_loop(folder: Path, name: str, accelerator: Accelerator) -> dict[str, Any]:
    """The loop of docs/scale.md in half batches, and the file."""
    model = make_net()
    model.zero_grad()  # it was trained
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = DataLoader(TensorDataset(*data()), BATCH // accelerator.num_processes // 2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    prior = ss.MixturePrior(model, SETTINGS.prior)
    for group in prior.param_groups():
        optimizer.add_param_group(group)
    for x, labels in itertools.chain(*itertools.repeat(loader, 3)):
        with accelerator.accumulate(model):
            loss = model(x, labels)["loss"]
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
                prior.add_gradients_(0.005, N)
            optimizer.step()
            optimizer.zero_grad()
    path = folder / f"{name}.sws"
    prior.quantize().save(path)
    return {"file": path.read_bytes(), "retrained": prior.current_view().state_dict()}


def variant(folder: Path, kind: str, way: str = "one") -> dict[str, Any]:
    """A short run with what changes the gradients. One process takes the shares in turn."""
    n = 1 if way == "one" else dist.get_world_size()
    options: dict[str, Any] = {"settings": GENTLE, "num_train_epochs": SHORT}
    options["gradient_accumulation_steps"] = 1 + (way == "one")
    kinds: dict[str, dict[str, Any]]
    kinds = {"clipped": {"max_grad_norm": CLIP}, "bf16": {"bf16": True}, "fp16": {"scaled": True}}
    options |= kinds[kind]
    AcceleratorState._reset_state(reset_partial_state=True)
    if way != "fsdp":
        return run(folder, f"{kind}-{way}", n, **options)
    with as_gpus():
        return run(folder, f"{kind}-{way}", n, **options, **SHARDING)


def variants(folder: Path) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    as_torchrun()
    return {f"{kind} {way}": variant(folder, kind, way) for kind, way in VARIANTS["huggingface"]}


SHARDING: dict[str, Any] = {"fsdp": True, "fsdp_config": {"version": 2, "auto_wrap_policy": "NO_WRAP"}}
PRECISIONS = ("no", "bf16")


def alone(folder: Path, precision: str) -> dict[str, Any]:
    """The same loop in one process, for comparison."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return own_loop(folder, "own", Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=precision))


def runs(folder: Path) -> dict[str, Any]:
    """By DDP in half batches, by FSDP2, and each of them from a checkpoint; and Accelerate in an own loop."""
    warnings.simplefilter("ignore")
    as_torchrun()
    n, half = dist.get_world_size(), f"checkpoint-{STEPS // 2}"
    accumulated: dict[str, Any] = {"gradient_accumulation_steps": 2}
    found: dict[str, Any] = {
        "ddp": run(folder, "ddp", n, **accumulated),
        "ddp again": run(folder, "ddp-again", n, folder / "ddp" / half, **accumulated),
        "apart": apart(folder, n),
    }
    for precision in PRECISIONS:
        settings: dict[str, Any] = {"cpu": True, "gradient_accumulation_steps": 2, "mixed_precision": precision}
        AcceleratorState._reset_state(reset_partial_state=True)
        ddp, fsdp = f"accelerate ddp {precision}", f"accelerate fsdp {precision}"
        found[ddp] = own_loop(folder, ddp, Accelerator(**settings))
        with as_gpus():
            plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
            found[fsdp] = own_loop(folder, fsdp, Accelerator(**settings, fsdp_plugin=plugin))
    with as_gpus():
        found["fsdp"] = run(folder, "fsdp", n, **SHARDING)
        found["fsdp again"] = run(folder, "fsdp-again", n, folder / "fsdp" / half, **SHARDING)
    return found
