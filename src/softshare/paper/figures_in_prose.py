"""Figures in prose: numbers of the README and of docs/ that are read from files.

A figure stands between two comments, and `softshare results` fills it in:

    The files have <!-- = results/lenet-300-100/softshare mean(file_bytes) -->5,314<!-- / --> bytes.

The first comment names a source, conditions on its rows, and the figure. The source is a CSV file, or a folder in which
each result is a row; its path is relative to the repository. A condition is `COLUMN=PATTERN`, with the wildcards of a
shell. The figure is one of:

- `COLUMN`, or a product such as `100*COLUMN/COLUMN`, if there is exactly one row;
- `min(...)` or `max(...)` of that over the rows;
- `mean(...)` or `median(...)` of each column in it, so that a ratio is a ratio of means, as in docs/results.md;
- `rows`, their number, or `seeds`, their number in words.

A format may follow a colon: `error_after:.2f`. A table has one line for each row, in the order of the source or sorted:

    <!-- table docs/tuning/summary.csv on_front=True sort:file_bytes | trial = trial | error % = test_error:.2f -->
    <!-- /table -->
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import re
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from softshare._util.run_folder import RESULT, run_files
from softshare.errors import ConfigError
from softshare.result import Result

Row = Mapping[str, Any]
Lookup = Callable[[str], Sequence[Row]]  # from a source to its rows

_FIGURE = re.compile(r"<!-- = ([^>]+?) -->[^<]*<!-- / -->")
_TABLE = re.compile(r"<!-- table ([^>]+?) -->\n[^<]*<!-- /table -->")
_OPENINGS = re.compile(r"<!-- (?:=|table) ")
_TERM = re.compile(r"(?:(min|max|mean|median)\()?([\w.]+(?:[*/][\w.]+)*)\)?(?::(.+))?")
_OF_ROWS: dict[str, Callable[[list[float]], float]] = {"min": min, "max": max}
_OF_COLUMNS: dict[str, Callable[[list[float]], float]] = {"mean": statistics.fmean, "median": statistics.median}


def has_figures(text: str) -> bool:
    return _OPENINGS.search(text) is not None


def fill(text: str, lookup: Lookup) -> str:
    """The text with every marked figure and table filled in from the sources."""
    if len(_OPENINGS.findall(text)) != len(_FIGURE.findall(text)) + len(_TABLE.findall(text)):
        raise ConfigError(
            "expected <!-- / --> after each <!-- = ... --> and <!-- /table --> after each <!-- table ... -->"
        )
    if at_start := re.search(r"^[ \t]*<!-- = [^>]*>", text, re.MULTILINE):
        raise ConfigError(
            f"{at_start[0].strip()}: a marker may not begin a line, because Markdown would not format the line; move it"
        )
    text = _FIGURE.sub(lambda m: f"<!-- = {m[1]} -->{figure(m[1], lookup)}<!-- / -->", text)
    return _TABLE.sub(lambda m: f"<!-- table {m[1]} -->\n\n{table(m[1], lookup)}\n\n<!-- /table -->", text)


def figure(marker: str, lookup: Lookup) -> str:
    """The text for a marker `SOURCE [COLUMN=VALUE ...] FIGURE`."""
    *where, term = shlex.split(marker)
    return _formatted(_rows(where, marker, lookup), term, marker)


def table(marker: str, lookup: Lookup) -> str:
    """The table for a marker `SOURCE [COLUMN=VALUE ...] [sort:COLUMN] | HEADING = FIGURE | ...`."""
    head, *columns = (part.strip() for part in marker.split("|"))
    where = shlex.split(head)
    rows = list(_rows([word for word in where if not word.startswith("sort:")], marker, lookup))
    for word in where:
        if word.startswith("sort:"):
            rows.sort(key=lambda row: _number(row, marker, word.removeprefix("sort:")))
    named = [tuple(part.strip() for part in column.split("=", 1)) for column in columns]
    lines = [[name for name, _ in named], ["---"] * len(named)]
    lines += [[_formatted([row], term, marker) for _, term in named] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def files_below(root: Path) -> Lookup:
    """Look up sources by paths relative to a folder. Each file is read once."""

    @functools.cache
    def rows(source: str) -> Sequence[Row]:
        path = root / source
        if path.suffix == ".csv" and path.is_file():
            with path.open(newline="") as file:
                return list(csv.DictReader(file))
        return [dataclasses.asdict(Result.load(found)) for found in run_files(path, RESULT)]

    return rows


def _rows(where: Sequence[str], marker: str, lookup: Lookup) -> Sequence[Row]:
    source, *conditions = where
    wanted = dict(condition.split("=", 1) for condition in conditions)
    rows = [row for row in lookup(source) if all(fnmatchcase(str(row.get(k)), v) for k, v in wanted.items())]
    if not rows:
        raise ConfigError(f"{marker}: expected rows in {source}, found none; check the path and the conditions")
    return rows


def _formatted(rows: Sequence[Row], term: str, marker: str) -> str:
    if term == "seeds":
        return "one seed" if len(rows) == 1 else f"{len(rows)} seeds"
    if term == "rows":
        return f"{len(rows):,}"
    match = _TERM.fullmatch(term)
    if match is None:
        raise ConfigError(f"{marker}: expected a figure such as file_bytes or 100*n_nonzero/n_weights:.1f, got {term}")
    function, product, form = match.groups()
    if not function and len(rows) > 1:
        raise ConfigError(f"{marker}: expected one row, found {len(rows)}; add conditions, or write mean({product})")
    if not form and product in rows[0] and not _is_number(rows[0][product]):
        return str(rows[0][product])  # a word
    if function in _OF_ROWS:
        of_rows = [_product(product, functools.partial(_number, row, marker)) for row in rows]
        value = _OF_ROWS[function](of_rows)
    else:
        summary = _OF_COLUMNS.get(function, statistics.fmean)
        value = _product(product, lambda column: summary([_number(row, marker, column) for row in rows]))
    return f"{value:{form or ',.0f'}}"


def _product(text: str, of: Callable[[str], float]) -> float:
    """`A*B/C` from left to right. Each factor is a number or a column."""
    value = 1.0
    for sign, name in re.findall(r"([*/]?)([\w.]+)", text):
        factor = float(name) if _is_number(name) else of(name)
        value = value / factor if sign == "/" else value * factor
    return value


def _number(row: Row, marker: str, column: str) -> float:
    if column not in row:
        raise ConfigError(f"{marker}: expected a column of the source, got {column}; its columns are {', '.join(row)}")
    if not _is_number(row[column]):
        raise ConfigError(f"{marker}: expected a number in {column}, got {row[column]!r}")
    return float(row[column])


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True
