"""Axes: what the dimensions of the tensors of a network count, and which of them count the same.

A dimension is a row of axes, the first the slowest: after a Flatten it has the channels, then the height, then the
width. Axes that must have the same places are joined. An axis that a view cuts in two becomes two axes, everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Dimension = list["Axis"]  # empty if its size is 1


@dataclass(eq=False)
class Axis:
    """Places that are counted together."""

    size: int
    fixed: str = ""  # why no place can be removed; empty if it can
    _joined: Axis | None = field(default=None, repr=False)
    _parts: tuple[Axis, ...] = field(default=(), repr=False)  # if it was cut, the slower one first

    def leaves(self) -> Iterator[Axis]:
        """The axes that it is now: itself, the one that it was joined to, or the ones that it was cut into."""
        axis = self
        while axis._joined:
            axis = axis._joined
        if axis._parts:
            for part in axis._parts:
                yield from part.leaves()
        else:
            yield axis


def dimension(size: int, fixed: str = "") -> Dimension:
    return [Axis(size, fixed)] if size != 1 else []


def leaves(axes: Iterable[Axis]) -> Dimension:
    return [leaf for axis in axes for leaf in axis.leaves()]


def fix(axes: Iterable[Axis], why: str) -> None:
    """Let no place of these be removed."""
    for leaf in leaves(axes):
        leaf.fixed = leaf.fixed or why


def join(one: Sequence[Axis], other: Sequence[Axis]) -> None:
    """Two dimensions of the same size count the same."""
    ours, theirs = leaves(one), leaves(other)
    while ours and theirs:
        a, b = ours[0], theirs[0]
        if a is b:
            del ours[0], theirs[0]
        elif a.size == b.size:
            a.fixed = a.fixed or b.fixed
            b._joined = a
            ours, theirs = leaves(ours[1:]), leaves(theirs[1:])  # they may hold the same axes again
        elif a.size > b.size and a.size % b.size == 0:
            _cut(a, b.size)
            ours, theirs = leaves(ours), leaves(theirs)
        elif b.size > a.size and b.size % a.size == 0:
            _cut(b, a.size)
            ours, theirs = leaves(ours), leaves(theirs)
        else:
            return fix([*ours, *theirs], "its places are counted in two ways")
    return None


def _cut(axis: Axis, size: int) -> None:
    """Into an axis of this size and the faster rest."""
    axis._parts = Axis(size, axis.fixed), Axis(axis.size // size, axis.fixed)


def regrouped(dimensions: Iterable[Dimension], shape: Sequence[int]) -> list[Dimension] | None:
    """The dimensions of the same values in another shape, as a view gives it. None if a cut would not be even."""
    rest = leaves(axis for dim in dimensions for axis in dim)
    grouped: list[Dimension] = []
    for size in shape:
        own: Dimension = []
        while size > 1:
            rest = leaves(rest)
            if not rest:
                return None
            if size % rest[0].size == 0:
                size //= rest[0].size
                own.append(rest.pop(0))
            elif rest[0].size % size == 0:
                _cut(rest[0], size)
            else:
                return None
        grouped.append(own)
    return grouped if not rest else None
