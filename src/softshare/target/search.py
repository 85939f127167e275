"""The smallest file within a limit on the metric: runs that are gentler or harder, from the same start.

A network is judged where a run has settled: its errors on the way there, at high learning rates, say little. So the
search never acts within a run. One number, the gentleness, decides how strongly a run makes the network smaller. The
first run has the settings as they are. If its network is above the limit, the next runs are ever gentler, else they are
ever harder; then the gentleness is halved in between a run that fits and one that does not. Only a run that breaks its
network ends early.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from softshare.config import CompressConfig
from softshare.errors import DivergedError
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.first_look import FirstLook
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.phases import Phases, StopPhaseError

MOST_RUNS = 6
NEAR_ENOUGH = 0.3  # difference in gentleness between a run that fits and one that does not
HARDEST, GENTLEST = -3.0, 8.0
FAR = 6.0  # times what the metric may lose: after such a loss the next run is gentler by 2 at least, not by 1
BROKEN = 0.5  # share of what the network gains over zeros: with less than the rest of it, a network is broken
BROKEN_LOOKS = 4  # in a row, after which a run with a broken network ends
SETTLED = 0.8  # share of a run after which its network has settled
FINER_FROM = 1.5  # the gentleness from which codebooks have more values, and components are narrower
SLOWER_FROM = 4.0  # the gentleness from which the weights also move less
MOST_COMPONENTS = 255


def gentler(config: CompressConfig, by: float) -> CompressConfig:
    """The settings of a run that leaves more weights; for a negative number, of one that leaves fewer.

    A gentler run has a weaker prior with a less likely zero component. From some gentleness on, it also has more values
    to choose from, which a network needs that must be exact. The gentlest runs hardly move the weights.
    """
    prior, retrain = config.prior, config.retrain
    if by <= 0:
        return config.override(zeroing=retrain.zeroing * 3**-by)
    odds = math.log(prior.zero_mixing / (1 - prior.zero_mixing)) - math.log(10) * by
    finer, slower = 2 ** max(0.0, by - FINER_FROM), 2 ** max(0.0, by - SLOWER_FROM)
    width: dict[str, Any] = {"width": prior.width / finer} if prior.width else {}
    return config.override(
        tau=retrain.tau * 3 ** (-by / 2),
        zero_mixing=1 / (1 + math.exp(-odds)),
        components=min(MOST_COMPONENTS, round(prior.components * finer)),
        lr_means=prior.lr_means / finer,
        lr_weights=retrain.lr_weights / slower,
        **width,
    )


class Found(NamedTuple):
    """The best network of a run."""

    merit: tuple[float, float]  # less is better: by how much it is above the limit, then its bits, about
    look: int
    prior: MixturePrior
    model_state: dict[str, Any]
    prior_state: dict[str, Any]


class Search(Hook):
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
        self.task, self.config, self.first, self.limit, self.judge = task, config, first, limit, judge
        self._present: tuple[CompressConfig, MixturePrior] | None = None  # settings and prior of the present run
        self._best: Found | None = None  # the best network of that run so far
        self._start = 0  # the number of that run's first record
        self._above = math.inf  # the least that its network is above the limit, once it has settled
        self._bad = 0  # looks in a row at a broken network

    def run(self, phases: Phases) -> list[Found]:
        """Train. Returns the best network of each run that has one within the limit; if none has, the nearest."""
        before = copy.deepcopy(self.task.model.state_dict())
        found: list[Found] = []
        diverged: DivergedError | None = None
        hard, gentle = -math.inf, math.inf  # of the gentlest run that does not fit, and of the hardest that does
        by, step = 0.0, 1.0
        for _ in range(MOST_RUNS):
            self.task.model.load_state_dict(before)
            config = gentler(self.config, by)
            self._present = (
                config,
                MixturePrior(self.task.model, config.prior, relative=config.retrain.scaling == "auto"),
            )
            self._best, self._above, self._bad = None, math.inf, 0
            self._start = phases.history[-1].epoch if phases.history else 0
            try:
                phases.run(config.retrain, prior=self._present[1])
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

    def restore_(self, found: Found) -> MixturePrior:
        """Put a network into the task's model again. Returns its prior."""
        self.task.model.load_state_dict(found.model_state)
        found.prior.load_state_dict(found.prior_state)
        return found.prior

    def on_epoch(self, record: EpochRecord) -> None:
        assert self._present is not None
        (config, prior), look = self._present, record.epoch - self._start
        looks = config.retrain.looks
        if look < looks and (look == 0 or (look - 0.5) / looks < config.retrain.hard_from):
            return  # the network was not quantized; the last one counts in any case
        weights = sum(record.density[s.name] * s.tensor.numel() for s in prior.view.shared)
        bits = weights * math.log2(config.prior.components + 1)
        above = self._note(record.epoch, prior, bits, record.validation_error)
        if look > SETTLED * looks:
            self._above = min(self._above, above)
        self._bad = self._bad + 1 if self.first.lost(self.task, record.validation_error) > BROKEN else 0
        if self._bad >= BROKEN_LOOKS and look < looks:
            raise StopPhaseError

    def _note(self, look: int, prior: MixturePrior, bits: float, value: float) -> float:
        """Keep the network if it is the best of its run so far. Whether it fits is decided by its file.

        Returns by how much it is above the limit.
        """
        above = max(0.0, self.task.metric.loss(self.limit, value))
        if self._best and (above, bits) > self._best.merit:
            return above
        if above <= 0:
            above = max(0.0, self.task.metric.loss(self.limit, self.judge(prior)))
        if self._best is None or (above, bits) <= self._best.merit:
            self._best = Found((above, bits), look, prior, _on_cpu(self.task.model), _on_cpu(prior))
        return above


def _on_cpu(module: nn.Module) -> dict[str, Any]:
    """A copy of the state. A search keeps several, for which a GPU may have no room."""
    return {name: v.cpu().clone() if isinstance(v, Tensor) else v for name, v in module.state_dict().items()}
