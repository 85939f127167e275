"""Optuna samplers for a study that several processes share. Imported on use: it needs Optuna."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from softshare.tune.study import place

POPULATION = 20  # of NSGA-II; Optuna's 50 would be most of a usual study


class Gp(GPSampler):
    """A Gaussian process for each objective. It sees bytes by their logarithm, and pruned trials as the worst there is.

    Optuna's own leaves pruned trials out: what it has no value for stays unknown to it, so it would go there again.
    """

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        seen = optuna.create_study(directions=study.directions)  # in memory
        seen.add_trials(as_seen(study.get_trials(deepcopy=False)))
        return super().sample_relative(seen, seen.trials[trial.number], search_space)


def as_seen(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials as the Gaussian processes see them."""
    known = [_scaled(t.values) for t in trials if t.state == TrialState.COMPLETE]
    worst = [max(column) for column in zip(*known, strict=True)]
    return [_as_seen(t, worst) for t in trials]


def _as_seen(trial: FrozenTrial, worst: list[float]) -> FrozenTrial:
    values, state = None, trial.state
    if state == TrialState.COMPLETE:
        values = _scaled(trial.values)
    elif state == TrialState.PRUNED and worst:
        values, state = worst, TrialState.COMPLETE
    return optuna.create_trial(state=state, values=values, params=trial.params, distributions=trial.distributions)


def _scaled(values: Sequence[float]) -> list[float]:
    error, n_bytes = values
    return [error, math.log(n_bytes)]


class Nsga2(NSGAIISampler):
    """Optuna's, with the parents of a generation always in the order of their numbers.

    Optuna's own has them there by rank where it has just chosen them, and by number where it finds them in the storage.
    So a study that was killed in between would draw other children.
    """

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        return sorted(super().get_parent_population(study, generation), key=lambda trial: trial.number)


class PerTrial(BaseSampler):
    """A new sampler for each trial, seeded by the trial's place. No two processes draw the same, and an interrupted
    study of one process draws the same trials as an uninterrupted one, even if a trial had to be queued again.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self.make, self.seed = make, seed
        self.inner = make(seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.inner = self.make((self.seed + 1_000_003 * place(study, trial)) % 2**32)
        self.inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self.inner.after_trial(study, trial, state, values)


def make_sampler(name: str, seed: int) -> BaseSampler:
    makes: dict[str, Callable[[int], BaseSampler]] = {
        "gp": lambda seed: Gp(seed=seed),
        "tpe": lambda seed: TPESampler(seed=seed, multivariate=True, constant_liar=True),
        "nsga2": lambda seed: Nsga2(seed=seed, population_size=POPULATION),
    }
    return PerTrial(makes[name], seed)
