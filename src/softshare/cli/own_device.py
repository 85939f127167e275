"""`--device` for a user's own task: the model and the batches are moved. If that cannot work, it is said at once."""

from __future__ import annotations

import dataclasses

import torch

from softshare._util.user_code import Guarded, batches
from softshare.errors import ConfigError, SoftShareError
from softshare.loaders.batches import OnDevice, device_of
from softshare.loaders.make import FromLoaders
from softshare.network.wrapped import copied
from softshare.task import Task

ADVICE = (
    "Move the data in your functions, as in x.to(next(model.parameters()).device), or make the task by "
    "Task.from_loaders, which does so, or leave --device out"
)


def moved(task: Task, device: torch.device) -> Task:
    """The task with its model on a device. Batches of `Task.train` follow the model.

    A task of `Task.from_loaders` moves its own batches. Other tasks may hold data that only their functions know, so
    the loss of one batch and the evaluation are tried first, on a copy of the model.
    """
    if _is_on(task, device):
        return task
    try:
        task.model.to(device)
    except (RuntimeError, NotImplementedError) as problem:  # no memory there, or no kernels for its tensors
        raise ConfigError(f"--device {device}: the model cannot be moved there: {problem}. {ADVICE}") from problem
    if _follows(task):
        return task
    task = dataclasses.replace(task, train=OnDevice(task.train, task.model))
    _try(task, device)
    return task


def _is_on(task: Task, device: torch.device) -> bool:
    here = {t.device for t in (*task.model.parameters(), *task.model.buffers())}
    return all(d.type == device.type and (d.type == "cpu" or device.index in (None, d.index)) for d in here)


def _follows(task: Task) -> bool:
    """Whether all functions of the task are those of `Task.from_loaders`."""
    functions = [task.loss, task.evaluate, *(f for f in (task.test, task.outputs, task.noise) if f is not None)]
    plain = [f.function if isinstance(f, Guarded) else f for f in functions]
    return all(isinstance(getattr(f, "__self__", None), FromLoaders) for f in plain)


def _try(task: Task, device: torch.device) -> None:
    """Call the functions once. Random states and the model are as before."""
    model = copied(task.model)
    used = [device_of(model)] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=used):
        try:
            batch = next(batches(task.train), None)
            task.loss(model, batch)
            task.judge(model)
        except SoftShareError as problem:
            problem.add_note(f"The model and the batches are on {device} because of --device. {ADVICE}")
            raise
