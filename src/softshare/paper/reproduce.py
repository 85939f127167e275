"""Reproduce results: run recipes, and keep the file and the result of each seed."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from softshare._util.files import require_writable
from softshare._util.run_folder import EVERY, MODEL, RESULT, RETRAINING, output_folder, require_free
from softshare.codec import decode
from softshare.compressed import Compressed
from softshare.errors import ConfigError
from softshare.network.checkpoint import load_checkpoint, save_checkpoint
from softshare.network.weights import load_state_
from softshare.paper.baselines import DeepCompressionConfig, DnsConfig, deep_compression, dns, published_ratio
from softshare.paper.recipes import MethodConfig, Recipe, get_recipe
from softshare.paper.results_page import without_seed
from softshare.result import Result, final_error, measure
from softshare.route import compress
from softshare.task import Task
from softshare.train.hooks import Hook, Hooks, no_hooks, say_nothing
from softshare.train.resume import Checkpoint
from softshare.zoo.experiments import get_experiment, make_task, pretrain_, pretraining_settings


@dataclass(frozen=True)
class Job:
    """One result, to be made unless it is `kept`."""

    recipe: Recipe  # with its seed
    folder: Path  # of the file and its result
    kept: Result | None


def reproduce(
    experiment: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: str | os.PathLike[str],
    device: torch.device | str = "cpu",
    data: Path | None = None,
    *,
    checkpoints: Path | None = None,
    every: float = EVERY,
    overwrite: bool = False,
    hooks: Hooks = no_hooks,
    say: Callable[[str], None] = say_nothing,
) -> Iterator[Result]:
    """Pre-train, compress, measure and keep each method with each seed, in `out/EXPERIMENT/METHOD/seed-N`.

    An existing result is kept and returned, unless `overwrite`. Pre-trained networks are read from the folder
    `checkpoints`, if given, and missing ones are saved there.

    A training that was stopped goes on where it was when its checkpoint was written: every so many seconds, and by
    Ctrl-C and SIGTERM. Rivals start from the beginning, and so does a pre-training without
    `checkpoints`.

    Everything that can be checked is checked before this returns. Each step of the iterator then trains one method.
    """
    device = torch.device(device)
    recipes = [get_recipe(experiment, method) for method in dict.fromkeys(methods)]
    _require_seeds(seeds)
    folder = Path(out) / experiment
    jobs = [_job(r.seeded(s, device.type == "cuda"), s, folder, overwrite) for s in seeds for r in recipes]
    to_make = [job for job in jobs if not job.kept]
    for task in {job.recipe.task for job in to_make}:
        make_task(experiment, "cpu", 0, task, data)  # reports missing data now, not after hours
    for needed in {job.folder.parent for job in to_make} | ({checkpoints} if checkpoints and to_make else set()):
        require_writable(needed)
    for job in to_make:
        require_free(job.folder, overwrite=True)
    return _run(jobs, lambda: _Bench(experiment, device, data, checkpoints, every, hooks, say), say)


def _require_seeds(seeds: Sequence[int]) -> None:
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds: expected whole numbers of at least 0, each once, got {list(seeds)}")


def _job(recipe: Recipe, seed: int, folder: Path, overwrite: bool) -> Job:
    folder = folder / recipe.method / f"seed-{seed}"
    there = all((folder / name).exists() for name in (MODEL, RESULT))
    return Job(recipe, folder, Result.load(folder / RESULT) if there and not overwrite else None)


def _run(jobs: Sequence[Job], make_bench: Callable[[], _Bench], say: Callable[[str], None]) -> Iterator[Result]:
    bench: _Bench | None = None
    for job in jobs:
        if job.kept:
            say(_kept(job))
            yield job.kept
        else:
            bench = bench or make_bench()
            yield bench.make(job)


def _kept(job: Job) -> str:
    text = f"{job.folder} exists and is kept"
    changed = job.kept is not None and without_seed(job.kept.config) != without_seed(recorded_config(job.recipe))
    return text + (
        "; its settings differ from the present recipe: give --overwrite to make it again" if changed else ""
    )


def recorded_config(recipe: Recipe) -> dict[str, Any]:
    """What a result records of its making: the method's settings, the task's switches, the pre-training."""
    task = {**dataclasses.asdict(recipe.task), "from_scratch": recipe.pretrain is None}
    pretrain = recipe.pretrain and pretraining_settings(recipe.pretrain)
    values: dict[str, Any] = json.loads(json.dumps({"task": task, "pretrain": pretrain}))  # lists, not tuples
    return {**recipe.config.to_dict(), **values}


def checkpoint_name(recipe: Recipe, dataset: str) -> str:
    """The file of a pre-trained network. Recipes share it if they pre-train alike, with the same seed and data."""
    experiment = get_experiment(recipe.experiment)
    pretrain = recipe.pretrain and pretraining_settings(dataclasses.replace(recipe.pretrain, capture=False))
    made_of = (recipe.task, pretrain, dataset, experiment.batch_size, experiment.augmentation)
    digest = hashlib.sha256(repr(made_of).encode()).hexdigest()[:8]
    return f"{recipe.experiment}-seed-{recipe.config.seed}-{digest}.safetensors"


class _Bench:
    """Trains and measures one experiment. It keeps the pre-trained networks of the current seed."""

    def __init__(
        self,
        experiment: str,
        device: torch.device,
        data: Path | None,
        checkpoints: Path | None,
        every: float,
        hooks: Hooks,
        say: Callable[[str], None],
    ) -> None:
        self.experiment, self.device, self.data, self.hooks = experiment, device, data, hooks
        self.checkpoints, self.every, self.say = checkpoints, every, say
        self.judge = make_task(experiment, "cpu", data=data)
        self.seed: int | None = None
        self.started: dict[Any, tuple[Task, float]] = {}

    def make(self, job: Job) -> Result:
        recipe, title = job.recipe, f"{job.recipe.method}, seed {job.recipe.config.seed}"
        with output_folder(job.folder, overwrite=True, resume=True) as unfinished, _deterministic():
            task, error_before = self.start(recipe)
            checkpoint = Checkpoint(unfinished / RETRAINING, self.every, self.say)
            compressed = run_method(task, recipe.config, self.hooks(title), checkpoint)
            compressed.save(unfinished / MODEL)
            result = self.measure(task, compressed, recipe, error_before)
            result.save(unfinished / RESULT)
        return result

    def start(self, recipe: Recipe) -> tuple[Task, float]:
        """The task, pre-trained if the recipe says so, and its network's error. No method changes that network."""
        seed, key = recipe.config.seed, (recipe.task, recipe.pretrain)
        if seed != self.seed:
            self.seed, self.started = seed, {}
        if key not in self.started:
            task = make_task(self.experiment, self.device, seed, recipe.task, self.data)
            task = dataclasses.replace(task, test=self.error_on_cpu)
            self.pretrain_(task, recipe)
            self.started[key] = task, final_error(task, task.model)
        return self.started[key]

    def pretrain_(self, task: Task, recipe: Recipe) -> None:
        if recipe.pretrain is None:
            return
        file = self.checkpoints and self.checkpoints / checkpoint_name(recipe, task.dataset)
        if file and file.exists():
            load_state_(task.model, load_checkpoint(file), str(file))
            return
        checkpoint = Checkpoint(file.with_suffix(".run"), self.every, self.say) if file else None
        pretrain_(task, recipe.pretrain, self.hooks(f"pre-train, seed {recipe.config.seed}"), checkpoint)
        if file and checkpoint:
            save_checkpoint(file, task.model.state_dict())
            checkpoint.remove()

    def error_on_cpu(self, model: torch.nn.Module) -> float:
        """The error on the CPU, as `softshare verify` measures it. A GPU may differ by single images."""
        return final_error(self.judge, copy.deepcopy(model).cpu())

    def measure(self, task: Task, compressed: Compressed, recipe: Recipe, error_before: float) -> Result:
        fresh = copy.deepcopy(self.judge.model).to(self.device)
        result = measure(task, compressed, recipe.config, method=recipe.method, error_before=error_before, model=fresh)
        decoded = decode(compressed.to_bytes(), like=fresh, max_bytes=None)
        own = published_ratio(recipe.method, decoded)
        return dataclasses.replace(result, config=recorded_config(recipe), published_ratio=own)


def run_method(
    task: Task, config: MethodConfig, hooks: Sequence[Hook] = (), checkpoint: Checkpoint | None = None
) -> Compressed:
    """Rivals have no checkpoint: they start from the beginning."""
    match config:
        case DeepCompressionConfig():
            return deep_compression(task, config, hooks)
        case DnsConfig():
            return dns(task, config, hooks)
    return compress(task, config, hooks, target=None, checkpoint=checkpoint)


@contextmanager
def _deterministic() -> Iterator[None]:
    """Make the same seed give the same result on a GPU too."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
