"""The whole route in one call: prior, retrain, merge, quantize, simplify. What it returns can be saved."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

from softshare.codec import check
from softshare.compressed import Compressed, quantize_prior, simplified
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.prior.prior import MixturePrior
from softshare.target.budget import Budget
from softshare.target.limits import Target
from softshare.task import Task
from softshare.train.hooks import Hook
from softshare.train.phases import Phases


def compress(
    task: Task,
    config: CompressConfig | None = None,
    hooks: Sequence[Hook] = (),
    *,
    target: Target | None = None,
) -> Compressed:
    """Retrain a copy of `task.model` under the prior, merge and quantize. `task.model` itself does not change.

    With a target, training is steered to meet it, and `Compressed.outcome` says whether it did. If it did not, the
    nearest network is returned.
    """
    if not isinstance(task, Task):
        raise ConfigError(f"compress: expected a softshare.Task, got {type(task).__name__}")
    config = config or CompressConfig()
    task = dataclasses.replace(task, model=copy.deepcopy(task.model))
    prior, hard = MixturePrior(task.model, config.prior), config.retrain.hard_from < 1
    start = quantize_prior(prior, config.merge, hard).quantized
    check(start, config.encode)  # if no file can hold the network, say so before training
    budget = None
    if target is not None:
        budget = Budget(task, prior, config, target, lambda: quantize_prior(prior, config.merge, hard).quantized)
    steering = budget.steering if budget else None
    hooks = [steering, *hooks] if steering else hooks
    with Phases(task, config.retrain.epochs, hooks) as phases:
        phases.run(config.retrain, prior=prior, zeroing=steering)
        messages = []
        if steering and (epoch := steering.settle_()) is not None:
            phases.on_return(epoch)
            messages = [f"target: the last network was above the limit; the best one, of epoch {epoch}, is used"]
        compressed = quantize_prior(prior, config.merge, hard)
    if budget:
        trimmed = budget.trim(compressed.quantized)
        compressed = dataclasses.replace(
            compressed,
            quantized=trimmed.simplified.quantized,
            config=config.encode,
            messages=(*messages, *trimmed.simplified.messages),
            moved=trimmed.simplified.moved,
            outcome=budget.outcome(trimmed),
        )
    else:
        compressed = simplified(task.model, compressed, config)
    return dataclasses.replace(compressed, history=phases.history)
