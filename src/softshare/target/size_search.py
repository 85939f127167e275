"""The best network within a file size: runs that are gentler or harder until one has about that size.

The sizes of two runs, one larger and one smaller than the limit, say how gentle a run of the right size is. What a file
is too large by, trimming takes away.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from softshare.config import CompressConfig
from softshare.errors import DivergedError
from softshare.prior.prior import MixturePrior
from softshare.target.gentleness import GENTLEST, HARDEST
from softshare.target.runs import Kept, Runs
from softshare.task import Task
from softshare.train.phases import Phases

MOST_RUNS = 6
NEAR = 0.03  # share of the limit


class SizeSearch(Runs):
    """The search for one network, which trains `task.model`.

    `size` returns the size of the file that the network of a prior would be now.
    """

    def __init__(self, task: Task, config: CompressConfig, max_bytes: int, size: Callable[[MixturePrior], int]) -> None:
        super().__init__(task, config)
        self.max_bytes, self.size = max_bytes, size

    def run(self, phases: Phases) -> list[Kept]:
        """Train. Returns the last network of each run, the nearest to the size first."""
        found: list[tuple[float, Kept]] = []
        sizes: dict[float, float] = {}  # by gentleness: the logarithm of the size, relative to the limit
        by = 0.0
        for _ in range(MOST_RUNS):
            try:
                self.train_(phases, by)
                size = max(1, self.size(self.prior))
                sizes[by] = math.log(size / self.max_bytes)
                found.append((abs(sizes[by]), self.kept(phases.history[-1].epoch)))
            except DivergedError:
                if not found and by >= GENTLEST:
                    raise
                sizes[by] = -math.inf  # only a gentler run is of use
            by = next_gentleness(sizes)
            if min(abs(s) for s in sizes.values()) <= NEAR or by in sizes:
                break
        return [kept for _, kept in sorted(found, key=lambda pair: pair[0])]


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
