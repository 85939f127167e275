from __future__ import annotations

import math
from collections.abc import Iterator

import optuna
import pytest
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from softshare.tune.samplers import Gp, as_seen, make_sampler
from softshare.tune.study import quiet, requeue

UNIT: dict[str, BaseDistribution] = {"x": FloatDistribution(0.0, 1.0)}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def trial(x: float, values: list[float] | None = None, state: TrialState = TrialState.COMPLETE) -> FrozenTrial:
    return optuna.create_trial(state=state, values=values, params={"x": x}, distributions=UNIT)


def new_study(sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    return optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)


def test_bytes_are_seen_by_their_logarithm_and_pruned_trials_as_the_worst_of_each() -> None:
    trials = [
        trial(0.1, [2.0, 1000.0]),
        trial(0.2, state=TrialState.PRUNED),
        trial(0.3, [3.0, 100.0]),
        trial(0.4, state=TrialState.FAIL),
        trial(0.5, state=TrialState.RUNNING),
    ]
    seen = as_seen(trials)
    assert [t.params["x"] for t in seen] == [0.1, 0.2, 0.3, 0.4, 0.5]
    complete = [t.values for t in seen if t.state == TrialState.COMPLETE]
    assert complete == [[2.0, math.log(1000)], [3.0, math.log(1000)], [3.0, math.log(100)]]
    assert [t.state for t in seen[3:]] == [TrialState.FAIL, TrialState.RUNNING]


def test_before_anything_is_complete_pruned_trials_stay_without_a_value() -> None:
    assert [t.state for t in as_seen([trial(0.5, state=TrialState.PRUNED)])] == [TrialState.PRUNED]


def next_x(sampler: optuna.samplers.BaseSampler) -> float:
    """What it asks for where both objectives fall towards 1, but all beyond 0.5 was pruned."""
    study = new_study(sampler)
    study.add_trials([trial(x / 20, [2 - x / 20, 1000 * (2 - x / 20)]) for x in range(1, 10)])
    study.add_trials([trial(x / 20, state=TrialState.PRUNED) for x in range(11, 21)])
    return float(study.ask(UNIT).params["x"])


def test_the_gaussian_process_keeps_away_from_what_was_pruned() -> None:
    plain = optuna.samplers.GPSampler(seed=0, n_startup_trials=5)
    assert next_x(plain) > 0.9  # where nothing is known to it
    assert next_x(Gp(seed=0, n_startup_trials=5)) < 0.6


def drawn(name: str, seed: int, stop_every: int, halfway: bool = False) -> list[float]:
    """The settings of 13 trials: random ones first, then, but for NSGA-II, by what is known."""
    study, xs = new_study(make_sampler(name, seed)), []
    for k in range(13):
        if k % stop_every == 0:
            if halfway:
                requeue(study, study.ask(UNIT))
            study.sampler = make_sampler(name, seed)
        trial = study.ask(UNIT)
        xs.append(float(trial.params["x"]))
        study.tell(trial, [xs[-1], 100 * (1 - xs[-1]) + 1])
    return xs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gp", "tpe", "nsga2"])
def test_a_study_that_was_stopped_draws_as_one_that_was_not(name: str) -> None:
    once = drawn(name, 3, stop_every=100)
    assert drawn(name, 3, stop_every=5) == once
    assert drawn(name, 3, stop_every=5, halfway=True) == once
    assert len(set(once)) == 13
    assert not set(drawn(name, 4, stop_every=100)) & set(once)


def test_a_trial_that_was_stopped_before_it_had_its_settings_gets_them_later_and_no_other_does() -> None:
    study = new_study(make_sampler("gp", 3))
    first, stopped, third = study.ask(UNIT), study.ask(), study.ask(UNIT)
    for _ in range(2):
        requeue(study, stopped)
        stopped = study.ask()
    stopped.suggest_float("x", 0.0, 1.0)
    xs = [trial.params["x"] for trial in (first, stopped, third, study.ask(UNIT))]
    whole = new_study(make_sampler("gp", 3))
    assert xs == [whole.ask(UNIT).params["x"] for _ in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gp", "tpe"])
def test_a_trial_that_was_stopped_between_its_settings_draws_the_others_as_if_it_had_not_been(name: str) -> None:
    """Of samplers that draw all settings together, as these do once they know enough trials."""
    both = UNIT | {"y": FloatDistribution(0.0, 1.0)}
    drawn = []
    for stopped in (False, True):
        study = new_study(make_sampler(name, 3))
        for x in range(11):
            done = optuna.create_trial(
                values=[x, 100.0 - x], params={"x": x / 11, "y": (5 * x % 11) / 11}, distributions=both
            )
            study.add_trial(done)
        if stopped:
            requeue(study, study.ask(UNIT))
        drawn.append(study.ask(both).params)
    assert drawn[0] == drawn[1]
