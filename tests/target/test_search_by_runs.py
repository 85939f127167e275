"""The searches over runs: how gentle each is, when it ends, and which networks they return."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import softshare as ss
from softshare.config import RetrainConfig
from softshare.errors import DivergedError
from softshare.prior.prior import MixturePrior
from softshare.target.broken import BROKEN_LOOKS
from softshare.target.gentleness import GENTLEST, HARDEST, MOST_COMPONENTS, gentler, gentler_to_units
from softshare.target.search import DEAD_LOOKS, MOST_RUNS, Search
from softshare.target.size_search import NEAR, SizeSearch, next_gentleness
from softshare.train.first_look import FirstLook
from softshare.train.hooks import EpochRecord, StopPhaseError
from softshare.train.phases import Phases

CONFIG = ss.CompressConfig()
LIMIT, NOISE, BEFORE, ZEROS = 2.5, 0.5, 2.0, 90.0


def gentleness(config: RetrainConfig) -> float:
    """By which a run is gentler than the settings, from its tau."""
    by = -math.log(config.tau / CONFIG.retrain.tau, 3)
    return 2 * by if by > 0 else by


# How a run is gentler


def test_a_gentler_run_leaves_more_weights_in_every_respect() -> None:
    by = [0.25 * k for k in range(int(4 * HARDEST), int(4 * GENTLEST) + 1)]
    runs = [gentler(CONFIG, b) for b in by]
    for harder, softer in itertools.pairwise(runs):
        assert softer.retrain.tau <= harder.retrain.tau
        assert softer.prior.zero_mixing <= harder.prior.zero_mixing
        assert softer.prior.components >= harder.prior.components
        assert softer != harder
    assert [gentleness(run.retrain) for run in runs] == pytest.approx(by, abs=1e-9)
    assert gentler(CONFIG, 0.0) == CONFIG


def test_a_gentler_run_by_hand() -> None:
    """By 2: a third of tau, a hundredth of the odds of zero; half a step above 1.5: 2^0.5 times as fine."""
    run = gentler(CONFIG, 2.0)
    assert run.retrain.tau == pytest.approx(0.03 / 3)
    assert run.prior.zero_mixing == pytest.approx(9.99 / (1 + 9.99))
    assert run.prior.components == round(4 * 2**0.5)
    assert run.prior.width == pytest.approx(0.45 / 2**0.5)
    assert run.prior.lr_means == pytest.approx(3e-4 / 2**0.5)
    assert gentler(CONFIG, -2.0) == CONFIG.override(tau=9 * 0.03)
    assert gentler(CONFIG.override(units=6.0), 2.0).prior.units == pytest.approx(2.0)  # of a third of tau
    learned = CONFIG.override(width=None)
    assert gentler(learned, 3.0).prior.width is None
    assert gentler(CONFIG.override(components=200), GENTLEST).prior.components == MOST_COMPONENTS


def test_a_run_that_is_gentler_to_units_treats_weights_alike() -> None:
    assert gentler_to_units(CONFIG, 0.0) == CONFIG.override(units=1.0)
    assert gentler_to_units(CONFIG.override(units=6.0), 1.0) == CONFIG.override(units=2.0)
    assert gentler_to_units(CONFIG, -2.0) == CONFIG.override(units=9.0)


# A search whose training is played


class Played:
    """Plays runs: `records(gentleness)` gives the metric and the density after each look, from the first on."""

    def __init__(
        self,
        records: Callable[[float], list[tuple[float, float]]],
        monkeypatch: pytest.MonkeyPatch,
        judge: Callable[[MixturePrior], float] | None = None,
        config: ss.CompressConfig = CONFIG,
        metric: ss.Metric | None = None,
        first: FirstLook | None = None,
        limit: float = LIMIT,
        last_alone: bool = False,
        slack: float = 0.0,
    ) -> None:
        torch.manual_seed(0)
        self.task = ss.Task(
            nn.Linear(4, 3), [], lambda m, b: m(b).mean(), lambda m: 0.0, 1, metric=metric or ss.Metric()
        )
        self.runs: list[float] = []
        self.looks: list[int] = []  # that each run had
        self.start = self.task.model.get_parameter("weight").detach().clone()
        self.values: dict[int, float] = {}
        first = first or FirstLook(BEFORE, NOISE, ZEROS)
        judge = judge or (lambda prior: self.values[self._number()])
        self.search = Search(self.task, config, first, limit, judge, last_alone, slack)
        self.phases = Phases(self.task, None, [self.search])

        def run(config: RetrainConfig, prior: MixturePrior, **_: Any) -> None:
            self.runs.append(gentleness(config))
            assert torch.equal(self.task.model.get_parameter("weight"), self.start)  # each begins from the same
            self.looks.append(0)
            played = [(BEFORE, 1.0), *records(self.runs[-1])]
            try:
                for look, (value, density) in enumerate(played):
                    self._play(look, value, density, prior)
            except StopPhaseError:
                pass
            self.phases._done = self.phases.history[-1].epoch

        monkeypatch.setattr(self.phases, "run", run)

    def _play(self, look: int, value: float, density: float, prior: MixturePrior) -> None:
        with torch.no_grad():
            for w in prior.view.tensors:
                w.fill_(self.phases._done + look)  # so that networks can be told apart
            prior.means.fill_(self.phases._done + look)
            self.values[self.phases._done + look] = value
        if look == 0:
            with torch.no_grad():
                prior.view.tensors[0].copy_(self.start)
        else:
            self.looks[-1] += 1
        densities = {s.name: density for s in prior.view.shared}
        self.phases.on_epoch(EpochRecord(look, 0.0, 0.1, 0.0, 0.0, 0.0, value, 0, densities))

    def _number(self) -> int:
        return int(self.task.model.get_parameter("bias")[0])

    def found(self) -> list[Any]:
        return self.search.run(self.phases)


def settled(value: float, density: float = 0.1) -> list[tuple[float, float]]:
    """The looks of a run at one value throughout."""
    return [(value, density)] * CONFIG.retrain.looks


def threshold(at: float, above: float = 0.1) -> Callable[[float], list[tuple[float, float]]]:
    """Runs that are gentle enough fit; the others are above the limit by `above`. Harder ones have fewer weights."""
    return lambda by: settled(BEFORE if by >= at else LIMIT + above, 0.01 * (5 + by))


@pytest.mark.parametrize(
    ("at", "above", "runs"),
    [
        (-0.1, 0.1, [0, -1, -0.5]),  # harder after success, then halfway
        (-1.9, 0.1, [0, -1, -2, -1.5]),
        (0.9, 0.1, [0, 1, 0.5]),  # gentler after failure
        (0.1, 0.1, [0, 1, 0.5]),
        (1.9, 0.1, [0, 1, 3, 2, 1.5]),  # ever gentler
        (1.9, 9.9, [0, 2, 1, 1.5]),  # by 2, if the loss is above 6 times what may be lost
        (-99, 0.1, [0, -1, -2, -3]),  # never harder than -3
        (99, 0.1, [0, 1, 3, 7, 8]),
        (99, 9.9, [0, 2, 6, 8]),  # never gentler than 8
    ],
)
def test_which_runs_a_search_makes(at: float, above: float, runs: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(threshold(at, above), monkeypatch)
    found = played.found()
    assert played.runs == pytest.approx(runs, abs=1e-9)
    assert len(played.runs) <= MOST_RUNS
    fitting = [by for by in runs if by >= at]
    if not fitting:
        assert len(found) == 1
        assert found[0].merit[0] == pytest.approx(above)
    else:  # the smallest first, which is of the hardest run
        assert [f.kept.gentleness for f in found] == pytest.approx(sorted(fitting))
        assert all(f.merit[0] == 0 for f in found)


def test_more_may_be_better(monkeypatch: pytest.MonkeyPatch) -> None:
    def records(by: float) -> list[tuple[float, float]]:
        return settled(98.0 if by >= 0.9 else 97.0, 0.1)

    first = FirstLook(98.0, 0.5, 10.0)
    played = Played(records, monkeypatch, metric=ss.Metric("accuracy", "%", True), first=first, limit=97.5)
    played.found()
    assert played.runs == pytest.approx([0, 1, 0.5])


def test_the_file_decides_whether_a_network_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of all runs are within the limit, but the files of the first two are not."""
    played = Played(lambda by: settled(BEFORE), monkeypatch, judge=lambda prior: 3.0 if len(played.runs) < 3 else 1.0)
    found = played.found()
    assert played.runs[:3] == pytest.approx([0, 1, 3])
    assert all(f.kept.look > 2 * CONFIG.retrain.looks for f in found)


def test_a_file_is_judged_only_if_its_network_may_be_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[float] = []

    def records(by: float) -> list[tuple[float, float]]:
        return [(3.0, 0.1)] * 26 + [(2.0, 0.2), (2.0, 0.3), (2.0, 0.1), (2.6, 0.05)]

    played = Played(records, monkeypatch)
    inner = played.search.judge
    played.search.judge = lambda prior: judged.append(played._number()) or inner(prior)  # type: ignore[func-returns-value]
    played.found()
    assert judged[:2] == [27, 29]  # the first that seems to fit, and a smaller one


def test_the_best_of_a_run_is_restored_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest within the limit since the run has settled, not the last. The first 24 of 30 looks say nothing."""

    def records(by: float) -> list[tuple[float, float]]:
        looks = [(2.0, 0.001)] * 24 + [(2.0, 0.3)] * 6
        looks[26] = (2.4, 0.1)
        looks[27] = (2.6, 0.05)
        return looks

    played = Played(records, monkeypatch)
    found = played.found()
    assert [f.kept.look for f in found] == [30 * k + 27 for k in range(len(played.runs))]
    for best in reversed([f.kept for f in found]):
        prior = played.search.restore_(best)
        assert played.task.model.get_parameter("bias").tolist() == [best.look] * 3
        assert bool((prior.means == best.look).all())


def test_a_lucky_look_does_not_make_a_run_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last look alone, the harder runs fit at no look that counts."""

    def records(by: float) -> list[tuple[float, float]]:
        return [(3.0, 0.1)] * 24 + [(1.0, 0.05)] * 5 + [(2.0 if by >= 0.9 else 2.6, 0.1)]

    played = Played(records, monkeypatch, last_alone=True)
    found = played.found()
    assert played.runs == pytest.approx([0, 1, 0.5])
    assert [f.kept.look for f in found] == [60]
    played = Played(records, monkeypatch)
    assert [f.kept.look for f in played.found()] == [29, 59, 89, 119]
    assert played.runs == pytest.approx([0, -1, -2, -3])


def test_a_run_that_breaks_its_network_is_judged_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(lambda by: settled(60.0 if by < 1 else BEFORE), monkeypatch, last_alone=True)
    found = played.found()
    assert played.runs[:2] == pytest.approx([0, 2])
    assert all(f.merit[0] == 0 for f in found)


def test_a_network_that_is_better_than_before_has_room_for_a_larger_step(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(lambda by: settled(BEFORE + (0.1 if by < -1 else -0.1 if by > -1 else 0)), monkeypatch)
    played.found()
    assert played.runs == pytest.approx([0, -2, -3])


@pytest.mark.parametrize(
    ("above", "runs", "taken"),
    [
        ({0: 0.25, 1: 0.25}, [0, 1], 0),  # gentler, and no better
        ({0: 0.25, 1: 0.15}, [0, 1], 0),  # better by less than half of the slack
        ({0: 0.35, 1: 0.25, 3: 0.2}, [0, 1, 3], 1),  # the first is beyond the slack
        ({0: 0.25, 1: 0.05, 3: 0.05}, [0, 1, 3], 0),
        ({0: 0.25, 1: 0.05, 3: -0.1, 2: 0.1, 2.5: 0.1}, [0, 1, 3, 2, 2.5], 3),  # being gentler helps
        ({0: -0.1, -1: 0.25, -0.5: 0.25}, [0, -1, -0.5], 0),  # what fits is taken before what is near
        ({0: 0.4, 1: 0.4, 3: 0.35, 7: 0.35, 8: 0.35}, [0, 1, 3, 7, 8], 3),  # all beyond the slack: the nearest
    ],
)
def test_near_the_limit_will_do_if_gentler_runs_are_no_better(
    above: dict[float, float], runs: list[float], taken: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(
        lambda by: settled(LIMIT + above[round(by, 6)], 0.01 * (5 + by)), monkeypatch, last_alone=True, slack=0.3
    )
    found = played.found()
    assert played.runs == pytest.approx(runs, abs=1e-9)
    assert found[0].kept.gentleness == pytest.approx(taken)


def test_if_nothing_fits_the_nearest_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(lambda by: settled(3.0 - 0.05 * by), monkeypatch)
    (found,) = played.found()
    assert found.merit[0] == pytest.approx(3.0 - 0.05 * max(played.runs) - LIMIT)


def test_a_run_that_breaks_its_network_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 looks in a row above 30% of what the network gains over zeros: an error of 28.4%. Soft looks do not count."""

    def records(by: float) -> list[tuple[float, float]]:
        if by == 0:
            return settled(60.0)
        if by == 2:
            return [(60.0, 0.1)] * 8 + [(20.0, 0.1)] + [(60.0, 0.1)] * 21
        return settled(BEFORE)

    played = Played(records, monkeypatch)
    played.found()
    assert played.runs[:3] == pytest.approx([0, 2, 6])
    assert played.looks[:3] == [6 + BROKEN_LOOKS, 9 + BROKEN_LOOKS, 30]


def test_a_run_that_loses_a_layer_and_accuracy_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2 looks in a row. A layer that the network does not need may die, and one may be found dead for one look."""

    def records(by: float) -> list[tuple[float, float]]:
        if by == 0:
            return settled(3.1, 0.0)
        if by == 2:
            return [(3.1, 0.1)] * 8 + [(3.1, 0.0)] + [(3.1, 0.1)] * 21
        return settled(BEFORE, 0.0)

    played = Played(records, monkeypatch)
    played.found()
    assert played.runs[:2] == pytest.approx([0, 1])
    assert played.looks[0] == 6 + DEAD_LOOKS
    assert set(played.looks[1:]) == {30}


def test_without_zeros_to_compare_with_no_run_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(lambda by: settled(60.0), monkeypatch, first=FirstLook(BEFORE, NOISE))
    played.found()
    assert set(played.looks) == {30}


def test_the_last_look_counts_even_if_the_run_never_became_hard(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIG.override(epochs=1, hard_from=0.99)
    played = Played(lambda by: [(BEFORE, 0.1)], monkeypatch, config=config)
    assert played.found()[0].merit[0] == 0
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    task = ss.Task(nn.Linear(4, 3), list(x.split(8)), lambda m, b: m(b).square().mean(), lambda m: 1.0)
    assert ss.compress(task, config, target=ss.MaxError(2.0)).outcome is not None


# The search for a size


def sized(size: Callable[[float], float], limit: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[int]]:
    """The gentleness of the runs, if a run's file has the size that its gentleness gives; and the sizes returned."""
    task = ss.Task(nn.Linear(4, 3), [], lambda m, b: m(b).mean(), lambda m: 0.0, 1)
    runs: list[float] = []

    def measured(prior: MixturePrior) -> int:
        with torch.no_grad():
            prior.means.fill_(size(runs[-1]))
        return round(size(runs[-1]))

    search = SizeSearch(task, CONFIG, (), limit, measured)
    phases = Phases(task, None, [search])

    def run(config: RetrainConfig, prior: MixturePrior, **_: Any) -> None:
        runs.append(gentleness(config))
        if size(runs[-1]) == 0:
            raise DivergedError("too hard", {})
        phases.on_epoch(EpochRecord(CONFIG.retrain.looks, 0.0, 0.1, 0.0, 0.0, 0.0, 1.0, 0, {}))

    monkeypatch.setattr(phases, "run", run)
    found = search.run(phases)
    return runs, [round(float(kept.prior_state["means"].flatten()[0])) for kept in found]


@pytest.mark.parametrize("limit", [400, 1000, 1900, 20_000])
def test_sizes_that_grow_evenly_are_found_in_a_few_runs(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A factor of 3 for each unit of gentleness, from 1,000 bytes on. Interpolation in the logarithm is exact then."""
    runs, sizes = sized(lambda by: 1000 * 3**by, limit, monkeypatch)
    assert abs(math.log(sizes[0] / limit)) <= NEAR
    assert sizes == sorted(sizes, key=lambda size: abs(math.log(size / limit)))
    assert len(runs) == len(sizes) <= 4


def test_a_search_for_a_size_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the ends of the range, and after the most runs if sizes jump."""
    assert sized(lambda by: 1000, 5000, monkeypatch)[0] == pytest.approx([0, 1, 3, 7, 8])
    assert sized(lambda by: 1000, 500, monkeypatch)[0] == pytest.approx([0, -1, -3])
    runs, sizes = sized(lambda by: 10 if by < 0.3 else 5000, 500, monkeypatch)
    assert len(runs) == MOST_RUNS
    assert set(sizes) == {10, 5000}


def test_a_run_that_diverges_was_too_hard(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, sizes = sized(lambda by: 0 if by < 0.9 else 1000 * 3 ** (by - 1), 1000, monkeypatch)
    assert runs[:2] == pytest.approx([0, 1])
    assert sizes[0] == 1000
    with pytest.raises(DivergedError):
        sized(lambda by: 0, 1000, monkeypatch)


def test_the_next_gentleness_by_hand() -> None:
    assert next_gentleness({0.0: -1.0}) == 1.0  # too small
    assert next_gentleness({0.0: -1.0, 1.0: -0.5}) == 3.0
    assert next_gentleness({0.0: 2.0}) == -1.0
    assert next_gentleness({0.0: -1.0, 1.0: 3.0}) == 0.25
    assert next_gentleness({0.0: -0.01, 1.0: 3.0}) == 0.1  # never too near a run that was made
    assert next_gentleness({0.0: -math.inf, 1.0: 3.0}) == 0.5
    assert next_gentleness({0.0: 1.0, 1.0: -1.0}) == 0.5  # a gentler run may come out smaller
