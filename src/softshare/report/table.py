"""A table of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_ROWS = 2000
Cell = tuple[Any, str]  # a value to sort by, None if it is not known, and a text


@dataclass(frozen=True)
class Table:
    """A table that sorts. The marks are classes of rows. What is in a row of several opens below its first cell."""

    name: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    marks: Mapping[int, str] | None = None
    half: bool = False  # of the width of a wide screen
    inside: Mapping[int, Sequence[str]] = field(default_factory=dict)
