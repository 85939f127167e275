"""Sizes, times and lists as people say them, and what several parts say alike."""

from __future__ import annotations

from collections.abc import Sequence

from softshare._util.folding import fold

MOST_NAMES = 4  # that one message lists
AGAIN = "Give the same command again"
STOPPED = f"stopped. Nothing new was kept. {AGAIN}"


def sizes(before: int, after: int) -> str:
    return f"{before:,} -> {after:,} ({times(before, after)})"


def times(before: int, after: int) -> str:
    return f"{before / after:,.1f} times smaller" if after <= before else f"{after / before:,.1f} times larger"


def duration(seconds: float) -> str:
    """'40 s', '12 min', '3 h 20 min'."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def listed(names: Sequence[str]) -> str:
    """The first names, those of repeated blocks as one, and how many more there are."""
    folded = fold(names)
    more = sum(len(places) for _, places in folded[MOST_NAMES:])
    return ", ".join(name for name, _ in folded[:MOST_NAMES]) + (f" and {more} more" if more else "")
