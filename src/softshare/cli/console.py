"""Consoles that print what they are given: no markup, no emoji for `:names:`, no colours for numbers.

Characters that are not printable are escaped, wherever they come from: a name in a file must not move the cursor, set
the title of the window or hide a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from softshare._util.printable import printable

# A word of a message. A command is one word, so that it can be copied: `...`, or the rest of a line after a colon.
WORD = re.compile(r"(?:`[^`]*`|(?<=: )(?:softshare|pip|torchrun) .*|\S)+")


class SafeConsole(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """A string is a message: on a terminal its lines break between words, elsewhere they stay whole.

        The lines of a Text, such as those of a table, stay whole everywhere. Rich lays out anything else.
        """
        whole = all(isinstance(one, (str, Text)) for one in objects)
        if self.cuts:
            objects = tuple(
                wrapped(printable(one, keep="\n"), self.width) if isinstance(one, str) else one for one in objects
            )
        super().print(*objects, soft_wrap=whole, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What rich writes itself, styles and the movements of a progress bar, is not part of a segment's text."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(printable(segment.text, keep="\n"), segment.style)

    @property
    def cuts(self) -> bool:
        """Whether lines that are wider than the console are cut anywhere, as a terminal does and a file does not."""
        try:
            return self.file.isatty()
        except ValueError:  # it is closed
            return False


def console(*, stderr: bool = False) -> SafeConsole:
    return SafeConsole(stderr=stderr, markup=False, emoji=False, highlight=False)


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most this width. They break between words only: a longer word is a line of its own."""
    return "\n".join(line for whole in text.split("\n") for line in _lines(whole, width))


def _lines(line: str, width: int) -> list[str]:
    if cell_len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    found: list[str] = []
    for word in WORD.findall(line):
        longer = f"{found[-1]} {word}" if found else f"{indent}{word}"
        if found and cell_len(longer) > width:
            found.append(f"{indent}{word}")
        else:
            found[-1:] = [longer]
    return found
