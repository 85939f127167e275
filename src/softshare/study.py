"""An Optuna study that several processes share and any of them may leave: opened, counted, its lost trials found."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softshare.errors import ConfigError, NotAvailableError

if TYPE_CHECKING:
    import optuna

HEARTBEAT, GRACE = 10, 60  # seconds: a process gives a sign of life so often; after as long without, it is gone
RETRIES = 2  # of a trial whose process is gone: that may be what it does to every process
_SETTINGS = "softshare"


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
    """Optuna's log and its warnings of interfaces that may change: what happens to a trial is said by us."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Those of a database as ours; its address is not told, for it may hold a password."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as problem:
        raise ConfigError(f"the study's storage: {problem}; once it is right, run the same command again") from problem


def open_study(url: str, name: str, settings: Mapping[str, Any], sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    """The study of this name in the storage, new or as it stands there; it must be one of the same settings."""
    import optuna
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback

    wait = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}  # seconds, for another to write
    try:
        storage = RDBStorage(
            url,
            engine_kwargs=wait,
            heartbeat_interval=HEARTBEAT,
            grace_period=GRACE,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
        )
    except ImportError as problem:
        raise NotAvailableError(f"the study's storage: {problem.__cause__ or problem}") from problem
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        sampler=sampler,
        directions=["minimize", "minimize"],
        load_if_exists=True,
    )
    study.set_metric_names(["validation error %", "bytes"])
    ours = json.loads(json.dumps(settings))
    theirs = study.user_attrs.get(_SETTINGS, ours)
    if differing := [key for key in ours if theirs.get(key) != ours[key]]:
        raise ConfigError(
            f"the study {name!r} has other settings ({', '.join(differing)}); give those it was begun with, another "
            "--study, or another --out"
        )
    study.set_user_attr(_SETTINGS, ours)
    return study


@dataclass(frozen=True)
class Counts:
    """Trials of a study by what has become of them. One that failed, as its process was stopped, counts nowhere."""

    finished: int  # complete or pruned
    running: int


def count(study: optuna.Study) -> Counts:
    """After trials of processes that are gone were queued again."""
    import optuna
    from optuna.trial import TrialState

    optuna.storages.fail_stale_trials(study)
    states = [trial.state for trial in study.get_trials(deepcopy=False)]
    finished = sum(state in (TrialState.COMPLETE, TrialState.PRUNED) for state in states)
    return Counts(finished, states.count(TrialState.RUNNING))


def is_surplus(study: optuna.Study, number: int, trials: int) -> bool:
    """Whether so many were begun before this trial: two processes may have gone for the last one."""
    from optuna.trial import TrialState

    before = [t for t in study.get_trials(deepcopy=False) if t.number < number and t.state != TrialState.FAIL]
    return len(before) >= trials
