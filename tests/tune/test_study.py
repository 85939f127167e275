from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import optuna
import pytest
from optuna.trial import TrialState

from softshare.config import Range
from softshare.errors import ConfigError, NotAvailableError
from softshare.task import Metric
from softshare.tune import storages
from softshare.tune import study as studies
from softshare.tune.samplers import make_sampler
from softshare.tune.study import (
    Counts,
    ask,
    count,
    heartbeats,
    open_storage,
    open_study,
    place,
    quiet,
    requeue,
    require_optuna,
)

SPACE = {"tau": Range(0.001, 0.1, log=True), "components": Range(2, 64, log=True), "hard_from": Range(0.0, 0.5)}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


class Shared(NamedTuple):
    """A study, and its storage as one process opened it."""

    study: optuna.Study
    storage: storages.Storage

    def ask(self, trials: int = 10) -> optuna.Trial | None:
        return ask(self.study, self.storage, SPACE, trials)

    def begin(self, trials: int = 10) -> optuna.Trial:
        trial = self.ask(trials)
        assert trial is not None
        return trial

    def heartbeats(self, trial: optuna.Trial) -> contextlib.AbstractContextManager[None]:
        return heartbeats(self.study, self.storage, trial)

    def lose_patience(self) -> None:
        """From now on, a heartbeat of this very second is too old."""
        self.storage.grace_period = -1


class Opened(Protocol):
    def __call__(self, **settings: object) -> Shared: ...


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the same study every time, as another process would; closes all at the end."""
    with contextlib.ExitStack() as stack:

        def open_one(**settings: object) -> Shared:
            storage = stack.enter_context(open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
            sampler = optuna.samplers.RandomSampler(seed=0)
            return Shared(open_study(storage, "net", {"config": 1, **settings}, sampler, Metric()), storage)

        yield open_one


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


@pytest.mark.slow
def test_a_trial_comes_with_all_its_settings_each_in_its_range(opened: Opened) -> None:
    trial = opened().begin()
    assert set(trial.params) == set(SPACE)
    for name, range in SPACE.items():
        assert range.low <= trial.params[name] <= range.high
    assert isinstance(trial.params["components"], int)
    floats = optuna.distributions.FloatDistribution(0.001, 0.1, log=True)
    assert trial.distributions["tau"] == floats


@pytest.mark.slow
def test_no_more_are_begun_than_asked_for(opened: Opened) -> None:
    shared = opened()
    study, trials = shared.study, [shared.begin(3) for _ in range(3)]
    assert shared.ask(3) is None
    assert count(study) == Counts(finished=0, running=3)
    study.tell(trials[0], [1.0, 2.0])
    study.tell(trials[1], state=TrialState.PRUNED)
    study.tell(trials[2], state=TrialState.FAIL)  # stopped: it counts nowhere
    assert count(study) == Counts(finished=2, running=0)
    shared.begin(3)
    assert shared.ask(3) is None


def test_of_two_that_go_for_the_last_one_the_second_gives_it_back(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes without a common folder cannot lock each other out."""
    first, second = opened(), opened()
    monkeypatch.setattr(studies, "count", lambda study: Counts(0, 0))  # both looked before either had begun
    assert first.begin(1).number == 0
    assert second.ask(1) is None
    assert states(first.study) == ["RUNNING", "FAIL"]


# Trials whose process died


def test_a_silent_trial_is_run_again_with_the_same_settings_but_not_for_ever(opened: Opened) -> None:
    shared = opened()
    lost = shared.begin()
    lost.set_user_attr("measured", {"file_bytes": 1})
    other = shared.begin()
    assert other.params != lost.params  # it is not silent yet
    shared.study.tell(other, [1.0, 2.0])
    shared.lose_patience()
    begun = [shared.begin() for _ in range(studies.RETRIES + 1)]
    assert [trial.params == lost.params for trial in begun] == [True] * studies.RETRIES + [False]
    assert "measured" not in begun[0].user_attrs  # that was another trial's


@pytest.mark.slow
def test_of_two_that_find_a_silent_trial_one_queues_it_again(opened: Opened) -> None:
    first, second = opened(), opened()
    lost = first.begin()
    for shared in (first, second):
        shared.lose_patience()
        studies._requeue_lost(shared.study, shared.storage, None)
    assert states(first.study) == ["FAIL", "WAITING"]
    assert second.begin().params == lost.params


@pytest.mark.slow
@pytest.mark.parametrize("retried", [False, True])
def test_a_process_that_died_before_the_first_heartbeat_is_not_waited_for(opened: Opened, retried: bool) -> None:
    shared = opened()
    if retried:
        requeue(shared.study, shared.begin(1))
    died = shared.study.ask()  # no heartbeat, and perhaps no setting yet
    settings = died.params
    assert shared.ask(1) is None
    assert states(shared.study)[died.number] == "RUNNING"
    shared.lose_patience()
    again = shared.begin(1)
    assert states(shared.study)[died.number] == "FAIL"
    assert again.params | settings == again.params
    assert set(again.params) == set(SPACE)


@pytest.mark.slow
def test_a_trial_with_heartbeats_is_not_given_up(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storages, "HEARTBEAT", 0.1)
    shared = opened()
    shared.storage.grace_period = 1
    trial = shared.begin(1)
    with shared.heartbeats(trial):
        time.sleep(2.5)  # the storage counts whole seconds
        assert shared.ask(1) is None
    assert states(shared.study) == ["RUNNING"]
    shared.lose_patience()
    assert shared.begin(1).params == trial.params
    assert states(shared.study) == ["FAIL", "RUNNING"]


def test_heartbeats_outlast_an_error_of_the_storage_and_end_with_the_trial(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "HEARTBEAT", 0.02)
    shared, beats = opened(), list[int]()
    trial = shared.begin()

    def busy(trial_id: int) -> None:
        beats.append(trial_id)
        raise optuna.exceptions.StorageInternalError("the database is locked")

    monkeypatch.setattr(shared.storage, "record_heartbeat", busy)
    with shared.heartbeats(trial):
        until = time.monotonic() + 60
        while len(beats) < 3:
            assert time.monotonic() < until
            time.sleep(0.02)
    n = len(beats)
    time.sleep(0.1)
    assert len(beats) == n


def test_a_trial_that_ended_meanwhile_is_not_queued_again(opened: Opened) -> None:
    shared = opened()
    trial = shared.begin()
    shared.study.tell(trial, [1.0, 2.0])
    requeue(shared.study, trial)
    assert states(shared.study) == ["COMPLETE"]


@pytest.mark.slow
def test_a_trial_that_was_queued_again_has_the_place_of_the_first(opened: Opened) -> None:
    shared = opened()
    first, second = shared.begin(), shared.begin()
    requeue(shared.study, first)
    requeue(shared.study, shared.begin())
    shared.begin()
    shared.begin()
    requeue(shared.study, second)
    assert [place(shared.study, trial) for trial in shared.study.trials] == [0, 1, 0, 0, 2, 1]


class KilledError(BaseException):
    """In place of the end of the process."""


WRITES = (
    *("create_new_trial", "set_trial_param", "set_trial_state_values", "set_trial_user_attr", "set_trial_system_attr"),
    *("set_study_system_attr", "record_heartbeat"),
)


def played(path: Path, sampler: str, trials: int, writes: int | None = None) -> list[dict[str, float]]:
    """The settings of a study of one process, which is killed again and again after this many writes to its storage."""

    def is_dead(number: int) -> bool:
        return True

    for _ in range(100):
        with contextlib.suppress(KilledError), open_storage(f"sqlite:///{path}") as storage:
            study = open_study(storage, "net", {}, make_sampler(sampler, 0), Metric())
            left = itertools.count(writes or sys.maxsize, -1)
            with pytest.MonkeyPatch.context() as patch:
                for name in WRITES:
                    for one in (study._storage, storage):  # the first keeps a copy of the trials in memory
                        patch.setattr(one, name, functools.partial(_or_killed, left, getattr(one, name)))
                while trial := ask(study, storage, SPACE, trials, is_dead):
                    values = sorted(trial.params.values())
                    study.tell(trial, [values[0], 100 + values[-1]])
            return [trial.params for trial in study.trials if trial.state == TrialState.COMPLETE]
    raise AssertionError("the study never ends")


def _or_killed(left: Iterator[int], write: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if next(left) == 0:
        raise KilledError
    return write(*args, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "trials"), [("gp", 11), ("tpe", 11), ("nsga2", 22)])
def test_a_study_that_is_killed_draws_the_same_trials(
    sampler: str, trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond those that are random. Killed where some settings of a trial are drawn, it drew others for the rest."""
    monkeypatch.setattr(studies, "RETRIES", 1000)
    whole = played(tmp_path / "whole", sampler, trials)
    assert len(whole) == trials
    for writes in (17, 23):
        assert played(tmp_path / str(writes), sampler, trials, writes) == whole


# The storage


def test_a_study_is_resumed_only_by_the_same_settings(opened: Opened) -> None:
    opened(error_bound=2.0).begin()
    assert len(opened(error_bound=2.0).study.trials) == 1
    with pytest.raises(ConfigError, match=r"'net' has other settings \(error_bound\); .*--out"):
        opened(error_bound=3.0)


@pytest.mark.parametrize("url", ["nowhere", "sqlite:////no/such/folder/study.db"])
def test_a_storage_that_cannot_be_opened(url: str) -> None:
    with pytest.raises(ConfigError, match="the study's storage: "), open_storage(url):
        pass


def test_a_storage_whose_driver_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    url = "postgresql://name:secret@host/base"
    with (
        pytest.raises(NotAvailableError, match=r"storage: .*psycopg.*softshare\[storage\]") as caught,
        open_storage(url),
    ):
        pass
    assert "secret" not in str(caught.value)


def test_postgresql_has_the_driver_that_we_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever SQLAlchemy takes: before 2.1 it was another one."""
    asked = []
    monkeypatch.setattr("softshare.tune.storages.RDBStorage", lambda url, **_: asked.append(url))
    for scheme in ("postgresql", "postgresql+pg8000", "mysql"):
        storages.make_storage(f"{scheme}://host/base", lambda study, trial: None)
    assert asked == ["postgresql+psycopg://host/base", "postgresql+pg8000://host/base", "mysql://host/base"]


@pytest.mark.parametrize("package", ["optuna", "scipy", "filelock"])
def test_without_a_package_the_message_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_optuna()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotAvailableError, match=r"pip install 'softshare\[tune\]'"):
        require_optuna()
