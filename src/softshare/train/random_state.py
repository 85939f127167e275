"""The state of every generator that batches and training may draw from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn


def random_state(model: nn.Module | None = None) -> dict[str, Any]:
    """Python's, NumPy's and torch's own, and those of the model's GPUs."""
    kind, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "cuda": {k: torch.cuda.get_rng_state(k) for k in _gpus(model)},
    }


def set_random_state(state: dict[str, Any], model: nn.Module | None = None) -> None:
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    for k in _gpus(model):
        if k in state["cuda"]:
            torch.cuda.set_rng_state(state["cuda"][k], k)


def generators_of(batches: Any) -> list[torch.Generator]:
    """Those that a DataLoader and its samplers draw from, if they have their own."""
    sampler, batch_sampler = getattr(batches, "sampler", None), getattr(batches, "batch_sampler", None)
    owners = (batches, sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    found = (getattr(owner, "generator", None) for owner in owners)
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def _gpus(model: nn.Module | None) -> set[int]:
    tensors = model.parameters() if model else ()
    return {t.device.index or 0 for t in tensors if t.device.type == "cuda"}
