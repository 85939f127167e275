"""Names of repeated blocks as one: layers.0.weight to layers.11.weight become layers.{0-11}.weight x12."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

LEAST = 3  # names in one that stands for several
MOST_NUMBERS, MOST_DIGITS = 8, 9  # in a name that folds: names come from files


def fold(names: Sequence[str], kinds: Sequence[Hashable] | None = None) -> list[tuple[str, tuple[int, ...]]]:
    """Names, and the places of those that each stands for, in the order of their first places.

    Names fold if only numbers in them differ, and if their `kinds` are equal.
    """
    groups: dict[object, list[int]] = {}
    for k, name in enumerate(names):
        parts = ["#" if _is_number(part) else part for part in name.split(".")]
        folds = 0 < parts.count("#") <= MOST_NUMBERS  # a name with very many numbers is not a block's
        groups.setdefault((tuple(parts), kinds[k] if kinds else None) if folds else k, []).append(k)
    found = [one for group in groups.values() for one in _fold(names, group)]
    return sorted(found, key=lambda one: one[1][0])


def _is_number(part: str) -> bool:
    return len(part) <= MOST_DIGITS and part.isascii() and part.isdecimal() and (part == "0" or part[0] != "0")


def _fold(names: Sequence[str], places: list[int]) -> list[tuple[str, tuple[int, ...]]]:
    """One name if the numbers are a whole grid, otherwise those of each first number that differs."""
    if len(places) < LEAST:
        return [(names[k], (k,)) for k in places]
    columns = list(zip(*(names[k].split(".") for k in places), strict=True))
    differing = {c: sorted({int(part) for part in column}) for c, column in enumerate(columns) if len({*column}) > 1}
    if math.prod(map(len, differing.values())) == len(places):
        parts = [f"{{{_ranges(differing[c])}}}" if c in differing else column[0] for c, column in enumerate(columns)]
        return [(f"{'.'.join(parts)} x{len(places)}", tuple(places))]
    first = min(differing)
    apart: dict[str, list[int]] = {}
    for k in places:
        apart.setdefault(names[k].split(".")[first], []).append(k)
    return [one for group in apart.values() for one in _fold(names, group)]


def _ranges(numbers: Sequence[int]) -> str:
    """'0-3,5' for 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
