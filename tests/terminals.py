"""A stream that says it is a terminal, and a console of any width on it."""

from __future__ import annotations

import io
from collections.abc import Callable

from softshare.cli.console import SafeConsole


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines_of(show: Callable[[SafeConsole], None], width: int = 80, file: io.StringIO | None = None) -> list[str]:
    """What a function prints in a terminal, or in another file."""
    file = file or Terminal()
    show(SafeConsole(width=width, file=file, markup=False, emoji=False, highlight=False, color_system=None))
    return file.getvalue().splitlines()
