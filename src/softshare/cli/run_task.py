"""A run of the command line: compress a task into a folder, and print what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from softshare._util.files import read_bytes
from softshare._util.run_folder import (
    EVERY,
    FRAMES,
    HISTORY,
    LAST_GOOD,
    MODEL,
    PRETRAINED,
    PRETRAINING,
    RESULT,
    RETRAINED,
    RETRAINING,
    TRAINED,
    earlier_files,
    output_folder,
    unfinished_folder,
)
from softshare.cli import tables
from softshare.cli.console import console
from softshare.cli.file_table import print_file_table
from softshare.cli.spared import say, spared, spared_hook
from softshare.cli.stopping import RESUME, stopping
from softshare.cli.summary import after_a_run, result_panel
from softshare.cli.task_options import TaskOptions, find_device, load_task
from softshare.cli.together import is_finished, is_restarted, is_torchrun, processes
from softshare.codec import inspect as inspect_file
from softshare.compressed import Compressed, dead_layers
from softshare.config import CompressConfig, RetrainConfig
from softshare.distributed.group import Group
from softshare.errors import ConfigError, DivergedError, SoftShareError, StoppedError
from softshare.integrations import TensorBoardLog
from softshare.network.checkpoint import load_checkpoint, save_checkpoint
from softshare.network.weights import WeightView, kept_message, load_state_
from softshare.prior.prior import MixturePrior
from softshare.report.draw.classifier import kept_classifier
from softshare.report.figures.filters import kept_filters
from softshare.report.frames import FrameLog
from softshare.report.live import LivePage
from softshare.result import Result, measure
from softshare.route import Distributed
from softshare.route import compress as compress_task
from softshare.target.files import check_size
from softshare.target.limits import MaxBytes, Target, WithinNoise, check_target
from softshare.task import Metric, Task
from softshare.train.hooks import Hook
from softshare.train.progress import CsvLog, ProgressBar
from softshare.train.resume import Checkpoint
from softshare.verdict import harmed, verdict
from softshare.zoo.experiments import EXPERIMENTS, get_experiment, pretrain_, pretraining_settings, taught

NOT_MET = 3  # exit status: a file was written, but it does not meet the target
HARMED = 4  # a file was written, but its network is broken, or lost on the test data what nobody allowed
out = console()


@dataclass(frozen=True)
class Watching:
    """Other ways to watch a run."""

    live: bool = False
    live_port: int = 0
    tensorboard: Path | None = None

    @contextlib.contextmanager
    def hooks(self, folder: Path, metric: Metric) -> Iterator[list[Hook]]:
        """Hooks that must come after those that write to the folder."""
        found: list[Hook] = [TensorBoardLog(self.tensorboard, metric)] if self.tensorboard else []
        with LivePage(folder, self.live_port) if self.live else contextlib.nullcontext() as page:
            if page:
                out.print(f"live: {page.address}")
                found.append(page)
            yield found


@dataclass(frozen=True)
class RunOptions:
    """How a run starts and how it is watched. The settings are separate."""

    method: str = "softshare"
    weights: Path | None = None
    overwrite: bool = False
    resume: bool = False
    checkpoint_every: float = EVERY
    device: str = "auto"
    task: TaskOptions = field(default_factory=TaskOptions)
    watching: Watching = field(default_factory=Watching)
    target: Target | None = field(default_factory=WithinNoise)
    verbose: bool = False
    go_on: str = RESUME
    fsdp: bool = False
    pretrained: Any = None  # for a repeated run: how its result says that the network was pre-trained
    command: str | None = None  # that started the run, for its result


def run_task(spec: str, folder: Path, config: CompressConfig, options: RunOptions) -> int:
    """Pre-train if needed, compress and measure. Write everything to the folder and print a summary.

    Returns the exit status, which tells what became of the network.
    If torchrun has started several processes, they train together, and the first one writes and prints.
    """
    with processes(options.fsdp) as group:
        if is_restarted():
            options = dataclasses.replace(options, resume=True)
        if group.size > 1 and spec in EXPERIMENTS:
            raise ConfigError(
                f"torchrun: expected FILE.py:make_task, whose batches are the process's own share, got {spec}, whose "
                "batches are the same in each process"
            )
        if is_finished(folder, group):
            return 0
        if group.is_first:
            return _run(spec, folder, config, options, group)
        _follow(spec, folder, config, options, group)
        return 0


def _way(options: RunOptions, group: Group) -> Distributed | None:
    return "shard" if options.fsdp else "replicate" if group.size > 1 else None


def _follow(spec: str, folder: Path, config: CompressConfig, options: RunOptions, group: Group) -> None:
    """What the other processes do meanwhile: the same calls, in silence and without a folder."""
    task = load_task(spec, options.device, config.seed, options.task)
    if options.weights:
        load_state_(task.model, load_checkpoint(options.weights), str(options.weights))
    try:
        compressed = compress_task(
            task,
            config,
            target=options.target,
            checkpoint=Checkpoint(unfinished_folder(folder) / RETRAINING, options.checkpoint_every, say),
            distributed=_way(options, group),
        )
    except StoppedError as stop:
        raise typer.Exit(128 + stop.signal) from None
    dataclasses.replace(compressed, group=group).save(folder / MODEL)  # the first one writes
    measure(dataclasses.replace(task, group=group), compressed, config)


def _run(spec: str, folder: Path, config: CompressConfig, options: RunOptions, group: Group) -> int:
    start = time.perf_counter()
    seed, target, weights, overwrite = config.seed, options.target, options.weights, options.overwrite
    task = load_task(spec, options.device, seed, options.task)
    pretrains = spec in EXPERIMENTS and not weights and not options.task.from_scratch
    over = [PRETRAINED] if pretrains and not overwrite and earlier_files(folder) == [PRETRAINED] else []
    if over:
        weights = folder / PRETRAINED  # from `softshare pretrain`
    made_of = _pretraining(spec, weights, options.task, seed)
    _require_the_same(made_of.get("pretrain"), options.pretrained)
    if weights:
        load_state_(task.model, load_checkpoint(weights), str(weights))
        out.print(f"pre-trained weights: {weights}")
    recorded = {**(options.task.changes(spec) if spec in EXPERIMENTS else {}), **made_of}

    def with_records(result: Result) -> Result:
        return dataclasses.replace(result, config={**result.config, **recorded}, command=options.command)

    WeightView.of(task.model, config.prior.rules).check()  # before anything is trained or written
    if target is not None:
        check_target(target, config)
        if isinstance(target, MaxBytes):
            check_size(target, MixturePrior(task.model, config.prior).quantize(config.merge).quantized, config)
    pretrains = pretrains and not weights
    trained: Sequence[str] = (PRETRAINED, *TRAINED) if pretrains else TRAINED
    if is_torchrun():  # which may start the run again: then it goes on from its checkpoint
        trained = ()
    resumed = (RETRAINING, PRETRAINED, PRETRAINING) if pretrains else (RETRAINING,)
    with (
        stopping(options.go_on, lambda: kept_of(folder, resumed, options.go_on)),
        options.watching.hooks(unfinished_folder(folder), task.metric) as watchers,
        output_folder(folder, overwrite, over, trained, options.resume) as unfinished,
    ):
        if pretrains and (unfinished / PRETRAINED).exists():
            load_state_(task.model, load_checkpoint(unfinished / PRETRAINED), str(unfinished / PRETRAINED))
        elif pretrains:
            pretrain_into(task, spec, unfinished, seed, options.checkpoint_every)
        else:
            save_checkpoint(unfinished / PRETRAINED, task.model.state_dict())
        film = FrameLog(unfinished / FRAMES, task.metric, "look" if config.retrain.epochs is None else "epoch")
        try:
            own = [ProgressBar("retrain", metric=task.metric), CsvLog(unfinished / HISTORY, say), film]
            hooks = [spared_hook(hook) for hook in (*own, *watchers)]
            checkpoint = Checkpoint(unfinished / RETRAINING, options.checkpoint_every, say)
            way = _way(options, group)
            compressed = compress_task(
                task, config, hooks, target=target, checkpoint=checkpoint, distributed=way, say=say
            )
            task = dataclasses.replace(task, group=group)
        except DivergedError as error:
            with spared(f"saving {LAST_GOOD}"):
                save_checkpoint(unfinished / LAST_GOOD, error.state)
            raise
        try:
            spare = [unfinished / name for name in ((FRAMES,) if pretrains else (FRAMES, PRETRAINED))]
            _save_networks(unfinished, compressed, group, spare if group.size == 1 else [])  # what took the training
            with spared("the film for the report"):
                film.finish(compressed.mixtures, kept_filters(task.model, compressed), kept_classifier(task))
            result = with_records(_measured(task, compressed, config, options, spec))
        except Exception:  # the test failed, or the disk is full: the run is kept, with what can be known of it
            with contextlib.suppress(Exception):
                with_records(_measured(_without_test(task), compressed, config, options, spec)).save(
                    unfinished / RESULT
                )
            raise
        result.save(unfinished / RESULT)
        for hook in hooks:
            hook.on_result(compressed, result)
    out.print(result_panel(result, verdict(result), time.perf_counter() - start, dead_layers(compressed)))
    for message in kept_message(WeightView.of(task.model, config.prior.rules)):
        out.print(message)
    out.print(after_a_run(folder, folder / MODEL))
    if options.verbose:
        _print_details(folder, compressed, result, spec)
    if is_torchrun():  # which would start the run again
        return 0
    return NOT_MET if compressed.outcome and not compressed.outcome.met else HARMED if harmed(result) else 0


def _print_details(folder: Path, compressed: Compressed, result: Result, spec: str) -> None:
    """What few want to know of every run. The report and `softshare inspect` show most of it too."""
    out.print()
    print_file_table(out, inspect_file(folder / MODEL), str(folder / MODEL))
    for message in compressed.messages:
        out.print(message)
    out.print(tables.account_table(result))
    out.print(tables.result_table(result, EXPERIMENTS[spec].paper if spec in EXPERIMENTS else None))
    if compressed.outcome:
        out.print(str(compressed.outcome))
    out.print(f"The run used one seed ({result.seed}), and is in {folder}.")


def _save_networks(folder: Path, compressed: Compressed, group: Group, spare: list[Path]) -> None:
    """Both, or the one that can be written: the file is small, and the checkpoint needs no encoding.

    On a full disk, the files in `spare` make room for them, one after the other.
    """
    whole = dataclasses.replace(compressed, group=group)  # each process encodes its share
    try:
        _with_room(lambda: whole.save(folder / MODEL), spare)
    finally:
        _with_room(lambda: save_checkpoint(folder / RETRAINED, compressed.retrained), spare)


def _with_room(write: Callable[[], object], spare: list[Path]) -> None:
    while True:
        try:
            write()
        except SoftShareError as problem:
            full = isinstance(problem.__cause__, OSError) and problem.__cause__.errno in (errno.ENOSPC, errno.EDQUOT)
            if not full or not spare:
                raise
            with contextlib.suppress(FileNotFoundError):
                spare[0].unlink()
                say(f"the disk is full: {spare[0].name} was removed, to make room for the network")
            del spare[0]
        else:
            return


def kept_of(folder: Path, names: Sequence[str], go_on: str) -> str:
    """What is left of a run that was stopped at once, by a second Ctrl-C or outside of the training, and what to do.

    The names are those of files from which a run goes on, the latest first.
    """
    left = unfinished_folder(folder)
    found = [left / name for name in names if (left / name).exists()]
    if (left / MODEL).exists():
        then = go_on if found else "Move it away to keep it, or give the same command with --overwrite"
        return f"The compressed network is in {left / MODEL}, but it was not measured. {then}"
    return f"The run is kept in {found[0]}, as it was when that was written. {go_on}" if found else ""


def _measured(task: Task, compressed: Compressed, config: CompressConfig, options: RunOptions, spec: str) -> Result:
    fresh = get_experiment(spec).make_model().to(find_device(options.device)) if spec in EXPERIMENTS else None
    return measure(task, compressed, config, method=options.method, model=fresh)


def _without_test(task: Task) -> Task:
    return dataclasses.replace(task, test=None, dataset=f"{task.dataset}, validation") if task.test else task


def pretrain_into(
    task: Task, name: str, folder: Path, seed: int, every: float = EVERY, teacher: Path | None = None
) -> None:
    checkpoint, known = Checkpoint(folder / PRETRAINING, every, say), ""
    if teacher:
        known = hashlib.sha256(read_bytes(teacher)).hexdigest()
        task = taught(task, load_checkpoint(teacher), str(teacher))
    schedule = _schedule(name, seed)
    if get_experiment(name).captured:
        schedule = dataclasses.replace(schedule, capture=next(task.model.parameters()).is_cuda)
    pretrain_(task, schedule, [spared_hook(ProgressBar("pre-train"))], checkpoint, known)
    save_checkpoint(folder / PRETRAINED, task.model.state_dict())
    checkpoint.remove()


def _schedule(name: str, seed: int) -> RetrainConfig:
    return dataclasses.replace(get_experiment(name).pretrain, seed=seed)


def _pretraining(spec: str, weights: Path | None, options: TaskOptions, seed: int) -> dict[str, Any]:
    """How the network was pre-trained, for the result. Empty for a user's network without --weights."""
    if weights:
        return {"pretrain": {"weights": weights.name, "sha256": hashlib.sha256(read_bytes(weights)).hexdigest()}}
    if spec not in EXPERIMENTS:
        return {}
    return {"pretrain": None if options.from_scratch else pretraining_settings(_schedule(spec, seed))}


def _require_the_same(pretraining: Any, recorded: Any) -> None:
    """Raise unless a repeated run starts from the same network as the recorded one."""
    if recorded is None or pretraining == recorded or not isinstance(recorded, dict):
        return
    if "sha256" not in recorded:
        raise ConfigError(
            "--config: the recorded run pre-trained its network in another way than this run would. Name the same task "
            "and give no --weights; a kept result is repeated with `softshare reproduce`"
        )
    if isinstance(pretraining, dict) and pretraining.get("sha256") == recorded["sha256"]:
        return  # the same file, perhaps under another name
    raise ConfigError(
        f"--config: the recorded run started from {recorded.get('weights')} with SHA-256 "
        f"{str(recorded['sha256'])[:16]}... Give that file with --weights"
    )
