"""The table of what a file holds. A name or a number is never broken: a name that does not fit has its own line.

Of a name that is wider than the terminal, the longest parts lose their middle.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from softshare._util.printable import printable, shorten
from softshare._util.words import times

if TYPE_CHECKING:
    from softshare.cli.console import SafeConsole
    from softshare.codec import FileInfo
    from softshare.codec.rows import Row

MOST_ROWS = 1000  # of a table; `inspect --json` lists all tensors
MOST_CHARACTERS, MOST_OF_SHAPE = 200, 40  # of a name and of a shape, which come from a file
COLUMNS = ("tensor", "shape", "non-zero", "components", "bits", "bytes", "share")
LEAST_OF_PART = 9  # characters that are left of the part of a name
MOST_TIED = 3  # names that a note lists
GAP = "  "


def print_file_table(out: SafeConsole, info: FileInfo, title: str, *, unfold: bool = False) -> None:
    """A row for each tensor, or for the tensors of a repeated block.

    Bits are per weight. The overhead is header, codebooks and checksum. A matrix without any weight left is red.
    """
    from softshare.codec.rows import folded, unfolded

    rows = unfolded(info.tensors) if unfold else folded(info.tensors)
    out.print(f"{title}: version {info.version}, codec {info.codec}, {info.file_bytes:,} bytes", style="bold")
    out.print(_table(info, rows, out.width, elide=out.cuts))
    for note in _notes(info, rows[:MOST_ROWS]):
        out.print(note)


def _table(info: FileInfo, rows: list[Row], width: int, elide: bool) -> Text:
    shown, hidden = rows[:MOST_ROWS], rows[MOST_ROWS:]
    cells = [_cells(row, info.file_bytes) for row in shown]
    styles = ["red" if _is_dead(row) else "" for row in shown]
    others = [(f"{sum(len(row.tensors) for row in hidden):,} more tensors", sum(row.n_bytes for row in hidden))]
    for name, n_bytes in [*(others if hidden else []), ("overhead", info.overhead_bytes)]:
        cells.append([name, "", "", "", "", f"{n_bytes:,}", _percent(n_bytes, info.file_bytes)])
    n = sum(t.n or 0 for t in info.tensors)
    bits = f"{8 * info.file_bytes / n:.3f}" if n else "-"
    cells.append(["file", f"{n:,}" if n else "?", "", "", bits, f"{info.file_bytes:,}", ""])
    if elide:
        cells = [[_elided(name, width), *numbers] for name, *numbers in cells]
    lines = _lines([list(COLUMNS), *cells], width)
    styles = ["bold", *styles, *[""] * (len(cells) - len(styles))]
    return Text("\n").join(Text(line, style) for line, style in zip(lines, styles, strict=True))


def _cells(row: Row, file_bytes: int) -> list[str]:
    first = row.tensors[0]
    shape = "?" if first.shape is None else shorten("x".join(map(str, first.shape)), MOST_OF_SHAPE) or "scalar"
    nonzero = "-" if row.n_nonzero is None else _percent(row.n_nonzero, row.n) if row.n else f"{row.n_nonzero:,}"
    least, most = (pick(t.n_components for t in row.tensors) for pick in (min, max))
    components = "kept" if first.kind == "rest" else str(most) if least == most else f"{least}-{most}"
    bits = f"{8 * row.n_bytes / row.n:.3f}" if row.n else "-"
    return [_short(row.name), shape, nonzero, components, bits, f"{row.n_bytes:,}", _percent(row.n_bytes, file_bytes)]


def _short(name: str) -> str:
    return shorten(printable(name), MOST_CHARACTERS)


def _elided(name: str, width: int) -> str:
    """The name without the middle of its longest parts: the numbers of blocks, and the end, tell tensors apart."""
    parts = name.split(".")
    for most in range(max(map(len, parts)), LEAST_OF_PART - 1, -1):
        found = ".".join(part if "{" in part else _without_middle(part, most) for part in parts)
        if cell_len(found) <= width:
            return found
    return _without_middle(name, width)


def _without_middle(text: str, most: int) -> str:
    end = most // 2
    return text if len(text) <= most else f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def _percent(part: int, whole: int | None) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _is_dead(row: Row) -> bool:
    """Whether nothing passes through one of the matrices."""
    return any(t.shape is not None and len(t.shape) > 1 and t.n and t.n_nonzero == 0 for t in row.tensors)


def _lines(rows: list[list[str]], width: int) -> list[str]:
    """The rows as lines, numbers to the right. Names that are too long for the width are above their numbers."""
    widths = [max(cell_len(row[k]) for row in rows) for k in range(1, len(COLUMNS))]
    room = max(cell_len(COLUMNS[0]) + 2, width - sum(widths) - len(GAP) * len(widths))
    names = [cell_len(row[0]) for row in rows]
    first = max(n for n in names if n <= room)
    lines = []
    for (name, *numbers), n in zip(rows, names, strict=True):
        right = GAP.join(number.rjust(w) for number, w in zip(numbers, widths, strict=True))
        start = f"{name}\n{' ' * first}" if n > room else name + " " * (first - n)
        lines.append(f"{start}{GAP}{right}".rstrip())
    return lines


def _notes(info: FileInfo, rows: list[Row]) -> list[str]:
    shared = [t for t in info.tensors if t.kind == "shared"]
    n, nonzero = sum(t.n or 0 for t in shared), sum(t.n_nonzero or 0 for t in shared)
    of = f" of {n:,} ({_percent(nonzero, n)})" if n else ""
    notes = [f"Shared weights that are not 0: {nonzero:,}{of}."]
    if values := sum(t.n or 0 for t in info.tensors):
        how = times(4 * values, info.file_bytes)
        notes.append(f"In float32 the values take {4 * values:,} bytes: the file is {how}.")
    if info.tied:
        pairs = [f"{_short(name)} is {_short(stored)}" for name, stored in islice(info.tied.items(), MOST_TIED)]
        more = len(info.tied) - len(pairs)
        notes.append(f"Stored once: {', '.join(pairs)}{f', and {more:,} more, which --json lists' if more else ''}.")
    if info.base:
        notes.append(f"Differences from the checkpoint with the SHA-256 {info.base}.")
    if len(shared) < len(info.tensors):
        notes.append("Tensors marked 'kept' are stored as they were. Their values do not count as shared weights.")
    if several := [len(row.tensors) for row in rows if len(row.tensors) > 1]:
        notes.append(f"x{several[0]} means {several[0]} tensors: bytes and share are sums, non-zero and bits means.")
        notes.append("To see each tensor: softshare inspect FILE --verbose")
    return notes
