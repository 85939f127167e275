"""Consoles that print what they are given: no markup, no emoji for `:names:`, no colours for numbers.

Characters that are not printable are escaped, wherever they come from: a name in a file must not move the cursor, set
the title of the window or hide a line.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from softshare._util.printable import printable


class SafeConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What rich writes itself, styles and the movements of a progress bar, is not part of a segment's text."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n"), segment.style)


def console(*, stderr: bool = False) -> Console:
    return SafeConsole(stderr=stderr, markup=False, emoji=False, highlight=False)
