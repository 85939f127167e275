"""The smallest file within a limit on the metric: runs that are gentler or harder, from the same start.

A network is judged where a run has settled: its errors on the way there, at high learning rates, say little. So the
search never acts within a run. The first run has the settings as they are. If its network is above the limit, the next
runs are ever gentler, else they are ever harder; then the next is halfway between a run that fits and one that does
not. Only a run that breaks its network, or loses a whole layer and accuracy with it, ends early.

The best of many looks is better by luck, and worse on other data. Where that matters, only the last look of a run
counts. And the network before may have been lucky: then gentler runs are no better, and a run that is near the limit
will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from softshare.config import CompressConfig
from softshare.errors import DivergedError
from softshare.prior.prior import MixturePrior
from softshare.target.broken import BROKEN, BROKEN_LOOKS, Matrices
from softshare.target.gentleness import GENTLEST, HARDEST
from softshare.target.runs import Kept, Runs
from softshare.task import Task
from softshare.train.first_look import FirstLook
from softshare.train.hooks import EpochRecord, StopPhaseError
from softshare.train.phases import Phases

MOST_RUNS = 6
NEAR_ENOUGH = 0.5  # difference in gentleness between a run that fits and one that does not
FAR = 6.0  # times what the metric may lose: after such a loss the next run is gentler by 2 at least, not by 1
DEAD_LOOKS = 2  # in a row without a weight in some layer, and with a loss: no weight will come back
SETTLED = 0.8  # share of a run after which its network has settled
BETTER = 0.5  # share of the slack: a gentler run that is better by less is no better


class Found(NamedTuple):
    """The best network of a run."""

    merit: tuple[float, float]  # less is better: by how much it is above the limit, then its bits, about
    kept: Kept


_NUMBERS = (
    "_n_runs",
    "_step",
    "_hard",
    "_gentle",
    "_diverged",
    "_above",
    "_lost",
    "_bad",
    "_dead",
    "_fair",
)  # of a search


def _plain(found: Found) -> tuple[Any, ...]:
    return tuple(found.merit), tuple(found.kept)


def _found(plain: tuple[Any, ...]) -> Found:
    return Found(plain[0], Kept(*plain[1]))


class Search(Runs):
    """The search for one network, which trains `task.model`. `limit` is in the unit of the metric.

    `judge` returns the metric of the file that the network of a prior would be now. With `last_alone`, a run is judged
    by its last look, otherwise by all since it has settled. A network that is above the limit by no more than `slack`
    will do, if gentler runs are no better.
    """

    def __init__(
        self,
        task: Task,
        config: CompressConfig,
        first: FirstLook,
        limit: float,
        judge: Callable[[MixturePrior], float],
        last_alone: bool = False,
        slack: float = 0.0,
    ) -> None:
        super().__init__(task, config, first.groups)
        self.first, self.limit, self.judge = first, limit, judge
        self.last_alone, self.slack = last_alone, slack
        self._found: list[Found] = []  # of the runs before
        self._n_runs = 0
        self._step = 1.0  # to the next run, while none is gentle enough
        self._hard, self._gentle = -math.inf, math.inf  # the gentlest that does not fit, and the hardest that does
        self._diverged = ""  # what a run that diverged said
        self._best: Found | None = None  # the best network of the present run so far
        self._above = math.inf  # the least that its network is above the limit, once it has settled
        self._lost = 0.0  # what its network had lost at the last look
        self._bad = 0  # looks in a row at a broken network
        self._dead = 0  # looks in a row at a network with a layer that died, and with a loss
        self._matrices = Matrices()
        self._fair = math.inf  # the least that a run before was above the limit, if within the slack

    def run(self, phases: Phases) -> list[Found]:
        """Train. Returns the best network of each run that has one within the limit; if none has, the smallest within
        the slack, or else the nearest.
        """
        while self._n_runs < MOST_RUNS:
            try:
                self.train_(phases)
            except DivergedError as problem:
                self._diverged = str(problem)
            if self._best:
                self._found.append(self._best)
            by = self._next()
            if self._gentle - self._hard <= NEAR_ENOUGH or by in (self._hard, self._gentle):
                break
            self._n_runs, self._best, self._above = self._n_runs + 1, None, math.inf
            self._bad = self._dead = 0
            self.begin(phases, by)
        if not self._found:
            raise DivergedError(self._diverged, self._before)
        self._found.sort(key=lambda f: f.merit)
        fitting = [f for f in self._found if f.merit[0] <= 0]
        fair = sorted((f for f in self._found if f.merit[0] <= self.slack), key=lambda f: f.merit[1])
        return fitting or (fair or self._found)[:1]

    def _next(self) -> float:
        """The gentleness of the next run, by what became of the present one."""
        by, fits = self.gentleness, self._above <= 0
        if fits:
            self._gentle = by
        else:
            self._hard = by
            if self._above > FAR * self._allowed:
                self._step = max(self._step, 2.0)
        if math.isfinite(self._gentle - self._hard):
            return (self._hard + self._gentle) / 2
        if fits:
            return max(HARDEST, by - (2 if self._lost < 0 else 1))
        if self._above > self._fair - BETTER * self.slack:
            return by  # being gentler does not help
        if self._above <= self.slack:
            self._fair = self._above
        step, self._step = self._step, 2 * self._step
        return min(GENTLEST, by + step)

    def state_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        found = [_plain(f) for f in self._found]
        return {
            **super().state_dict(),
            **numbers,
            "found": found,
            "alive": self._matrices.alive,
            "best": self._best and _plain(self._best),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name in _NUMBERS:
            setattr(self, name, state[name])
        self._found = [_found(plain) for plain in state["found"]]
        self._matrices.alive = list(state["alive"])
        self._best = state["best"] and _found(state["best"])

    @property
    def _allowed(self) -> float:
        return max(self.task.metric.loss(self.first.before, self.limit), self.first.noise)

    def on_epoch(self, record: EpochRecord) -> None:
        look, looks = record.epoch - self.start, self.settings.retrain.looks
        if look == 0:
            self._matrices.begin_(self.prior, record.density)
        if look < looks and (look == 0 or (look - 0.5) / looks < self.settings.retrain.hard_from):
            return  # the network was not quantized; the last one counts in any case
        value = record.validation_error
        self._lost = self.task.metric.loss(self.first.before, value)
        self._bad = self._bad + 1 if self.first.lost(self.task, value) > BROKEN else 0
        died = self._lost > self._allowed and self._matrices.dead(record)
        self._dead = self._dead + 1 if died else 0
        stops = (self._bad >= BROKEN_LOOKS or self._dead >= DEAD_LOOKS) and look < looks
        if look == looks or stops or (look > SETTLED * looks and not self.last_alone):
            weights = sum(record.density[s.name] * s.tensor.numel() for s in self.prior.view.shared)
            above = self._note(record.epoch, weights * math.log2(self.settings.prior.components + 1), value)
            self._above = min(self._above, above)
        if stops:
            raise StopPhaseError

    def _note(self, look: int, bits: float, value: float) -> float:
        """Keep the network if it is the best of its run so far. Whether it fits is decided by its file.

        Returns by how much it is above the limit.
        """
        above = max(0.0, self.task.metric.loss(self.limit, value))
        if self._best and (above, bits) > self._best.merit:
            return above
        if above <= 0:
            above = max(0.0, self.task.metric.loss(self.limit, self.judge(self.prior)))
        if self._best is None or (above, bits) <= self._best.merit:
            self._best = Found((above, bits), self.kept(look))
        return above
