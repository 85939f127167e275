"""The best network within a size, of the file or of the computation: runs until one has about that size.

The sizes of two runs, one larger and one smaller than the limit, say how gentle a run of the right size is. What a
network is too large by, trimming takes away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from softshare.config import CompressConfig
from softshare.errors import DivergedError
from softshare.network.groups import Group
from softshare.prior.prior import MixturePrior
from softshare.target.gentleness import GENTLEST, HARDEST, gentler
from softshare.target.runs import Kept, Runs
from softshare.task import Task
from softshare.train.phases import Phases

MOST_RUNS = 6
NEAR = 0.03  # share of the limit


class SizeSearch(Runs):
    """The search for one network, which trains `task.model`.

    `size` returns the size that the network of a prior would have now, in the unit of the limit.
    """

    def __init__(
        self,
        task: Task,
        config: CompressConfig,
        groups: Sequence[Group],
        limit: float,
        size: Callable[[MixturePrior], float],
        steer: Callable[[CompressConfig, float], CompressConfig] = gentler,
    ) -> None:
        super().__init__(task, config, groups, steer)
        self.limit, self.size = limit, size
        self._sizes: dict[float, float] = {}  # by gentleness: the logarithm of the size, relative to the limit
        self._found: list[Kept] = []

    def run(self, phases: Phases) -> list[Kept]:
        """Train. Returns the last network of each run, the nearest to the size first."""
        while len(self._sizes) < MOST_RUNS:
            try:
                self.train_(phases)
                self._sizes[self.gentleness] = math.log(self.size(self.prior) / self.limit)
                self._found.append(self.kept(phases.history[-1].epoch))
            except DivergedError:
                if not self._found and self.gentleness >= GENTLEST:
                    raise
                self._sizes[self.gentleness] = -math.inf  # only a gentler run is of use
            by = next_gentleness(self._sizes)
            if min(abs(size) for size in self._sizes.values()) <= NEAR or by in self._sizes:
                break
            self.begin(phases, by)
        return sorted(self._found, key=lambda kept: abs(self._sizes[kept.gentleness]))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sizes": self._sizes, "found": [tuple(kept) for kept in self._found]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._sizes = dict(state["sizes"])
        self._found = [Kept(*plain) for plain in state["found"]]


def next_gentleness(sizes: dict[float, float]) -> float:
    """Where the size is 0 by the two runs around it; as long as there is none on one side, ever further there."""
    hard = max((by for by, size in sizes.items() if size < 0), default=None)
    gentle = min((by for by, size in sizes.items() if size >= 0), default=None)
    if gentle is None:
        return min(GENTLEST, max(sizes) + 2.0 ** (len(sizes) - 1))
    if hard is None:
        return max(HARDEST, min(sizes) - 2.0 ** (len(sizes) - 1))
    if hard > gentle or sizes[hard] == -math.inf:
        return (hard + gentle) / 2
    share = -sizes[hard] / (sizes[gentle] - sizes[hard])
    return hard + min(0.9, max(0.1, share)) * (gentle - hard)
