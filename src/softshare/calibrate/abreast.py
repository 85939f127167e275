"""Batches that run through a network side by side, so that it is quantized within one pass.

Each run stops where it uses a weight for the last time. When all runs have come there, the weight is quantized by all
inputs that it has had, and the runs go on with the quantized weight. A second run of each batch, with the weights of
the network itself, stops at the same places: its inputs are those that the weight was made for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from softshare._util.work_stages import QUIET, Stages
from softshare.calibrate.batches import logits_of, started
from softshare.calibrate.inputs import Finder, Moments, Seen, Use
from softshare.calibrate.running import Running

MOST_COMPARED = 4  # batches


@dataclass(eq=False)
class Survey:
    """What the batches do with the weights."""

    inputs: dict[Use, Use] = field(default_factory=dict)  # all uses in order, and the first one with the same inputs
    counts: list[Counter[Use]] = field(default_factory=list)  # of each batch
    tables: set[str] = field(default_factory=set)  # weights whose rows are looked up, too

    def of(self, name: str) -> list[Use]:
        return [use for use in self.inputs if use.name == name]


def survey(model: nn.Module, batches: Sequence[Any], finder: Finder, stages: Stages = QUIET) -> Survey:
    found = Survey()
    for run in started(model, batches):
        count: Counter[Use] = Counter()
        before: Seen | None = None
        for seen in _uses(run, finder, tables=found.tables):
            count[seen.use] += 1
            same = before is not None and seen.same_inputs(before)
            found.inputs.setdefault(seen.use, found.inputs[before.use] if before is not None and same else seen.use)
            before = seen
        found.counts.append(count)
        stages.done()
    return found


def outputs(model: nn.Module, batches: Sequence[Any], finder: Finder) -> list[Tensor]:
    """Of the network with the weights that the finder has, on a few batches."""
    found = []
    for run in started(model, batches[:MOST_COMPARED]):
        for _ in _uses(run, finder):
            pass
        output = logits_of(run.output)
        if output is not None:
            found.append(output.detach().float().cpu())
    return found


def sweep(
    model: nn.Module,
    batches: Sequence[Any],
    finder: Finder,
    known: Survey,
    wanted: Collection[str],
    ready: Callable[[Use, Moments], None],  # quantizes a use, and puts the weights into the finder
) -> None:
    moments: dict[Use, Moments] = {}
    left = Counter(first for use, first in known.inputs.items() if use.name in wanted)
    rank = {use: k for k, use in enumerate(known.inputs)}
    done: set[Use] = set()
    runs: list[_Pair] = []
    try:
        for now, before, count in zip(started(model, batches), started(model, batches), known.counts, strict=True):
            pair = _Pair((now, before), (_uses(now, finder, wanted), _uses(before, finder, wanted, swap=False)), count)
            runs.append(pair)
            pair.go_on(known, moments, done)
        while waiting := [run for run in runs if run.at is not None]:
            use = min((run.at for run in waiting if run.at is not None), key=rank.__getitem__)
            first = known.inputs[use]
            if first in moments:
                ready(use, moments[first])
            done.add(use)
            left[first] -= 1
            if not left[first]:
                moments.pop(first, None)
            for run in waiting:
                if run.at == use:
                    run.go_on(known, moments, done)
    finally:
        for pair in runs:
            pair.leave()


class _Pair:
    """A batch in the network as it is by now, and in the network as it was."""

    def __init__(
        self, runs: tuple[Running, Running], uses: tuple[Iterator[Seen], Iterator[Seen]], counts: Counter[Use]
    ) -> None:
        self.at: Use | None = None
        self._runs, (self._now, self._before), self._left = runs, uses, counts.copy()

    def go_on(self, known: Survey, moments: dict[Use, Moments], done: Collection[Use]) -> None:
        """Up to the next weight that is used for the last time and not quantized yet."""
        self.at = None
        for seen in self._now:
            before, use = next(self._before, None), seen.use
            self._left[use] -= 1
            if use in done:
                continue
            if known.inputs.get(use) == use:
                same = before is not None and before.use == use
                moments.setdefault(use, Moments()).add(seen, before if same else None)
            if self._left[use] == 0:
                self.at = use
                return

    def leave(self) -> None:
        for run in self._runs:
            run.leave()


def _uses(
    run: Running,
    finder: Finder,
    wanted: Collection[str] | None = None,  # names; by default, all
    swap: bool = True,
    tables: set[str] | None = None,
) -> Iterator[Seen]:
    """Each use of a weight, before it happens."""
    while run.next is not None:
        seen = finder.seen(run.next)
        if seen is not None and (wanted is None or seen.use.name in wanted):
            yield seen
        if tables is not None and (table := finder.table(run.next)) is not None:
            tables.add(table)
        run.do(finder.swapped(run.next.args) if swap else None)
