"""Tune: search a task's settings for the smallest files at the lowest errors, with Optuna (paper, section 6.2).

Two objectives, both measured from the file that a trial leaves: the validation error of the network it decodes to, or
another metric of the task, and its bytes. The test set is read at the end, once for each point of the front.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softshare._util.files import read_bytes, require_plain
from softshare._util.run_folder import MODEL, PRETRAINED, PRETRAINING, RESULT, output_folder
from softshare._util.run_lock import is_written, sole_writer
from softshare._util.words import duration
from softshare.compressed import Compressed
from softshare.config import CompressConfig
from softshare.errors import ConfigError, DivergedError, NotANumberError
from softshare.network.checkpoint import load_checkpoint, save_checkpoint
from softshare.network.weights import WeightView, load_state_
from softshare.result import Result, measure
from softshare.route import compress
from softshare.task import Metric, Task
from softshare.train.hooks import EpochRecord, Hook, Hooks, no_hooks, say_nothing
from softshare.train.resume import Checkpoint
from softshare.tune.plots import Others, no_others
from softshare.tune.space import Space, require_inside, search_space, values_in, with_values
from softshare.tune.study import (
    ask,
    count,
    give_up,
    heartbeats,
    open_storage,
    open_study,
    quiet,
    reading,
    requeue,
    require_optuna,
)
from softshare.tune.study_folder import TRIALS, prepare_folders, trial_folder, with_tests, write_summary
from softshare.tune.trials import MEASURED, REASON, Row, front, rows_of

if TYPE_CHECKING:
    import optuna
    from filelock import FileLock

    from softshare.tune.storages import Storage

SAMPLERS = ("gp", "tpe", "nsga2")
# How much worse than before makes a trial hopeless, unless a bound is given.
RISE = 5.0  # points of a metric in percent
RISE_SHARE = 0.5  # of the value of another metric
POLL = 1.0  # seconds between looks at trials that other processes run
STUDY, LOCK = "study.db", ".lock"
_BOUND = "bound"  # attribute of a study


@dataclass(frozen=True)
class StudyConfig:
    """What a search is asked for."""

    trials: int = 40  # total number of finished ones, across processes and restarts
    sampler: str = "gp"  # of SAMPLERS
    error_bound: float | None = None  # of the metric on validation data; None: that of the network before, and RISE
    storage: str | None = None  # an address as docs/tuning.md has them; None: an SQLite file in the folder
    name: str | None = None  # of the study in its storage; None: the task's

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"trials: expected at least 1, got {self.trials}")
        if self.sampler not in SAMPLERS:
            raise ConfigError(f"sampler: expected one of {', '.join(SAMPLERS)}, got {self.sampler!r}")


@dataclass(frozen=True)
class Job:
    """What is searched, and where it is kept."""

    task: Task
    config: CompressConfig  # the first trial, and what all others have in common
    folder: Path
    held: Collection[str] = ()  # settings that are not searched
    method: str = "softshare"
    recorded: Mapping[str, Any] = field(default_factory=dict)  # of the task, beside the config in every result
    weights: Path | None = None  # of the network that all trials start from; None: the task's, after `pretrain_`
    pretrain_: Callable[[Task, Checkpoint], object] = lambda task, checkpoint: None  # called once for a study
    judge: Task | None = None  # a task of the same, which reads the test set; None: the task itself
    others: Callable[[str], Others] = no_others  # what was published of a network, by its name

    @property
    def space(self) -> Space:
        return search_space(self.config, self.held)


def tune(
    job: Job, asked: StudyConfig, *, hooks: Hooks = no_hooks, say: Callable[[str], None] = say_nothing
) -> list[Row]:
    """Run trials until the study has as many as asked for; then measure its front on the test set and sum it up.

    An existing study is resumed, and any number of processes may share it.
    """
    require_optuna()
    from filelock import FileLock

    if not job.space:
        raise ConfigError("every setting with a range is held: leave at least one to the search")
    require_inside(job.config, job.space)
    WeightView.of(job.task.model, job.config.prior.rules).check()
    prepare_folders(job.folder)
    for name in (LOCK, STUDY, PRETRAINED, PRETRAINING):
        require_plain(job.folder / name)
    lock, url = FileLock(job.folder / LOCK), asked.storage or f"sqlite:///{(job.folder / STUDY).resolve()}"
    with quiet(), contextlib.ExitStack() as stack:
        with lock:  # the first process prepares, the others wait for it
            storage = stack.enter_context(open_storage(url))
            _start_(job, say)
            search = _Search(job, asked, storage, hooks, say)
        search.run(lock)
        with lock:
            metric = job.task.metric
            with reading():
                found = rows_of(search.study, metric)
            search.collect(front(found))
            rows = with_tests(found, job.folder, job.judge or job.task)
            write_summary(rows, job.folder, job.task.name, search.space, job.others(job.task.name), metric, say)
    return rows


def _start_(job: Job, say: Callable[[str], None]) -> None:
    """Put the study's network into the task: every trial of every process starts from the same weights."""
    file, model = job.folder / PRETRAINED, job.task.model
    checkpoint = Checkpoint(job.folder / PRETRAINING, say=say)
    if job.weights:
        load_state_(model, load_checkpoint(job.weights), str(job.weights))
    if file.exists():
        kept = load_checkpoint(file)
        if job.weights and not _same(kept, model.state_dict()):
            raise ConfigError(f"{job.folder} holds a study of another network than {job.weights}; give another --out")
        load_state_(model, kept, str(file))
        say(f"pre-trained weights: {file}")
    else:
        if not job.weights:
            job.pretrain_(job.task, checkpoint)
        save_checkpoint(file, model.state_dict())
    checkpoint.remove()


def _same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name].cpu(), b[name].cpu()) for name in a)


class _Search:
    """One process's part in a study."""

    def __init__(
        self,
        job: Job,
        asked: StudyConfig,
        storage: Storage,
        hooks: Hooks,
        say: Callable[[str], None],
    ) -> None:
        from softshare.tune.samplers import make_sampler

        self.job, self.asked, self.storage, self.hooks, self.say = job, asked, storage, hooks, say
        self.space = job.space
        self.blind = dataclasses.replace(job.task, test=None, dataset=f"{job.task.dataset}, validation")
        self.metric = job.task.metric
        self.before = self.blind.judge_all(job.task.model, final=True)
        settings = {
            "task": [job.task.name, job.task.dataset, dict(job.recorded)],
            "config": job.config.to_dict(),
            "space": {name: dataclasses.asdict(range) for name, range in self.space.items()},
            "error_bound": asked.error_bound,
            "pretrained": hashlib.sha256(read_bytes(job.folder / PRETRAINED)).hexdigest(),
        }
        if self.metric != Metric():  # studies from before there were metrics can be resumed
            settings["metric"] = dataclasses.asdict(self.metric)
        sampler = make_sampler(asked.sampler, job.config.seed % 2**32)
        with reading():
            self.study = open_study(storage, asked.name or job.task.name, settings, sampler, self.metric)
            self.bound = self.kept_bound()
            if not self.study.get_trials(deepcopy=False):
                self.study.enqueue_trial(values_in(job.config, self.space))  # what the search must beat

    def kept_bound(self) -> float:
        """The bound that the study was begun with: the error before may come out a little different elsewhere."""
        if _BOUND not in self.study.user_attrs:
            before, asked = self.before[self.metric.name], self.asked.error_bound
            rise = RISE if self.metric.unit == "%" else RISE_SHARE * abs(before)
            self.study.set_user_attr(_BOUND, self.metric.worse(before, rise) if asked is None else asked)
        return float(self.study.user_attrs[_BOUND])

    def run(self, lock: FileLock) -> None:
        """Until the study has its trials, whoever runs them."""
        began, before, waiting = time.monotonic(), count(self.study).finished, False
        while (now := count(self.study)).finished < self.asked.trials:
            with contextlib.ExitStack() as held:
                with lock, reading():
                    trial = ask(self.study, self.storage, self.space, self.asked.trials, self.is_dead)
                    if trial:
                        held.enter_context(sole_writer(self.running(trial.number)))
                outcome = self.run_one(trial, lock) if trial else ""
            if trial:
                done = count(self.study).finished
                pace = (time.monotonic() - began) / max(1, done - before)  # of all processes
                left = duration(pace * max(0, self.asked.trials - done))
                self.say(f"trial {trial.number}: {outcome}; {done} of {self.asked.trials} done, {left} left")
            elif not waiting:
                waiting = True
                self.say(f"waiting for trials that other processes have begun: {now.running}")
            else:
                time.sleep(POLL)

    def running(self, number: int) -> Path:
        """A name in the folder that the process of a trial has locked."""
        return self.job.folder / f"running-{number}"

    @property
    def is_dead(self) -> Callable[[int], bool] | None:
        """Whether the process of a trial has died. If the storage is not in the folder, it may be elsewhere."""
        return None if self.asked.storage else lambda number: not is_written(self.running(number))

    def run_one(self, trial: optuna.Trial, lock: FileLock) -> str:
        """The trial to its end in the study, and what came of it in words."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            with heartbeats(self.study, self.storage, trial):
                return self.end(trial)
        except UpdateFinishedTrialError:
            return "given up by another process, because its heartbeat stopped for too long"
        except KeyboardInterrupt:
            with lock:
                requeue(self.study, trial)  # for the next call
            raise
        except Exception:
            give_up(self.study, trial)
            raise

    def end(self, trial: optuna.Trial) -> str:
        """With its two values or, if it is hopeless, as pruned, which has none: Optuna prunes by a single objective, so
        that what is hopeless is said here.
        """
        from optuna.trial import TrialState

        try:
            result = self.try_one(trial)
        except (DivergedError, NotANumberError, _HopelessError) as problem:
            reason = str(problem).partition(". ")[0]  # what comes after it in a message is advice
            trial.set_user_attr(REASON, reason)
            self.study.tell(trial, state=TrialState.PRUNED)
            return f"pruned, {reason}"
        values = [self.metric.badness(result.error_after), float(result.file_bytes)]
        if self.asked.storage:
            self.send(trial, values)
        self.study.tell(trial, values)
        return f"{self.metric.name} {self.metric.text(result.error_after)}, {result.file_bytes:,} bytes"

    def send(self, trial: optuna.Trial, values: list[float]) -> None:
        """Put the file into the storage, if it is of the front: the process that sums up may be on another machine."""
        from softshare.tune.sending import MOST_SENT, is_beaten, send

        if is_beaten(values, self.study):
            return
        folder = trial_folder(self.job.folder / TRIALS, trial.number)
        if not send(self.study, self.storage, trial, folder):
            self.say(f"{folder / MODEL} stays here, because it has more than {MOST_SENT:,} bytes")

    def collect(self, best: Sequence[Row]) -> None:
        """Get the files of the front that other machines have made."""
        from softshare.tune.sending import fetch

        for row in best:
            folder = trial_folder(self.job.folder / TRIALS, row.trial)
            if self.asked.storage and not (folder / RESULT).exists():
                with reading():
                    found = fetch(self.study, self.storage, row.trial, folder)
                if not found:
                    self.say(f"trial {row.trial} of the front stays on the machine that made it")

    def try_one(self, trial: optuna.Trial) -> Result:
        """Compress, measure, write; an error says that it is hopeless."""
        config = with_values(self.job.config, trial.params)
        watch = _Watch(self.bound, self.metric)
        compressed = compress(
            self.blind, config, [watch, *self.hooks(f"trial {trial.number}")], target=None, say=say_nothing
        )
        result = self.keep(trial, compressed, config)
        if not any(t.n_nonzero for t in compressed.quantized.shared):
            raise _HopelessError("collapsed: every shared weight is zero")
        watch.require(result.error_after)
        return result

    def keep(self, trial: optuna.Trial, compressed: Compressed, config: CompressConfig) -> Result:
        """The trial's file and, beside it, its result; there errors are on validation data."""
        with output_folder(trial_folder(self.job.folder / TRIALS, trial.number), overwrite=True) as unfinished:
            compressed.save(unfinished / MODEL)  # kept, even if it cannot be measured
            result = measure(self.blind, compressed, config, method=self.job.method, error_before=self.before)
            result = dataclasses.replace(result, config={**result.config, **self.job.recorded})
            result.save(unfinished / RESULT)
        figures = {name: getattr(result, name) for name in ("file_bytes", "ratio", "han_ratio", "seconds")}
        errors = {"validation_error_before": result.error_before, "validation_error": result.error_after}
        trial.set_user_attr(MEASURED, errors | figures)
        return result


class _HopelessError(Exception):
    """A trial that cannot come to anything."""


class _Watch(Hook):
    """Ends a training whose metric is past the bound in the second half of the run; before, it may be on its way."""

    def __init__(self, bound: float, metric: Metric) -> None:
        self.bound, self.metric = bound, metric

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self.epochs = epochs

    def on_epoch(self, record: EpochRecord) -> None:
        if 2 * record.epoch >= self.epochs:
            self.require(record.validation_error)

    def require(self, error: float) -> None:
        if not self.metric.loss(self.bound, error) <= 0:
            value, bound = self.metric.text(error), self.metric.text(self.bound)
            raise _HopelessError(f"validation {self.metric.name} {value}, past the bound of {bound}")
