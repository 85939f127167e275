"""The whole route in one call: prior, retrain, merge, quantize, simplify. What it returns can be saved."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.distributed as dist

from softshare import __version__
from softshare._util.user_code import at
from softshare.codec import check
from softshare.compressed import Compressed, dead_messages, quantize_prior
from softshare.config import CompressConfig
from softshare.distributed.group import ALONE, Group, world
from softshare.distributed.wrap import shard_
from softshare.errors import ConfigError
from softshare.network.weights import WeightView, kept_message
from softshare.network.wrapped import copied, unwrapped
from softshare.prior.prior import MixturePrior
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.symmetries import Simplified
from softshare.target.broken import Alarm, is_broken
from softshare.target.files import Files, check_size
from softshare.target.gentleness import gentler_to_units
from softshare.target.limits import (
    MaxBytes,
    MaxMacs,
    Outcome,
    Target,
    WithinNoise,
    check_target,
    default_target,
    limit_of,
)
from softshare.target.macs import Macs, UnitCuts
from softshare.target.runs import Kept, Runs, prior_of
from softshare.target.search import Search
from softshare.target.size_search import SizeSearch
from softshare.target.worth import curvatures
from softshare.task import Task
from softshare.train.distill import distilled
from softshare.train.first_look import FirstLook, in_nats, look
from softshare.train.hooks import Hook
from softshare.train.phases import Phases
from softshare.train.resume import Checkpoint
from softshare.train.spared import Say, warn

Distributed = Literal["replicate", "shard"]  # by DDP or by FSDP2
DEFAULT: Any = "default"  # the target of a call that names none
OF_THE_NOISE = 0.5  # that is searched in, if gentler runs are better
NOISE_GUESSED = (
    "the noise of the evaluation is not known and is taken for that of a squared error; give Task(noise=...), or use "
    "Task.from_loaders, which finds it"
)
MOST_TRIMMED = 3  # networks of a search that become files


def compress(
    task: Task,
    config: CompressConfig | None = None,
    hooks: Sequence[Hook] = (),
    *,
    target: Target | None = DEFAULT,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    distributed: Distributed | None = None,
    say: Say = warn,
) -> Compressed:
    """Retrain a copy of `task.model` under the prior, merge and quantize. `task.model` itself does not change.

    `softshare.compress` explains the arguments, shows the progress and measures the result. The test set is not read
    here. `say` gets what the user must know at once.
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
    task = dataclasses.replace(task, model=copied(unwrapped(task.model)), group=_group(distributed))
    checkpoint = _begun(checkpoint, task, config, target)
    prior = prior_of(task, config, ())
    start = quantize_prior(prior, config.merge, _is_hard(config)).quantized
    check(start, config.encode)  # if no file can hold the network, say so before training
    if isinstance(target, MaxBytes):
        check_size(target, start, config)
    with_units = bool(config.prior.units or config.simplify.fold_batchnorm or isinstance(target, MaxMacs))
    first = look(task, prior, config.seed, needs_groups=with_units)
    for text in first.doubts:
        say(text)
    files = Files(task, config, first.groups)
    limit = limit_of(target, task, first)
    macs = Macs(task.model, first, target, start) if isinstance(target, MaxMacs) else None
    if distributed == "shard" and task.group.size > 1:  # one process holds all in any case, and may replay its steps
        task = dataclasses.replace(task, model=shard_(copied(task.model)))  # `files` and `macs` keep the whole network
    run = _Run(task, config, hooks, first, files, checkpoint)
    if target is None:
        compressed, simplified = _once(run, say)
    elif isinstance(target, MaxBytes):
        compressed, simplified = _best(run, target.max_bytes)
    elif macs:
        compressed, simplified = _fastest(run, macs)
    else:
        compressed, simplified = _smallest(run, target, limit)
    simplified = files.verified(simplified, first.loss_of_zeros - first.loss)
    compressed = dataclasses.replace(
        compressed,
        quantized=simplified.quantized,
        config=config.encode,
        moved=simplified.moved,
        counted=_counted(config),
        with_units=bool(config.prior.units or macs),
    )
    with at("the look after training"):
        n_bytes, after = files.size(simplified.quantized), files.judge(simplified.quantized)
        broken = is_broken(task, first, files.decoded(simplified.quantized), after)
    ratio = macs.ratio(simplified.quantized) if macs else None
    outcome = Outcome(
        target, task.metric, first.before, after, first.noise, limit, n_bytes, ratio, first.guessed, broken
    )
    unknown = [NOISE_GUESSED] if first.guessed else []
    said = [
        *unknown,
        *dead_messages(compressed),
        *first.alone,
        *kept_message(WeightView.of(task.model, config.prior.rules)),
    ]
    return dataclasses.replace(compressed, outcome=outcome, messages=(*said, *simplified.messages))


def _group(distributed: Distributed | None) -> Group:
    if distributed is None:
        return ALONE
    if distributed not in get_args(Distributed):
        raise ConfigError(
            f"distributed: expected one of {', '.join(get_args(Distributed))} or None, got {distributed!r}"
        )
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            "distributed: expected a process group. Start the script with torchrun, and call "
            "torch.distributed.init_process_group() first"
        )
    return world()


@dataclass(frozen=True)
class _Run:
    """What all ways to a network need."""

    task: Task
    config: CompressConfig
    hooks: Sequence[Hook]
    first: FirstLook
    files: Files
    checkpoint: Checkpoint | None

    def in_unit(self, allowed: float) -> tuple[Task, float]:
        """The task as tau is meant for it, and the unit of its loss."""
        unit = self.first.unit(self.task, allowed) if self.config.retrain.scaling == "auto" else 1.0
        return in_nats(self.task, unit), unit

    def restored(self, runs: Runs, kept: Kept) -> tuple[Compressed, MixturePrior]:
        """The network of a run, in the task's model again, and its prior."""
        prior = runs.restore_(kept)
        compressed = _quantized_whole(prior, self.config, hard=True)
        self.files.find_allowed(compressed.quantized)
        return compressed, prior


def _once(run: _Run, say: Say) -> tuple[Compressed, Simplified]:
    """One run, as the settings say."""
    config, (task, unit) = run.config, run.in_unit(run.first.noise)
    prior = prior_of(task, config, run.first.groups)
    alarm = Alarm(task, run.first, _counted(config), say)
    with Phases(task, config.retrain.looks, [alarm, *run.hooks], unit, run.checkpoint) as phases:
        phases.run(dataclasses.replace(config.retrain, distill=0.0), prior=prior)
    compressed = _quantized_whole(prior, config, _is_hard(config))
    run.files.find_allowed(compressed.quantized)
    return dataclasses.replace(compressed, history=phases.history), run.files.simplify(compressed.quantized)


def _smallest(run: _Run, target: Target, limit: float) -> tuple[Compressed, Simplified]:
    """Runs until the smallest file within a limit on the metric is found.

    Whatever is tried until it fits owes some of that to luck. For the default target, only the last network of each run
    is judged, and none is trimmed.
    """
    config, first, files, metric = run.config, run.first, run.files, run.task.metric
    task, unit = run.in_unit(max(first.noise, metric.loss(first.before, limit)))
    careful = isinstance(target, WithinNoise)
    slack = (1 - OF_THE_NOISE) * first.noise if careful else 0.0
    limit = metric.worse(limit, -slack)

    def judge(prior: MixturePrior) -> float:
        with at("the look at a file"):
            return files.judge(_quantized_whole(prior, config, hard=True).quantized)

    def trim(quantized: QuantizedWeights, prior: MixturePrior) -> Simplified:
        if careful:
            return files.simplify(quantized)
        return files.trim_to_metric(quantized, curvatures(task, prior, config.retrain), limit)

    def merit(quantized: QuantizedWeights) -> tuple[float, int]:
        return max(0.0, metric.loss(limit, files.judge(quantized))), files.size(quantized)

    search = Search(task, config.override(distill=0.0), first, limit, judge, last_alone=careful, slack=slack)
    return _searched(run, search, unit, lambda phases: [found.kept for found in search.run(phases)], trim, merit)


def _best(run: _Run, max_bytes: int) -> tuple[Compressed, Simplified]:
    """Runs until the best network within a file size is found."""
    config, first, files, metric = run.config, run.first, run.files, run.task.metric
    task, unit = run.in_unit(first.noise)

    def size(prior: MixturePrior) -> int:
        quantized = _quantized_whole(prior, config, hard=True).quantized
        files.find_allowed(quantized)
        return files.size(files.simplify(quantized).quantized)

    def trim(quantized: QuantizedWeights, prior: MixturePrior) -> Simplified:
        return files.trim_to_bytes(quantized, curvatures(task, prior, config.retrain), max_bytes)

    def merit(quantized: QuantizedWeights) -> tuple[int, float, int]:
        n_bytes = files.size(quantized)
        return max(0, n_bytes - max_bytes), metric.loss(first.before, files.judge(quantized)), n_bytes

    search = SizeSearch(task, config.override(distill=0.0), first.groups, max_bytes, size)
    return _searched(run, search, unit, search.run, trim, merit)


def _fastest(run: _Run, macs: Macs) -> tuple[Compressed, Simplified]:
    """Runs until the best network within a share of the multiply-adds is found. The prior over units is steered."""
    config, first, files, metric = run.config, run.first, run.files, run.task.metric
    task, unit = run.in_unit(first.noise)

    def size(prior: MixturePrior) -> float:
        return macs.ratio(_quantized_whole(prior, config, hard=True).quantized)

    def trim(quantized: QuantizedWeights, prior: MixturePrior) -> Simplified:
        cuts = UnitCuts(quantized, curvatures(task, prior, config.retrain), first.groups, macs.uses)
        return files.simplify(macs.trim(cuts))

    def merit(quantized: QuantizedWeights) -> tuple[float, float, int]:
        above = max(0.0, macs.ratio(quantized) - macs.limit)
        return above, metric.loss(first.before, files.judge(quantized)), files.size(quantized)

    search = SizeSearch(task, config.override(distill=0.0), first.groups, macs.limit, size, gentler_to_units)
    return _searched(run, search, unit, search.run, trim, merit)


class Trimmed(NamedTuple):
    """A network of a search, and what trimming made of it."""

    kept: Kept
    compressed: Compressed
    simplified: Simplified


def _searched(
    run: _Run,
    search: Runs,
    unit: float,
    train: Callable[[Phases], Sequence[Kept]],  # the networks of the search, the best first
    trim: Callable[[QuantizedWeights, MixturePrior], Simplified],
    merit: Callable[[QuantizedWeights], Any],  # less is better
) -> tuple[Compressed, Simplified]:
    """The network of a search that is best after trimming."""
    with Phases(search.task, None, [search, *run.hooks], unit, run.checkpoint) as phases:
        trimmed: list[Trimmed] = []
        networks = train(phases)[:MOST_TRIMMED]
        with at("trimming"):
            for kept in networks:
                compressed, prior = run.restored(search, kept)
                trimmed.append(Trimmed(kept, compressed, trim(compressed.quantized, prior)))
            best = min(trimmed, key=lambda one: merit(one.simplified.quantized))
        phases.on_prior(search.restore_(best.kept))
        phases.on_return(best.kept.look)
        return dataclasses.replace(best.compressed, history=phases.history), best.simplified


def _begun(
    checkpoint: Checkpoint | str | os.PathLike[str] | None, task: Task, config: CompressConfig, target: Target | None
) -> Checkpoint | None:
    """The checkpoint, which goes on with this run alone: the same network, settings, target and versions."""
    if checkpoint is None:
        return None
    checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    weights = hashlib.sha256()
    for name, tensor in WeightView.of(task.model, config.prior.rules).state_dict().items():
        weights.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        weights.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    versions = [__version__, torch.__version__]
    key = [weights.hexdigest(), config.to_dict(), repr(target), task.n_examples, versions]
    checkpoint.begin(key, task.group, next(task.model.parameters()).device.type)
    return checkpoint


def _quantized_whole(prior: MixturePrior, config: CompressConfig, hard: bool) -> Compressed:
    """As `quantize_prior`. Of sharded weights, each process gets all indices: what simplifies a file needs them."""
    compressed = quantize_prior(prior, config.merge, hard)
    return dataclasses.replace(compressed, quantized=compressed.quantized.gathered(compressed.group), group=ALONE)


def _counted(config: CompressConfig) -> str:
    return "look" if config.retrain.epochs is None else "epoch"


def _is_hard(config: CompressConfig) -> bool:
    return config.retrain.hard_from < 1
