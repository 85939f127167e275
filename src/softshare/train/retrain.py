"""Retrain under the prior: task loss plus tau / N times -log p(w, theta) (paper, section 4.1), soft and then hard."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from softshare._util.user_code import at
from softshare.config import RetrainConfig
from softshare.distributed.shards import local
from softshare.distributed.wrap import restore_, state_of
from softshare.errors import DivergedError, NotANumberError
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.captured import CapturedStep
from softshare.train.distill import distilled
from softshare.train.hard import quantized
from softshare.train.hooks import EpochRecord, Hook, StopPhaseError
from softshare.train.resume import OTHER_BATCHES, Checkpoint, Training
from softshare.train.step import Latent, Step
from softshare.train.supply import Supply
from softshare.train.zeroing import bit_price, least_worth, spare_bits_

CHECK_EVERY = 50  # steps between two checks of the loss; each check synchronises the GPU


def retrain_(
    task: Task,
    prior: MixturePrior | None,
    config: RetrainConfig,
    hooks: Sequence[Hook] = (),
    latent: Latent | None = None,
    checkpoint: Checkpoint | None = None,
) -> tuple[EpochRecord, ...]:
    """Train `task.model` and `prior` in place and return the history. Without a prior this is plain training.

    With `latent`, the optimizer trains that, and the model's parameters follow from it. With `config.distill`, a copy
    of the network made now is the teacher. With `checkpoint`, a training that was stopped goes on from there, and the
    history is that of the rest.

    A NaN or infinite loss or metric raises `DivergedError`, and restores the model and the prior of the last good
    epoch. The global random state is seeded for the run and restored afterwards.
    """
    if config.distill:
        task = distilled(task, task.model, config.distill)
    run_step = (CapturedStep if config.capture else Step)(task, prior, config, latent)
    supply = Supply(task.train, config)
    training = Training(task, prior, run_step, supply)
    history: list[EpochRecord] = []
    with seeded(task.model, config.seed), _notified(hooks):
        run_step.latent.push_()
        for hook in hooks:
            hook.on_prior(prior)
            hook.on_start(config.looks, supply.steps_per_look)
        if checkpoint:
            checkpoint.follow("training", training)
            if supply.differs and task.group.is_first:
                checkpoint.say(OTHER_BATCHES)
        for epoch in range(training.look, config.looks + 1):
            start, task_loss, tau = time.perf_counter(), math.nan, 0.0
            good = _state(task, prior)
            place = f"{'epoch' if config.epochs else 'look'} {epoch}"
            try:
                with at(place):
                    if epoch > 0:
                        task_loss, tau = _train_until(epoch, training, config, hooks, checkpoint)
                    record = _record(task, prior, epoch, time.perf_counter() - start, tau, task_loss, run_step.hard)
            except NotANumberError as problem:
                _restore(task, prior, good)
                under_prior = "Lower lr_weights, lr_log_vars or tau, or strengthen the hyper-priors."
                then = under_prior if prior else "Lower the learning rate."
                raise DivergedError(
                    f"training diverged in {place}: {problem.problem}. The weights from before it are restored. {then}",
                    good[0],
                ) from None
            history.append(record)
            training.look, training.step = epoch + 1, 0
            try:
                for hook in hooks:
                    hook.on_epoch(record)
            except StopPhaseError:
                training.look = config.looks + 1  # a checkpoint that is written from now on must not go on with it
                break
    return tuple(history)


def _train_until(
    look: int, training: Training, config: RetrainConfig, hooks: Sequence[Hook], checkpoint: Checkpoint | None
) -> tuple[float, float]:  # mean task loss, and tau of the last step
    task, prior, run_step, supply = training.task, training.prior, training.run_step, training.supply
    task.model.train()
    if training.step == 0:  # else the look goes on
        if prior:
            prior.choose_method()
        run_step.sums.zero_()
    for batch, progress in supply.until(look, training.step):
        training.tau = tau = config.tau_at(progress) if prior else 0.0
        run_step.set(tau, config.decay_at(progress))
        run_step.hard = prior is not None and progress >= config.hard_from
        with at(f"batch {training.step + 1}"):
            run_step(batch)
        training.look, training.step = look, training.step + 1
        if training.step % CHECK_EVERY == 0:
            _require_finite("the loss", task.group.total(float(run_step.sums[1])))
        for hook in hooks:
            hook.on_step(look, training.step)
        if checkpoint:
            checkpoint.tick()
    _require_finite("the loss", task.group.total(float(run_step.sums[1])))
    for name, parameter in task.model.named_parameters():  # no loss has seen the last step yet
        if parameter.requires_grad and parameter.numel():
            held = local(parameter.detach())
            _require_finite(name, task.group.total(float(held.abs().max()) if held.numel() else 0.0))
    for buffer in task.model.buffers():  # each process has its own means of a batch norm
        task.group.send_(buffer, 0)
    if prior and run_step.hard and run_step.curvature:
        curvatures = run_step.curvature.estimate(supply.batch_size(task.n_examples))
        spare_bits_(prior, curvatures, bit_price(training.tau, config, task.n_examples), least_worth(config))
    return task.group.mean(float(run_step.sums[0])) / training.step, training.tau


def _record(
    task: Task, prior: MixturePrior | None, epoch: int, seconds: float, tau: float, task_loss: float, hard: bool
) -> EpochRecord:
    task.model.eval()
    with torch.no_grad(), quantized(prior) if hard and prior else nullcontext():
        error = task.judge(task.model)
    if prior is None:
        return EpochRecord(epoch, seconds, tau, task_loss, 0.0, 0.0, error, 0)
    return record_of(prior, epoch, seconds, tau, task_loss, error, hard)


@torch.no_grad()
def record_of(
    prior: MixturePrior, epoch: int, seconds: float, tau: float, task_loss: float, validation_error: float, hard: bool
) -> EpochRecord:
    """A line of the history under a prior. The network must have its unquantized weights."""
    prior_loss = float(prior.neg_log_prior())
    _require_finite("-log p(w, theta)", prior_loss)
    bits, alive = 0.0, 0
    density: dict[str, float] = {}
    for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
        held = zip(part.locals, part.counted, strict=True)
        counts = torch.stack([mixture.assign(t).bincount(minlength=len(mixture)) * counts for t, counts in held])
        part.group.sum_(counts)
        bits -= float((counts.sum(0) * mixture.log_mixing).sum()) / math.log(2)
        alive += int((counts.sum(0) > 0).sum())
        shares = (counts[:, 1:].sum(1) / counts.sum(1).clamp(min=1)).tolist()
        density |= {s.name: share for s, share in zip(part.shared, shares, strict=True)}
    return EpochRecord(
        epoch=epoch,
        seconds=seconds,
        tau=tau,
        task_loss=task_loss,
        prior_loss=prior_loss,
        complexity_bits=bits,
        validation_error=validation_error,
        components_alive=alive,
        density=density,
        hard=hard,
    )


def _require_finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise NotANumberError(f"{what} became {value}")


def _state(task: Task, prior: MixturePrior | None) -> tuple[Any, Any]:
    return state_of(task.model), copy.deepcopy(prior.state_dict()) if prior else None


def _restore(task: Task, prior: MixturePrior | None, state: tuple[Any, Any]) -> None:
    restore_(task.model, state[0])
    if prior:
        prior.load_state_dict(state[1])


@contextmanager
def seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed the global random state, including that of the model's GPU, and restore it afterwards."""
    devices = {p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def _notified(hooks: Sequence[Hook]) -> Iterator[None]:
    try:
        yield
    finally:
        for hook in hooks:
            hook.on_end()
