"""Consoles that print what they are given: no markup, no emoji for `:names:`, no colours for numbers."""

from __future__ import annotations

from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)
