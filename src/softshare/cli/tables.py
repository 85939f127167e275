"""The tables that the command line prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from softshare._util.printable import printable, shorten
from softshare._util.words import listed

if TYPE_CHECKING:
    from softshare.paper.verify import Check
    from softshare.result import Result
    from softshare.task import Metric
    from softshare.tune.trials import Row
    from softshare.zoo.experiments import PaperRow

MOST_CHARACTERS = 200  # of a name
MOST_CONDITIONS = 4


def _table(*columns: str) -> Table:
    table = Table(header_style="bold")
    for i, column in enumerate(columns):
        whole = i > 0  # a folded number would be misread
        table.add_column(_name(column), justify="right" if i else "left", overflow="fold", no_wrap=whole)
    return table


def _titled(title: str, table: Table, *notes: str) -> Group:
    """The title above a table of its own width: a title of rich breaks a long name at the width of the table."""
    head = _name(title)
    head.stylize("bold")
    head.overflow = "fold"
    return Group(head, table, *map(Text, notes))


def _name(text: str) -> Text:
    """A name from a file. It is Text, because rich would read "[x]" in a string as markup."""
    return Text(shorten(printable(text), MOST_CHARACTERS))


def _in_a_line(problem: str) -> str:
    """A problem whose further lines name tensors, with the first of them."""
    said, *tensors = problem.split("\n  ")
    return f"{said} {listed(tensors)}" if tensors else said


def account_table(result: Result) -> Group:
    """The description length: estimates and the measured file."""
    table = _table("", "bytes", "ratio")

    def row(label: str, n_bytes: float) -> None:
        table.add_row(label, f"{n_bytes:,.0f}", f"{4 * result.n_weights / n_bytes:.1f}" if n_bytes else "-")

    row("float32", 4 * result.n_weights)
    if result.complexity_bytes is not None:
        row("complexity cost, by the mixture", result.complexity_bytes)
    row("order-0 entropy of the indices", result.entropy_bytes)
    row("Han's format, the whole file", result.han_bytes)
    row("the file, measured", result.file_bytes)
    table.add_row("error cost on the training set", f"{result.error_bits / 8:,.0f}", "")
    return _titled("Description length", table)


def result_table(result: Result, paper: PaperRow | None) -> Group:
    """The result, with the row of the paper if there is one."""
    metric = result.metric
    table = _table("", metric.label, "all non-zero %", "bytes", "ratio")
    if paper:
        errors = f"{paper.error_before:.2f} -> {paper.error_after:.2f}"
        n_bytes = f"~{4 * result.n_weights / paper.ratio:,.0f}"
        table.add_row("paper, estimated", errors, f"{paper.nonzero_percent:.1f}", n_bytes, f"{paper.ratio:.1f}")
    errors = f"{metric.number(result.error_before)} -> {metric.number(result.error_after)}"
    density = f"{100 * result.n_nonzero / result.n_weights:.1f}"
    table.add_row("this file", errors, density, f"{result.file_bytes:,}", f"{result.ratio:.1f}")
    return _titled(f"{result.experiment} on {result.dataset}", table)


def reproduced_table(results: Iterable[Result], title: str) -> Group:
    """One row per kept result."""
    table = _table("method", "seed", "bytes", "ratio", "test error %")
    for r in results:
        errors = f"{r.error_before:.2f} -> {r.error_after:.2f}"
        table.add_row(_name(r.method), str(r.seed), f"{r.file_bytes:,}", f"{r.ratio:.1f}", errors)
    return _titled(title, table)


def front_table(rows: Iterable[Row], title: str, metric: Metric) -> Group:
    """One row per point of a study's front. A test value that was not measured is a dash."""
    table = _table("trial", f"validation {metric.label}", f"test {metric.label}", "bytes", "ratio")
    for row in rows:
        validation, test = (
            "-" if before is None or after is None else f"{metric.number(before)} -> {metric.number(after)}"
            for before, after in (
                (row.validation_error_before, row.validation_error),
                (row.test_error_before, row.test_error),
            )
        )
        table.add_row(str(row.trial), validation, test, f"{row.file_bytes:,}", f"{row.ratio:.1f}")
    return _titled(title, table)


def check_table(checks: Iterable[Check], title: str) -> Group:
    """One row per run: what was found, and whether it agrees with the result. The notes say what was not checked, and
    which conditions are not those of the results.
    """
    checks = list(checks)
    conditions = Counter(text for check in checks for text in check.conditions)
    reasons = dict.fromkeys(text for check in checks for text in check.not_checked)
    table = Table(header_style="bold")
    table.add_column("file", overflow="fold", ratio=2)
    table.add_column("bytes", justify="right", no_wrap=True)
    metrics = {check.metric for check in checks}
    one = metrics.pop() if len(metrics) == 1 else None
    table.add_column(_name(one.label if one else "metric"), justify="right", no_wrap=True)
    table.add_column("", overflow="fold", ratio=3)
    for check in checks:
        verdict = "; ".join(map(_in_a_line, check.differences)) or "ok"
        verdict += "".join(f"; {text.partition(':')[0]} not checked" for text in check.not_checked)
        n_bytes = "-" if check.file_bytes is None else f"{check.file_bytes:,}"
        value, metric = check.error, check.metric
        error = "-" if value is None else one.number(value) if one else f"{metric.name} {metric.text(value)}"
        table.add_row(_name(check.path), n_bytes, error, Text(printable(verdict), style="" if check.ok else "red"))
    notes = [f"not checked: {text}" for text in reasons]
    if conditions:
        most = conditions.most_common(MOST_CONDITIONS)
        of = [f"{shorten(text, MOST_CHARACTERS)} ({n} of {len(checks)} runs)" for text, n in most]
        more = len(conditions) - len(of)
        text = "; ".join(of) + (f" and {more} more" if more else "")
        notes.append(f"measured under other conditions, which may round differently: {text}")
    return _titled(title, table, *map(printable, notes))
