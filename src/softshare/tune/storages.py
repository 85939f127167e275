"""Where a study is kept: a database, a Redis server, or a journal file on a disk that several machines share.

Databases count heartbeats by their own clock, as Optuna does it. A journal has no clock and no heartbeats. There, a
trial that runs counts upwards in the journal, and each process looks with its own clock whether the count still moves.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages._heartbeat import BaseHeartbeat  # what optuna.storages.fail_stale_trials asks for
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.trial import TrialState
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from softshare.errors import ConfigError

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

HEARTBEAT, GRACE = 10, 60  # seconds between heartbeats, and without any until a trial's process counts as dead
# Of processes that find a database empty at the same moment and make its tables, all but one fail. Then they find them.
ATTEMPTS, PAUSE = 5, 0.5  # seconds
BEAT = "beat"  # attribute of a trial in a journal: heartbeats so far
JOURNAL, REDIS = "journal://", ("redis://", "rediss://", "unix://")
POSTGRESQL, DRIVEN = "postgresql://", "postgresql+psycopg://"  # without a driver, SQLAlchemy 2.0 takes another one

Requeue = Callable[["optuna.Study", "FrozenTrial"], None]


class Journal(JournalStorage, BaseHeartbeat):
    """A journal with heartbeats. The clocks of machines need not agree."""

    def __init__(self, backend: Any, requeue: Requeue, grace_period: float) -> None:
        super().__init__(backend)
        self._requeue, self.grace_period = requeue, grace_period
        self._seen: dict[int, tuple[int, float]] = {}  # the count of each trial, and when this process first saw it

    def record_heartbeat(self, trial_id: int) -> None:
        self.set_trial_user_attr(trial_id, BEAT, self._count(trial_id) + 1)

    def _count(self, trial_id: int) -> int:
        return int(self.get_trial(trial_id).user_attrs.get(BEAT, 0))

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        now, before, self._seen = time.monotonic(), self._seen, {}
        for trial in self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,)):
            found = int(trial.user_attrs.get(BEAT, 0))
            known = before.get(trial._trial_id)
            self._seen[trial._trial_id] = known if known and known[0] == found else (found, now)
        return [k for k, (_, since) in self._seen.items() if now - since > self.grace_period]

    def get_heartbeat_interval(self) -> int:
        return HEARTBEAT

    def get_heartbeat_stale_trial_callback(self) -> Requeue:
        return self._requeue


Storage = RDBStorage | Journal


def make_storage(url: str, requeue: Requeue) -> Storage:
    """The storage at an address. `requeue` is called for a trial whose heartbeats have stopped."""
    if url.startswith(JOURNAL):
        path = Path(url.removeprefix(JOURNAL))
        if not path.parent.is_dir():
            raise ConfigError(f"the study's storage: there is no folder {path.parent}; create it")
        return Journal(JournalFileBackend(str(path)), requeue, GRACE)
    if url.startswith(REDIS):
        return Journal(JournalRedisBackend(url), requeue, GRACE)
    if url.startswith(POSTGRESQL):
        url = DRIVEN + url.removeprefix(POSTGRESQL)
    # SQLite says "exists already" by the error with which other databases say that they cannot be reached.
    exists = (IntegrityError, ProgrammingError, *([OperationalError] if url.startswith("sqlite") else []))
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(*exists):
            return _database(url, requeue)
        time.sleep(PAUSE)
    return _database(url, requeue)


def _database(url: str, requeue: Requeue) -> RDBStorage:
    wait = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}  # seconds, for another to write
    return RDBStorage(
        url,
        engine_kwargs=wait,
        heartbeat_interval=HEARTBEAT,
        grace_period=GRACE,
        heartbeat_stale_trial_callback=requeue,
    )


@contextlib.contextmanager
def closing(storage: Storage) -> Iterator[Storage]:
    try:
        yield storage
    finally:
        if isinstance(storage, RDBStorage):
            storage.remove_session()
            storage.engine.dispose()


def trial_id(study: optuna.Study, storage: Storage, number: int) -> int:
    return storage.get_trial_id_from_study_id_trial_number(storage.get_study_id_from_name(study.study_name), number)
