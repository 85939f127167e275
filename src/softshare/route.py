"""The whole route in one call: prior, retrain, merge, quantize, simplify. What it returns can be saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from softshare.codec import check
from softshare.compressed import Compressed, dead_layers, quantize_prior
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.network.weights import WeightView, kept_message
from softshare.network.wrapped import copied, unwrapped
from softshare.prior.prior import MixturePrior
from softshare.simplify.symmetries import Simplified
from softshare.target.files import Files, check_size
from softshare.target.limits import MaxBytes, Outcome, Target, WithinNoise, check_target, default_target, limit_of
from softshare.target.search import Found, Search
from softshare.target.steer import Steering
from softshare.target.worth import curvatures
from softshare.task import Task
from softshare.train.distill import distilled
from softshare.train.first_look import FirstLook, in_nats, look
from softshare.train.hooks import Hook
from softshare.train.phases import Phases

DEFAULT: Any = "default"  # the target of a call that names none
OF_THE_NOISE = 0.5  # that is searched in: a network chosen among many by its evaluation is worse than that says
MOST_TRIMMED = 3  # networks of a search


def compress(
    task: Task,
    config: CompressConfig | None = None,
    hooks: Sequence[Hook] = (),
    *,
    target: Target | None = DEFAULT,
) -> Compressed:
    """Retrain a copy of `task.model` under the prior, merge and quantize. `task.model` itself does not change.

    By default the result is the smallest file found whose network is as good as before, within the noise of the
    evaluation. Another target takes its place. With None, the network is trained once, as the settings say, whatever
    it loses. `Compressed.outcome` says what was lost and whether the target is met; if it is not, the nearest network
    is returned.
    """
    if not isinstance(task, Task):
        raise ConfigError(f"compress: expected a softshare.Task, got {type(task).__name__}")
    config = config or CompressConfig()
    if target is DEFAULT:
        target = default_target(config)
    elif target is not None:
        check_target(target, config)
    if config.retrain.distill:  # here, so that a task without outputs is refused at once
        task = distilled(task, task.model, config.retrain.distill)
    task = dataclasses.replace(task, model=copied(unwrapped(task.model)))
    relative = config.retrain.scaling == "auto" and not isinstance(target, MaxBytes)
    prior = MixturePrior(task.model, config.prior, relative=relative)
    start = quantize_prior(prior, config.merge, _is_hard(config)).quantized
    check(start, config.encode)  # if no file can hold the network, say so before training
    if isinstance(target, MaxBytes):
        check_size(target, start, config)
    first, files = look(task, prior, config.seed), Files(task, config)
    limit = limit_of(target, task, first)
    if target is None or isinstance(target, MaxBytes):
        compressed, simplified = _run(task, config, hooks, first, files, prior, target)
    elif isinstance(target, WithinNoise):
        within = task.metric.worse(first.before, OF_THE_NOISE * first.noise)
        compressed, simplified = _search(task, config, hooks, first, files, within)
    else:
        compressed, simplified = _search(task, config, hooks, first, files, limit)
    compressed = dataclasses.replace(
        compressed, quantized=simplified.quantized, config=config.encode, moved=simplified.moved
    )
    n_bytes, after = files.size(simplified.quantized), files.judge(simplified.quantized)
    outcome = Outcome(target, task.metric, first.before, after, first.noise, limit, n_bytes)
    said = [*dead_layers(compressed), *kept_message(WeightView.of(task.model, config.prior.rules))]
    return dataclasses.replace(compressed, outcome=outcome, messages=(*said, *simplified.messages))


def _run(
    task: Task,
    config: CompressConfig,
    hooks: Sequence[Hook],
    first: FirstLook,
    files: Files,
    prior: MixturePrior,
    target: MaxBytes | None,
) -> tuple[Compressed, Simplified]:
    """One run, as the settings say or steered to a size."""
    task, unit = _in_unit(task, config, first, first.noise)
    retrain, steering = dataclasses.replace(config.retrain, distill=0.0), None
    if target is not None:
        # Steering is made for learning rates as they are set, not relative to the weights: the prior weighs the same.
        share = task.n_examples / retrain.counted(task.n_examples)
        retrain = dataclasses.replace(retrain, scaling="paper", tau=share * retrain.tau)
        steering = Steering(target.max_bytes, retrain, prior, files.size_of(prior))
        hooks = [steering, *hooks]
    with Phases(task, retrain.looks, hooks, unit) as phases:
        phases.run(retrain, prior=prior, zeroing=steering)
    compressed = dataclasses.replace(quantize_prior(prior, config.merge, _is_hard(config)), history=phases.history)
    files.find_broken(compressed.quantized)
    if target is None:
        return compressed, files.simplify(compressed.quantized)
    worth = curvatures(task, prior, config.retrain)
    return compressed, files.trim_to_bytes(compressed.quantized, worth, target.max_bytes)


def _search(
    task: Task,
    config: CompressConfig,
    hooks: Sequence[Hook],
    first: FirstLook,
    files: Files,
    limit: float,
) -> tuple[Compressed, Simplified]:
    """Runs until the smallest file within a limit on the metric is found."""
    task, unit = _in_unit(task, config, first, max(first.noise, task.metric.loss(first.before, limit)))

    def now(prior: MixturePrior) -> Compressed:
        return quantize_prior(prior, config.merge, hard=True)

    search = Search(task, config.override(distill=0.0), first, limit, lambda prior: files.judge(now(prior).quantized))
    with Phases(task, None, [search, *hooks], unit) as phases:
        trimmed: list[tuple[Found, Compressed, Simplified]] = []
        for found in search.run(phases)[:MOST_TRIMMED]:
            prior = search.restore_(found)
            compressed = now(prior)
            files.find_broken(compressed.quantized)
            worth = curvatures(task, prior, config.retrain)
            trimmed.append((found, compressed, files.trim_to_metric(compressed.quantized, worth, limit)))

        def merit(one: tuple[Found, Compressed, Simplified]) -> tuple[float, int]:
            """Less is better: what it is above the limit, as simplifying may change an answer; then its bytes."""
            quantized = one[-1].quantized
            return max(0.0, task.metric.loss(limit, files.judge(quantized))), files.size(quantized)

        found, compressed, simplified = min(trimmed, key=merit)
        phases.on_prior(search.restore_(found))
        phases.on_return(found.look)
    return dataclasses.replace(compressed, history=phases.history), simplified


def _in_unit(task: Task, config: CompressConfig, first: FirstLook, allowed: float) -> tuple[Task, float]:
    """The task as tau is meant for it, and the unit of its loss."""
    unit = first.unit(task, allowed) if config.retrain.scaling == "auto" else 1.0
    return in_nats(task, unit), unit


def _is_hard(config: CompressConfig) -> bool:
    return config.retrain.hard_from < 1
