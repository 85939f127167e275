"""The smallest file within a limit on the metric: runs that are gentler or harder, from the same start.

A network is judged where a run has settled: its errors on the way there, at high learning rates, say little. So the
search never acts within a run. The first run has the settings as they are. If its network is above the limit, the next
runs are ever gentler, else they are ever harder; then the gentleness is halved in between a run that fits and one that
does not. Only a run that breaks its network ends early.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from softshare.config import CompressConfig
from softshare.errors import DivergedError
from softshare.prior.prior import MixturePrior
from softshare.target.gentleness import GENTLEST, HARDEST
from softshare.target.runs import Kept, Runs
from softshare.task import Task
from softshare.train.first_look import FirstLook
from softshare.train.hooks import EpochRecord
from softshare.train.phases import Phases, StopPhaseError

MOST_RUNS = 6
NEAR_ENOUGH = 0.3  # difference in gentleness between a run that fits and one that does not
FAR = 6.0  # times what the metric may lose: after such a loss the next run is gentler by 2 at least, not by 1
BROKEN = 0.5  # share of what the network gains over zeros: with less than the rest of it, a network is broken
BROKEN_LOOKS = 4  # in a row, after which a run with a broken network ends
SETTLED = 0.8  # share of a run after which its network has settled


class Found(NamedTuple):
    """The best network of a run."""

    merit: tuple[float, float]  # less is better: by how much it is above the limit, then its bits, about
    kept: Kept


class Search(Runs):
    """The search for one network, which trains `task.model`. `limit` is in the unit of the metric.

    `judge` returns the metric of the file that the network of a prior would be now.
    """

    def __init__(
        self,
        task: Task,
        config: CompressConfig,
        first: FirstLook,
        limit: float,
        judge: Callable[[MixturePrior], float],
    ) -> None:
        super().__init__(task, config)
        self.first, self.limit, self.judge = first, limit, judge
        self._best: Found | None = None  # the best network of the present run so far
        self._above = math.inf  # the least that its network is above the limit, once it has settled
        self._bad = 0  # looks in a row at a broken network

    def run(self, phases: Phases) -> list[Found]:
        """Train. Returns the best network of each run that has one within the limit; if none has, the nearest."""
        found: list[Found] = []
        diverged: DivergedError | None = None
        hard, gentle = -math.inf, math.inf  # of the gentlest run that does not fit, and of the hardest that does
        by, step = 0.0, 1.0
        for _ in range(MOST_RUNS):
            self._best, self._above, self._bad = None, math.inf, 0
            try:
                self.train_(phases, by)
            except DivergedError as problem:
                diverged = problem
            if self._best:
                found.append(self._best)
            if self._above > 0:
                hard = by
                step = max(step, 2.0) if self._above > FAR * self._allowed else step
            else:
                gentle = by
            if math.isfinite(gentle - hard):
                by = (hard + gentle) / 2
            else:
                by = min(GENTLEST, by + step) if self._above > 0 else max(HARDEST, by - step)
                step *= 2
            if gentle - hard <= NEAR_ENOUGH or by in (hard, gentle):
                break
        if not found and diverged:
            raise diverged
        found.sort(key=lambda f: f.merit)
        return [f for f in found if f.merit[0] <= 0] or found[:1]

    @property
    def _allowed(self) -> float:
        return max(self.task.metric.loss(self.first.before, self.limit), self.first.noise)

    def on_epoch(self, record: EpochRecord) -> None:
        look, looks = record.epoch - self.start, self.settings.retrain.looks
        if look < looks and (look == 0 or (look - 0.5) / looks < self.settings.retrain.hard_from):
            return  # the network was not quantized; the last one counts in any case
        value = record.validation_error
        self._bad = self._bad + 1 if self.first.lost(self.task, value) > BROKEN else 0
        stops = self._bad >= BROKEN_LOOKS and look < looks
        if look > SETTLED * looks or stops:
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
