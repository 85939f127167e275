"""Text from files as people see it: names may hold escape sequences, marks that reverse the text, or be very long."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    """Escape characters that are not printable, such as those that move a terminal's cursor. `keep` stays."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def shorten(text: str, most: int = 28) -> str:
    """Keep the end of a long name, because it tells tensors apart."""
    return text if len(text) <= most else "…" + text[1 - most :]
