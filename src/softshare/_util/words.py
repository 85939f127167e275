"""Sizes and times as people say them."""

from __future__ import annotations


def sizes(before: int, after: int) -> str:
    return f"{before:,} -> {after:,} ({times(before, after)})"


def times(before: int, after: int) -> str:
    return f"{before / after:.1f} times smaller" if after <= before else f"{after / before:.1f} times larger"


def duration(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{hours:.1f} h"
