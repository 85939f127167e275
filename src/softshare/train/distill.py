"""Distill: a teacher's outputs beside the labels in the loss of retraining (the paper's future work)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare._util.user_code import wrong
from softshare.errors import ConfigError
from softshare.network.wrapped import copied, unwrapped
from softshare.task import Task, require_mean_loss


def distilled(task: Task, teacher: nn.Module, share: float, temperature: float = 2.0) -> Task:
    """The same task with the loss `(1 - share) * task.loss + share * temperature^2 * KL(teacher || student)`.

    The divergence is between the two softmaxes at the temperature, averaged over the batch. The teacher is copied now
    and runs in evaluation mode, so `task.model` itself may be the teacher. `task.evaluate` does not change.
    """
    if task.outputs is None:
        raise ConfigError("distilled: expected a task with `outputs`, got none. Give the logits as Task(outputs=...)")
    if not isinstance(teacher, nn.Module):
        raise ConfigError(f"distilled: expected a torch.nn.Module as the teacher, got {type(teacher).__name__}")
    if not _is_number(share) or not 0 <= share <= 1:
        raise ConfigError(f"share: expected a number between 0 and 1, got {share!r}")
    if not _is_number(temperature) or not 0 < temperature < math.inf:
        raise ConfigError(f"temperature: expected a number above 0, got {temperature!r}")
    outputs, task_loss = task.outputs, task.loss
    device = next(task.model.parameters()).device
    frozen = copied(unwrapped(teacher)).to(device).eval().requires_grad_(False)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            wanted = outputs(frozen, batch)
        with _last_call(model) as reusing:
            own = require_mean_loss(task_loss(model, batch))
            with reusing():
                student = outputs(model, batch)
        divergence = soft_divergence(wanted, student, temperature)
        return (1 - share) * own + share * temperature**2 * divergence

    return dataclasses.replace(task, loss=loss)


def soft_divergence(
    teacher: Tensor,  # (batch, classes), logits
    student: Tensor,  # (batch, classes), logits
    temperature: float,
) -> Tensor:  # 0-d
    """Mean over the batch of `KL(softmax(teacher / T) || softmax(student / T))`, in nats."""
    if student.dim() != 2 or teacher.shape != student.shape:
        got = f"{tuple(teacher.shape)} from the teacher and {tuple(student.shape)} from the model"
        raise wrong("Task.outputs", "logits of the same shape (batch, classes)", got)
    dtype = torch.promote_types(student.dtype, torch.float32)
    log_p, log_q = ((logits.to(dtype) / temperature).log_softmax(1) for logits in (teacher, student))
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@contextmanager
def _last_call(model: nn.Module) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Within, the model remembers its last call. What it yields is a block in which the same call is not repeated.

    So the outputs reuse the forward pass of the loss: it halves the time, and batch statistics are counted once. A loss
    that calls the model twice on the same tensors still gets two passes, each with its own dropout.
    """
    forward, own = model.forward, "forward" in vars(model)
    last: tuple[tuple[Any, ...], dict[str, Any], Any] | None = None
    may_reuse = False

    def once(*args: Any, **kwargs: Any) -> Any:
        nonlocal last
        if not may_reuse or last is None or not _same(last[0], args) or not _same(last[1], kwargs):
            last = args, kwargs, forward(*args, **kwargs)
        return last[2]

    @contextmanager
    def reusing() -> Iterator[None]:
        nonlocal may_reuse
        may_reuse = True
        try:
            yield
        finally:
            may_reuse = False

    model.forward = once
    try:
        yield reusing
    finally:
        if own:
            model.forward = forward
        else:
            del model.forward


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, dict):
        return list(before) == list(now) and _same(tuple(before.values()), tuple(now.values()))
    return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))
