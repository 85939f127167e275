"""Batch-norm statistics for a network whose weights have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from softshare._util.user_code import at, call
from softshare._util.user_code import batches as batches_of
from softshare.errors import ConfigError, ModelError


@torch.no_grad()
def reestimate_batch_norm_(
    model: nn.Module, batches: Iterable[Any], forward: Callable[[nn.Module, Any], object]
) -> None:
    """Replace running means and variances by averages over the batches:

        softshare.reestimate_batch_norm_(model, train_loader, lambda model, batch: model(batch[0]))

    Nothing else changes: all other modules run in evaluation mode. After an error, the earlier statistics are restored.

    Args:
        model: with batch norm, changed in place.
        batches: of training data.
        forward: runs the model on a batch. What it returns is not used.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not norms:
        raise ModelError("expected a network with batch norm, but this one has no batch norm that keeps statistics")
    folded = sum(_is_folded(m) for m in norms)
    if folded:
        raise ModelError(
            f"batch norm: expected statistics to estimate again, but those of {folded} of {len(norms)} batch norms are "
            "folded into their weights (fold_batchnorm). Compress without that"
        )
    modes, momenta, n_batches = [(m, m.training) for m in model.modules()], [m.momentum for m in norms], 0
    kept = [{name: t.clone() for name, t in m.named_buffers(recurse=False)} for m in norms]
    try:
        model.eval()
        for m in norms:
            m.reset_running_stats()
            m.momentum = None  # the plain average of all batches
            m.train()
        for batch in batches_of(batches, "batches"):
            n_batches += 1
            with at(f"batch {n_batches}"):
                call("forward", forward, model, batch)
        if not n_batches:
            raise ConfigError("batch norm: expected at least one batch to estimate statistics from, got none")
    except BaseException:
        for m, buffers in zip(norms, kept, strict=True):
            for name, t in buffers.items():
                m.get_buffer(name).copy_(t)
        raise
    finally:
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
        for module, training in modes:
            module.training = training


def _is_folded(norm: _BatchNorm) -> bool:
    """Whether the statistics are those of a new network, but the weights and biases are not."""
    plain = {"running_mean": 0.0, "running_var": 1.0, "weight": 1.0, "bias": 0.0}
    differs = {
        name for name, value in plain.items() if (own := getattr(norm, name)) is not None and bool((own != value).any())
    }
    return bool(differs) and differs <= {"weight", "bias"}
