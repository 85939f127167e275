"""The end of a command: a panel that says what became of the network, and what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from softshare._util.printable import printable, shorten
from softshare._util.words import duration, sizes, times

if TYPE_CHECKING:
    from softshare.datafree.compress_weights import FittedWeights
    from softshare.result import Result
    from softshare.verdict import Verdict

COLOURS = {"kept": "green", "lost": "red", "unknown": ""}
LATER = "Later, more layers became all zero."
MOST_DEAD = 3  # sentences about such layers
MOST_CHARACTERS = 200  # of a name


def result_panel(result: Result, verdict: Verdict, seconds: float, dead: Sequence[str] = ()) -> Panel:
    """The verdict, then what it is about. A target that is not met and `dead` layers are shown in red."""
    from softshare.compressed import REVIVE
    from softshare.summary import facts
    from softshare.verdict import NOT_FOUND

    rows = [*facts(result).items(), *(("target", text) for text in _target(result)), ("time", duration(seconds))]
    about = _short(result.experiment) + ("" if result.dataset == "custom" else f" on {result.dataset}")
    alarms = [] if (result.outcome or {}).get("met", True) else [NOT_FOUND]
    alarms += [*dead[:MOST_DEAD], *([LATER] if len(dead) > MOST_DEAD else []), *([REVIVE] if dead else [])]
    return panel(verdict.sentence, COLOURS[verdict.fate], about, rows, alarms)


def checkpoint_panel(fitted: FittedWeights, checkpoint: Path, seconds: float) -> Panel:
    """Of a network that nobody has measured, so it is neither green nor red."""
    errors, known, off = fitted.errors, fitted.output_error, "as they were"
    if errors:
        mean = math.sqrt(sum(error**2 for error in errors.values()) / len(errors))
        off = f"off by {100 * mean:.2f}% (root mean square), by at most {100 * max(errors.values()):.2f}%"
    rows = [
        ("bytes", sizes(fitted.original_bytes, fitted.file_bytes)),
        ("bits", f"{fitted.bits_per_weight:.2f} per weight"),
        ("weights", off),
        *([("outputs", f"off by {100 * known:.2g}% on the batches")] if known is not None else []),
        *([("loss", f"{fitted.loss[0]:.4g} -> {fitted.loss[1]:.4g}")] if fitted.loss else []),
        ("time", duration(seconds)),
    ]
    said = f"{times(fitted.original_bytes, fitted.file_bytes)}."
    if errors:
        said += f" {fitted.measured}"
    return panel(said, "", checkpoint.name, rows)


def panel(sentence: str, colour: str, about: str, rows: Iterable[tuple[str, str]], alarms: Iterable[str] = ()) -> Panel:
    """A sentence in its colour, red lines, and rows of a name and a text."""
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(_text(name), _text(text))
    red = [_text(alarm, "bold red", 1000) for alarm in alarms]
    head = [_text(sentence, f"bold {colour}".rstrip(), 1000), *red, Text(), _text(about, "bold")]
    return Panel(Group(*head, table), border_style=colour or "none", padding=(0, 1))


def _next_steps(steps: Sequence[tuple[str, str]]) -> Text:
    """What to do next: what for, and the command or the line of Python."""
    width = max(len(what) for what, _ in steps)
    return Text("\n".join(f"{what.ljust(width)}  {printable(how)}" for what, how in steps))


def after_a_run(folder: Path, file: Path) -> Text:
    return _next_steps([("See how it came about:", shlex.join(["softshare", "report", str(folder)])), *_of_file(file)])


def after_a_file(file: Path, base: Path | None = None) -> Text:
    return _next_steps(_of_file(file, base))


def _of_file(file: Path, base: Path | None = None) -> list[tuple[str, str]]:
    under = f", base={str(base)!r}" if base else ""
    return [
        ("See what is in the file:", shlex.join(["softshare", "inspect", str(file)])),
        ("Load it in Python:", f"softshare.load_into_(model, {str(file)!r}{under})"),
    ]


def _short(experiment: str) -> str:
    """A user's task without the folders of its file."""
    return experiment.rpartition("/")[2] if ".py:" in experiment else experiment


def _target(result: Result) -> list[str]:
    """The limit that a user gave, and what was reached. The limit of nothing lost is the verdict itself."""
    outcome = result.outcome or {}
    target, limit, reached = outcome.get("target"), outcome.get("limit"), outcome.get("reached")
    if target is None or limit is None or reached is None or target.get("kind") == "WithinNoise":
        return []
    from softshare.target.limits import bound_of, in_unit_of

    kind, metric = str(target.get("kind")), result.metric
    wanted, found = (in_unit_of(kind, metric, value) for value in (limit, reached))
    where = "" if kind in ("MaxBytes", "MaxMacs") else " on validation data"
    return [f"{bound_of(kind, metric)} {wanted}, reached {found}{where}"]


def _text(text: str, style: str = "", most: int = MOST_CHARACTERS) -> Text:
    """A text that may come from a file: rich must not read it as markup, nor a terminal as commands."""
    return Text(shorten(printable(text), most), style)
