"""The whole route in one call: prior, retrain, merge, quantize, simplify. What it returns can be saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from softshare.codec import check
from softshare.compressed import Compressed, dead_layers, quantize_prior, simplified
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.network.weights import WeightView, kept_message
from softshare.network.wrapped import copied, unwrapped
from softshare.prior.prior import MixturePrior
from softshare.simplify.trial import broken_links
from softshare.target.budget import Budget
from softshare.target.limits import Target
from softshare.task import Task
from softshare.train.distill import distilled
from softshare.train.first_look import require_an_error
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
    retraining = config.retrain
    if retraining.distill:  # here, so that a task without outputs is refused at once
        task = distilled(task, task.model, retraining.distill)
        retraining = dataclasses.replace(retraining, distill=0.0)
    task = dataclasses.replace(task, model=copied(unwrapped(task.model)))
    prior, hard = MixturePrior(task.model, config.prior), config.retrain.hard_from < 1
    start = quantize_prior(prior, config.merge, hard).quantized
    check(start, config.encode)  # if no file can hold the network, say so before training
    require_an_error(task, prior, config.seed)
    budget = None
    if target is not None:
        budget = Budget(task, prior, config, target, lambda: quantize_prior(prior, config.merge, hard).quantized)
    steering = budget.steering if budget else None
    hooks = [steering, *hooks] if steering else hooks
    with Phases(task, config.retrain.epochs, hooks) as phases:
        phases.run(retraining, prior=prior, zeroing=steering)
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
        broken = broken_links(task, compressed.quantized) if config.simplify.symmetries else None
        compressed = simplified(task.model, compressed, config, broken)
    compressed = dataclasses.replace(compressed, history=phases.history)
    said = [*dead_layers(compressed), *kept_message(WeightView.of(task.model, config.prior.rules))]
    return dataclasses.replace(compressed, messages=(*said, *compressed.messages))
