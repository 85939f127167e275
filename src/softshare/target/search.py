"""The smallest file within a limit on the metric: runs that are gentler or harder, from the same start.

A network is judged by what it is at the end of a run. The errors on the way there, at high learning rates, say little
about that. So one number, the gentleness, decides all settings of a run that make the network smaller or better. The
first run has the settings as they are. If its network is above the limit, the next run is gentler, else it is harder.
Then the gentleness is halved in, between a run that fits and one that does not. A run that breaks its network ends at
once.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

from softshare.config import CompressConfig
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.first_look import FirstLook
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.phases import Phases, Stopped

MOST_RUNS = 6
NEAR_ENOUGH = 0.5  # difference in gentleness between a run that fits and one that does not
FAR = 6.0  # times what the metric may lose: after such a loss, or a broken network, the next run is gentler by 2, not 1
HARDEST, GENTLEST = -3.0, 6.0
BROKEN, BROKEN_LOOKS = 0.3, 3  # a network that has lost this share of what it gains over zeros, so many looks in a row
FINER_FROM = 1.5  # the gentleness from which the codebooks have more values, and narrower components
MOST_COMPONENTS = 255


def gentler(config: CompressConfig, by: float) -> CompressConfig:
    """The settings of a run that zeroes and merges fewer weights, and more for a negative number."""
    prior, retrain = config.prior, config.retrain
    if by <= 0:
        return config.override(zeroing=retrain.zeroing * 3**-by)
    odds = math.log(prior.zero_mixing / (1 - prior.zero_mixing)) - math.log(10) * by
    finer = 2 ** max(0.0, by - FINER_FROM)
    changes: dict[str, Any] = {"width": prior.width / finer} if prior.width else {}
    return config.override(
        tau=retrain.tau * 3 ** (-by / 2),
        zero_mixing=1 / (1 + math.exp(-odds)),
        components=min(MOST_COMPONENTS, round(prior.components * finer)),
        lr_means=prior.lr_means / finer,
        **changes,
    )


class Kept(NamedTuple):
    """A network that was looked at."""

    merit: tuple[float, float]  # less is better: by how much it is above the limit, then its bits
    prior: MixturePrior
    model_state: dict[str, Any]
    prior_state: dict[str, Any]


class Search(Hook):
    """The search of one run, which trains `task.model`. `limit` is in the unit of the metric."""

    def __init__(self, task: Task, config: CompressConfig, first: FirstLook, limit: float) -> None:
        self.task, self.config, self.first, self.limit = task, config, first, limit
        self.best: Kept | None = None
        self._prior: MixturePrior | None = None  # of the present run
        self._start = 0  # its first look
        self._bad = 0  # looks in a row at a broken network
        self._last: Kept | None = None

    def run(self, phases: Phases) -> MixturePrior:
        """Train, and leave the best network in the task's model. Returns its prior."""
        before = copy.deepcopy(self.task.model.state_dict())
        hard, gentle, by = -math.inf, math.inf, 0.0  # of the gentlest run that does not fit, and the hardest that does
        for _ in range(MOST_RUNS):
            self.task.model.load_state_dict(before)
            config = gentler(self.config, by)
            lost = self._train(phases, config, MixturePrior(self.task.model, config.prior))
            if lost <= 0:
                gentle = by
                by = (hard + gentle) / 2 if math.isfinite(hard) else by - 1
            else:
                hard = by
                far = 2 if lost > FAR * self._allowed else 1
                by = (hard + gentle) / 2 if math.isfinite(gentle) else by + far
            if gentle - hard <= NEAR_ENOUGH or not HARDEST <= by <= GENTLEST:
                break
        assert self.best is not None
        self.task.model.load_state_dict(self.best.model_state)
        self.best.prior.load_state_dict(self.best.prior_state)
        return self.best.prior

    @property
    def _allowed(self) -> float:
        return max(self.task.metric.loss(self.first.before, self.limit), self.first.noise)

    def _train(self, phases: Phases, config: CompressConfig, prior: MixturePrior) -> float:
        """One run. Returns by how much the least of its settled networks is above the limit."""
        self._prior, self._config, self._bad, self._least = prior, config.retrain, 0, math.inf
        self._start = phases.history[-1].epoch if phases.history else 0
        phases.run(config.retrain, prior=prior)
        return self._least

    def on_epoch(self, record: EpochRecord) -> None:
        look, config, prior = record.epoch - self._start, self._config, self._prior
        if prior is None or look == 0 or (look - 0.5) / config.looks < config.hard_from:
            return  # the network was not quantized
        above = max(0.0, self.task.metric.loss(self.limit, record.validation_error))
        bits = sum(record.density[s.name] * s.tensor.numel() for s in prior.view.shared) * math.log2(
            len(prior.mixtures()[0])
        )
        merit = (above, bits)
        if self.best is None or merit <= self.best.merit:
            states = copy.deepcopy((self.task.model.state_dict(), prior.state_dict()))
            self.best = Kept(merit, prior, *states)
        self._least = min(self._least, above)
        self._bad = self._bad + 1 if self.first.lost(self.task, record.validation_error) > BROKEN else 0
        if self._bad >= BROKEN_LOOKS and look < config.looks:
            raise Stopped
