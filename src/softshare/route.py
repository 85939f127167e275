"""The whole route in one call: prior, retrain, merge, quantize, simplify. What it returns can be saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from softshare.codec import check
from softshare.compressed import Compressed, dead_layers, quantize_prior
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.network.weights import WeightView, kept_message
from softshare.network.wrapped import copied, unwrapped
from softshare.prior.prior import MixturePrior
from softshare.target.budget import Files, check_size, check_target, limit_of
from softshare.target.limits import MaxBytes, Outcome, Target, WithinNoise
from softshare.target.search import Search
from softshare.target.steer import Steering
from softshare.target.worth import curvatures
from softshare.task import Task
from softshare.train.distill import distilled
from softshare.train.first_look import in_nats, look
from softshare.train.hooks import Hook
from softshare.train.phases import Phases

WITHIN_NOISE = WithinNoise()


def compress(
    task: Task,
    config: CompressConfig | None = None,
    hooks: Sequence[Hook] = (),
    *,
    target: Target | None = WITHIN_NOISE,
) -> Compressed:
    """Retrain a copy of `task.model` under the prior, merge and quantize. `task.model` itself does not change.

    By default the result is the smallest file found whose network is as good as before, within the noise of the
    evaluation. Another target is met in its place. With None, the network is trained once, as the settings say,
    whatever it loses. `Compressed.outcome` says what was lost and whether the target is met; if it is not, the nearest
    network is returned.
    """
    if not isinstance(task, Task):
        raise ConfigError(f"compress: expected a softshare.Task, got {type(task).__name__}")
    config = config or CompressConfig()
    if target is not None:
        check_target(target, config)
    if config.retrain.distill:  # here, so that a task without outputs is refused at once
        task = distilled(task, task.model, config.retrain.distill)
    task = dataclasses.replace(task, model=copied(unwrapped(task.model)))
    prior, hard = MixturePrior(task.model, config.prior), config.retrain.hard_from < 1
    start = quantize_prior(prior, config.merge, hard).quantized
    check(start, config.encode)  # if no file can hold the network, say so before training
    if isinstance(target, MaxBytes):
        check_size(target, start, config)
    first = look(task, prior, config.seed)
    limit, unit = limit_of(target, task, first), 1.0
    if config.retrain.scaling == "auto":
        allowed = None if limit is None or isinstance(target, MaxBytes) else task.metric.loss(first.before, limit)
        unit = first.unit(task, max(first.noise, allowed or 0.0))
    trained = in_nats(task, unit)
    files = Files(task, config)
    plain = config.override(distill=0.0)  # it is in the task
    if limit is None or isinstance(target, MaxBytes):
        steering = None
        if isinstance(target, MaxBytes):
            steering = Steering(target.max_bytes, config.retrain, prior, files.size_of(prior))
        with Phases(trained, config.retrain.looks, [steering, *hooks] if steering else hooks, unit) as phases:
            phases.run(plain.retrain, prior=prior, zeroing=steering)
    else:
        search = Search(trained, plain, first, limit)
        with Phases(trained, config.retrain.looks, [search, *hooks], unit) as phases:
            prior = search.run(phases)
    compressed = quantize_prior(prior, config.merge, hard)
    files.find_broken(compressed.quantized)
    if target is None or limit is None:
        simplified = files.simplify(compressed.quantized)
    else:
        simplified = files.trim(compressed.quantized, curvatures(trained, prior, config.retrain), target, limit)
    compressed = dataclasses.replace(
        compressed,
        quantized=simplified.quantized,
        config=config.encode,
        moved=simplified.moved,
        history=phases.history,
    )
    after = files.judge(simplified.quantized)
    outcome = Outcome(target, task.metric, first.before, after, first.noise, limit, files.size(simplified.quantized))
    said = [*dead_layers(compressed), *kept_message(WeightView.of(task.model, config.prior.rules))]
    return dataclasses.replace(compressed, outcome=outcome, messages=(*said, *simplified.messages))
