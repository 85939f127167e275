from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import optuna
import pytest
from optuna.trial import TrialState

from softshare.config import Range
from softshare.errors import ConfigError, NotAvailableError
from softshare.tune import study as studies
from softshare.tune.study import (
    Counts,
    ask,
    count,
    open_storage,
    open_study,
    quiet,
    requeue,
    require_optuna,
    signs_of_life,
)

SPACE = {"tau": Range(0.001, 0.1, log=True), "components": Range(2, 64, log=True), "hard_from": Range(0.0, 0.5)}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


class Opened(Protocol):
    def __call__(self, **settings: object) -> optuna.Study: ...


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the same study every time, as another process would; closes all at the end."""
    with contextlib.ExitStack() as stack:

        def open_one(**settings: object) -> optuna.Study:
            storage = stack.enter_context(open_storage(f"sqlite:///{tmp_path / 'study.db'}"))
            return open_study(storage, "net", {"config": 1, **settings}, optuna.samplers.RandomSampler(seed=0))

        yield open_one


def begun(study: optuna.Study, trials: int = 10) -> optuna.Trial:
    trial = ask(study, SPACE, trials)
    assert trial is not None
    return trial


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_a_trial_comes_with_all_its_settings_each_in_its_range(opened: Opened) -> None:
    trial = begun(opened())
    assert set(trial.params) == set(SPACE)
    for name, range in SPACE.items():
        assert range.low <= trial.params[name] <= range.high
    assert isinstance(trial.params["components"], int)
    floats = optuna.distributions.FloatDistribution(0.001, 0.1, log=True)
    assert trial.distributions["tau"] == floats


def test_no_more_are_begun_than_asked_for(opened: Opened) -> None:
    study = opened()
    trials = [begun(study, 3) for _ in range(3)]
    assert ask(study, SPACE, 3) is None
    assert count(study) == Counts(finished=0, running=3)
    study.tell(trials[0], [1.0, 2.0])
    study.tell(trials[1], state=TrialState.PRUNED)
    study.tell(trials[2], state=TrialState.FAIL)  # stopped: it counts nowhere
    assert count(study) == Counts(finished=2, running=0)
    begun(study, 3)
    assert ask(study, SPACE, 3) is None


def test_of_two_that_go_for_the_last_one_the_second_gives_it_back(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes without a common folder cannot lock each other out."""
    first, second = opened(), opened()
    monkeypatch.setattr(studies, "count", lambda study: Counts(0, 0))  # both looked before either had begun
    assert begun(first, 1).number == 0
    assert ask(second, SPACE, 1) is None
    assert states(first) == ["RUNNING", "FAIL"]


def test_a_silent_trial_is_run_again_with_the_same_settings_but_not_for_ever(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened()
    lost = begun(study)
    assert begun(study).params != lost.params  # it is not silent yet
    monkeypatch.setattr(studies, "GRACE", -1.0)
    retried = [begun(study).params for _ in range(studies.RETRIES + 1)]
    assert retried[0] == lost.params
    settings = [str(trial.params) for trial in study.trials]
    assert settings.count(str(lost.params)) == 1 + studies.RETRIES


def test_a_process_that_died_while_it_chose_settings_is_not_waited_for(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = opened()
    study.ask()  # no setting, no sign of life
    assert ask(study, SPACE, 1) is None
    monkeypatch.setattr(studies, "GRACE", -1.0)
    assert begun(study, 1).params
    assert states(study)[0] == "FAIL"


def test_signs_of_life_come_for_as_long_as_a_trial_runs(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "HEARTBEAT", 0.02)
    study = opened()
    trial = begun(study)

    def last() -> float:
        return float(study.trials[0].user_attrs["alive"])

    first = last()
    with signs_of_life(trial):
        until = time.monotonic() + 60
        while last() == first:
            assert time.monotonic() < until
            time.sleep(0.02)
    end = last()
    time.sleep(0.1)
    assert last() == end


def test_a_trial_that_ended_meanwhile_is_not_queued_again(opened: Opened) -> None:
    study = opened()
    trial = begun(study)
    study.tell(trial, [1.0, 2.0])
    requeue(study, trial)
    assert states(study) == ["COMPLETE"]


def test_a_study_is_gone_on_with_only_by_the_same_settings(opened: Opened) -> None:
    begun(opened(error_bound=2.0))
    assert len(opened(error_bound=2.0).trials) == 1
    with pytest.raises(ConfigError, match=r"'net' has other settings \(error_bound\); .*--out"):
        opened(error_bound=3.0)


@pytest.mark.parametrize("url", ["nowhere", "sqlite:////no/such/folder/study.db"])
def test_a_storage_that_cannot_be_opened(url: str) -> None:
    with pytest.raises(ConfigError, match="the study's storage: "), open_storage(url):
        pass


def test_a_storage_whose_driver_is_not_installed() -> None:
    url = "postgresql://name:secret@host/base"
    with pytest.raises(NotAvailableError, match="the study's storage: ") as caught, open_storage(url):
        pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("package", ["optuna", "scipy", "filelock"])
def test_without_a_package_the_message_says_what_to_install(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_optuna()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NotAvailableError, match=r"pip install 'softshare\[tune\]'"):
        require_optuna()
