"""An Optuna study that several processes share and any of them may leave: no trial is run twice, none is lost.

Every running trial has a heartbeat in the storage (see `storages`). When it stops, Optuna fails the trial and queues
another one with the same settings, which goes to the next process that asks. Processes that share a folder know at
once, by its locks, that a process has died.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softshare.config import Range
from softshare.errors import ConfigError, FormatError, NotAvailableError, SoftShareError
from softshare.task import Metric
from softshare.tune.space import Space

if TYPE_CHECKING:
    import optuna

    from softshare.tune.storages import Storage

RETRIES = 2  # of a trial whose process died: the trial itself may be the cause
# Attributes of a trial: that it has a heartbeat, that all its settings are drawn, and that it is not to be run again.
_BEATS, _DRAWN, _GIVEN_UP = "beats", "drawn", "given up"
_SETTINGS = "softshare"  # attribute of a study


def require_optuna() -> None:
    try:
        import filelock  # noqa: F401
        import optuna  # noqa: F401
        import scipy  # noqa: F401
    except ImportError as problem:
        raise NotAvailableError(
            f"tune needs optuna, scipy and filelock ({problem}): pip install 'softshare[tune]'"
        ) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's log, and without its warnings that heartbeats may change and that `ask` starts none."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "Heartbeat of storage is supposed to be used with Study.optimize")
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextlib.contextmanager
def _storage_errors() -> Iterator[None]:
    """Those of a database as ours; its address is not told, for it may hold a password."""
    try:
        yield
    except _errors() as problem:
        raise ConfigError(
            f"the study's storage: {_said(problem)}; once it is right, run the same command again"
        ) from problem


def _errors() -> tuple[type[Exception], ...]:
    """Those that the storages raise."""
    import optuna
    import sqlalchemy.exc

    redis = sys.modules.get("redis")
    of_redis = (redis.exceptions.RedisError,) if redis else ()
    return optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError, *of_redis


def _said(problem: Exception) -> str:
    """What the database itself says, without the statement."""
    cause = problem.__cause__ or problem
    return str(getattr(cause, "orig", None) or cause).partition("\n")[0]


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Within, any error is one of a storage that does not hold what `tune` writes. So nothing is trained within."""
    try:
        with _storage_errors():
            yield
    except (SoftShareError, ImportError):
        raise
    except Exception as problem:
        kind = type(problem).__name__
        raise FormatError(
            f"the study's storage: expected a study as tune writes it, got another ({kind}: {_said(problem)}). Put a "
            "copy of it back, or give another --out"
        ) from problem


@contextlib.contextmanager
def open_storage(url: str) -> Iterator[Storage]:
    """The storage at an address, until the end of the block; its errors are raised as ours."""
    from softshare.tune.storages import closing, make_storage

    with _storage_errors():
        try:
            with reading():
                storage = make_storage(url, _queue_again)
        except ImportError as problem:
            raise NotAvailableError(
                f"the study's storage: {problem.__cause__ or problem}. Drivers for PostgreSQL and Redis: "
                "pip install 'softshare[storage]'"
            ) from problem
        with closing(storage):
            yield storage


def open_study(
    storage: Storage,
    name: str,
    settings: Mapping[str, Any],
    sampler: optuna.samplers.BaseSampler,
    metric: Metric,
) -> optuna.Study:
    """The study of this name in the storage, new or as it stands there; it must be one of the same settings."""
    import optuna

    study = optuna.create_study(
        storage=storage, study_name=name, sampler=sampler, directions=["minimize", "minimize"], load_if_exists=True
    )
    # Optuna minimizes both objectives, so a metric that should be high is negative there.
    study.set_metric_names([f"{'-' * metric.higher_is_better}validation {metric.label}", "bytes"])
    ours = json.loads(json.dumps(settings))
    theirs = study.user_attrs.get(_SETTINGS, ours)
    if differing := [key for key in {**ours, **theirs} if theirs.get(key) != ours.get(key)]:
        raise ConfigError(
            f"the study {name!r} has other settings ({', '.join(differing)}); give those it was begun with, another "
            "--study, or another --out"
        )
    study.set_user_attr(_SETTINGS, ours)
    return study


@dataclass(frozen=True)
class Counts:
    """Trials of a study by their state. One that failed, because its process was stopped, counts nowhere."""

    finished: int  # complete or pruned
    running: int


def count(study: optuna.Study) -> Counts:
    from optuna.trial import TrialState

    states = [trial.state for trial in study.get_trials(deepcopy=False)]
    finished = states.count(TrialState.COMPLETE) + states.count(TrialState.PRUNED)
    return Counts(finished, states.count(TrialState.RUNNING))


def ask(
    study: optuna.Study,
    storage: Storage,
    space: Space,
    trials: int,
    is_dead: Callable[[int], bool] | None = None,
) -> optuna.Trial | None:
    """The next trial, with all its settings; None where all are begun.

    Call it from one process at a time: SQLite locks no rows, so two could get the same queued trial. `is_dead` says
    whether the process of a running trial has died, by the trial's number. None: it is known by its heartbeats alone.
    """
    _requeue_lost(study, storage, is_dead)
    now = count(study)
    if now.finished + now.running >= trials:
        return None
    trial = study.ask({name: _distribution(range) for name, range in space.items()})
    trial.set_user_attr(_DRAWN, True)
    _begin_heartbeat(study, storage, trial.number)
    before = [t for t in study.get_trials(deepcopy=False) if t.number < trial.number and t.state.name != "FAIL"]
    if len(before) >= trials:  # processes that share no folder, and so no lock, have both gone for the last one
        give_up(study, trial)
        return None
    return trial


def _distribution(range: Range) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    if isinstance(range.low, int) and isinstance(range.high, int):
        return IntDistribution(range.low, range.high, log=range.log)
    return FloatDistribution(range.low, range.high, log=range.log)


def _requeue_lost(study: optuna.Study, storage: Storage, is_dead: Callable[[int], bool] | None) -> None:
    """Give up the trials whose process died, and queue them again."""
    import optuna

    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        if is_dead and is_dead(trial.number):
            requeue(study, trial)
        elif _BEATS not in trial.user_attrs:
            # Optuna never gives up a trial without a heartbeat, but its process may have died before the first one. It
            # gets one from us, and no other.
            with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
                _begin_heartbeat(study, storage, trial.number)
    optuna.storages.fail_stale_trials(study)
    if is_dead:  # no other process is between the two steps of `requeue`
        _queue_failed(study)


def _queue_failed(study: optuna.Study) -> None:
    """Queue the failed trials again whose process died before it could do so."""
    from optuna.storages import RetryHeartbeatStaleTrialCallback

    trials = study.get_trials()
    again = {number for trial in trials for number in RetryHeartbeatStaleTrialCallback.retry_history(trial)}
    for trial in trials:
        if trial.state.name == "FAIL" and trial.number not in again and _GIVEN_UP not in trial.user_attrs:
            _queue_again(study, trial)


def give_up(study: optuna.Study, trial: optuna.Trial) -> None:
    """End a running trial as failed, for good."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    with contextlib.suppress(UpdateFinishedTrialError):
        trial.set_user_attr(_GIVEN_UP, True)
        study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)


def requeue(study: optuna.Study, trial: optuna.Trial | optuna.trial.FrozenTrial) -> None:
    """End a running trial as failed, and queue another of the same settings."""
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.trial import TrialState

    try:
        failed = study.tell(trial.number, state=TrialState.FAIL)
    except (ValueError, UpdateFinishedTrialError):
        return  # another process was quicker, or the trial was alive after all and has ended
    _queue_again(study, failed)


def _queue_again(study: optuna.Study, failed: optuna.trial.FrozenTrial) -> None:
    from optuna.storages import RetryHeartbeatStaleTrialCallback

    is_drawn = _DRAWN in failed.user_attrs
    if not is_drawn:  # some settings may be missing. All are drawn again: the rest alone would come out different
        failed.params, failed.distributions = {}, {}
    failed.user_attrs = {_DRAWN: True} if is_drawn else {}  # nothing is measured, and there is no heartbeat
    RetryHeartbeatStaleTrialCallback(RETRIES)(study, failed)


def place(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> int:
    """The trial's number in a study without retries; a retry has that of the trial it stands for."""
    from optuna.storages import RetryHeartbeatStaleTrialCallback

    first = RetryHeartbeatStaleTrialCallback.retried_trial_number
    own = first(trial)
    before = study.get_trials(deepcopy=False)[: trial.number if own is None else own]
    return sum(first(t) is None for t in before)


def _begin_heartbeat(study: optuna.Study, storage: Storage, number: int) -> None:
    from softshare.tune.storages import trial_id

    own = trial_id(study, storage, number)
    storage.record_heartbeat(own)
    storage.set_trial_user_attr(own, _BEATS, True)


@contextlib.contextmanager
def heartbeats(study: optuna.Study, storage: Storage, trial: optuna.Trial) -> Iterator[None]:
    """One every few seconds, for as long as the trial runs.

    Optuna's own thread is private to `Study.optimize`, and it ends at the first error of the storage; a trial that is
    alive would then be given up.
    """
    from optuna.exceptions import UpdateFinishedTrialError

    from softshare.tune import storages

    own, stop = storages.trial_id(study, storage, trial.number), threading.Event()

    def beat() -> None:
        while not stop.wait(storages.HEARTBEAT):
            # The next one may pass. If another process has given up the trial, its end says so.
            with contextlib.suppress(*_errors(), OSError, UpdateFinishedTrialError):
                storage.record_heartbeat(own)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
