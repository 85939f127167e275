"""The noise of an evaluation: how far its value is from that of another sample of as many examples, by chance."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from softshare._util.user_code import wrong
from softshare.task import Task, evaluating, require_finite


def noise_is_guessed(task: Task, value: float) -> bool:
    """Whether `noise_of` can only guess: the task does not know it, and the metric is no share of answers."""
    return task.noise is None and _whole(task, value) is None


def _whole(task: Task, value: float) -> float | None:
    """What all answers together would be, if the metric is a share of answers."""
    if task.metric.unit == "%":
        return 100.0
    return 1.0 if task.metric.higher_is_better and 0 <= value <= 1 else None


def noise_of(task: Task, model: nn.Module, value: float) -> float:
    """The standard error of the metric, which is `value` for this network.

    If the task does not know it, the examples are counted that the network sees in `evaluate`. A percentage, or a score
    between 0 and 1, is taken for a share of right or wrong answers (binomial; half an answer is added, so that no error
    in 100 examples does not mean certainty). Anything else is taken for a mean of squares of normal residuals: its
    standard error is sqrt(2 / n) of it. That is a guess.
    """
    if task.noise is not None:
        with evaluating(model):
            found = task.noise(model)
        try:
            noise = abs(float(found))
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise wrong("Task.noise", "a number", type(found).__name__) from None
        require_finite("Task.noise", noise, "for the network")
        return task.group.mean(noise)
    n = max(1, examples_seen(task, model))
    if whole := _whole(task, value):
        share = (min(max(value / whole, 0.0), 1.0) * n + 0.5) / (n + 1)
        return whole * math.sqrt(share * (1 - share) / n)
    return abs(value) * math.sqrt(2 / n)


def examples_seen(task: Task, model: nn.Module) -> int:
    """How many examples the network sees in `evaluate`: the first dimensions of its inputs, summed over its calls.

    If an evaluation calls another method than `forward`, the inputs of the first layer that is called count.
    """
    seen: Counter[nn.Module] = Counter()

    def count(module: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim())
        seen[module] += len(next(tensors, ()))

    handles = [module.register_forward_pre_hook(count, with_kwargs=True) for module in model.modules()]
    try:
        task.judge(model)
    finally:
        for handle in handles:
            handle.remove()
    return seen[model] or next(iter(seen.values()), 0)
