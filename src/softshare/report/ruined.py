"""Layers that compression has ruined: all their weights are zero, so nothing passes through them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from softshare._util.folding import fold
from softshare.report.course import DENSITY, died
from softshare.report.names import MOST_CHARACTERS, short, tensor_names
from softshare.report.run import Run

ALL = "all zero"


@dataclass(frozen=True)
class Ruined:
    """A tensor of zeros only, and the epoch from which it was so; None if that is not known."""

    name: str
    epoch: float | None
    counted: str = "epoch"  # or look

    @property
    def since(self) -> str:
        return ALL if self.epoch is None else f"{ALL} since {self.counted} {self.epoch:g}"


def ruined_data(run: Run) -> tuple[Ruined, ...]:
    """The matrices of the file that are zero. During training: the weights that are zero in the hard phase.

    A bias may be zero, and so may a vector that scales: the network can do without.
    """
    if run.info is not None:
        names = [
            name
            for name, t in zip(tensor_names(run.info.tensors), run.info.tensors, strict=True)
            if t.kind == "shared" and t.n and t.n_nonzero == 0 and (t.shape is None or len(t.shape) > 1)
        ]
    elif run.history and run.is_hard[-1]:
        columns = {name.removeprefix(DENSITY): value for name, value in run.history[-1].items() if DENSITY in name}
        names = [name for name, value in columns.items() if value == 0 and not name.endswith("bias")]
    else:
        names = []
    last = float(run.frames.epochs[-1]) if run.frames and run.result else None
    return tuple(Ruined(name, died(run.history, name, last), run.counted) for name in names)


def some_of(dead: int, all_of_them: int) -> str:
    """Of a repeated block in one row or line."""
    return ALL if dead == all_of_them else f"{dead} of {all_of_them} all zero"


def ruined_in_words(ruined: Sequence[Ruined], most: int) -> list[str]:
    """At most so many lines, and one more if there are others. The blocks that died first come first."""
    by_epoch = sorted(ruined, key=_died)
    groups = [(name, [by_epoch[k] for k in places]) for name, places in fold([found.name for found in by_epoch])]
    lines = [f"{short(name, MOST_CHARACTERS)} {_passes_nothing(found)}" for name, found in groups[:most]]
    if hidden := sum(len(found) for _, found in groups[most:]):
        lines.append(f"{hidden} more layer{'s are' if hidden > 1 else ' is'} all zero.")
    return lines


def _passes_nothing(found: Sequence[Ruined]) -> str:
    first = found[0]
    if len(found) == 1:
        return f"is {first.since}: nothing passes through it."
    together = {other.epoch for other in found} == {first.epoch}
    since = first.since if together else f"all zero, the first since {first.counted} {first.epoch:g}"
    return f"are {since}: nothing passes through them."


def _died(found: Ruined) -> float:
    return math.inf if found.epoch is None else found.epoch
