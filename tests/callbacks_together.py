"""What the tests of callbacks run in each of several processes has in common."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn

from softshare.network.weights import WeightView
from trained import BATCH, EPOCHS, N, config

STEPS = EPOCHS * N // BATCH
SHORT, CLIP = 6, 0.05  # epochs of a short run, and the largest norm of its gradients
SETTINGS = config(zeroing=30.0, schedule="cosine").override(steps=STEPS, scaling="paper")
GENTLE = SETTINGS.override(zeroing=1.0, tau=3e-5, zero_mixing=0.5)

VARIANTS = {
    "lightning": [
        ("clipped", "ddp"),
        ("clipped", "fsdp"),
        ("bf16", "ddp"),
        ("bf16", "fsdp"),
        ("fp16", "ddp"),
        ("fp16", "fsdp"),
        ("mean", "ddp"),
    ],
    "huggingface": [
        ("clipped", "ddp"),
        ("clipped", "fsdp"),
        ("bf16", "ddp"),
        ("bf16", "fsdp"),
        ("fp16", "ddp"),
        ("fp16", "fsdp"),
    ],
}


def as_torchrun() -> None:
    """The environment that torchrun gives to a process of the group that exists."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29512", "TORCHELASTIC_RUN_ID": "test"}


def found_of(callback: Any, network: nn.Module) -> dict[str, Any]:
    """What a run came to, as this process sees it."""
    compressed = callback.compressed
    return {
        "path": callback.path,
        "file": Path(callback.path).read_bytes(),
        "retrained": {name: t for name, t in compressed.retrained.items() if not t.is_meta},
        "weights": WeightView.of(network).state_dict(),
        "outcome": compressed.outcome,
        "task losses": [record.task_loss for record in compressed.history],
        "has a result": compressed.record is not None,
    }
