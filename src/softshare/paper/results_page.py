"""The results page: from measured results to Markdown, with the published figures beside them."""

from __future__ import annotations

import html
import json
import re
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from softshare._util.printable import printable
from softshare.config.stages import upgraded
from softshare.errors import ConfigError
from softshare.paper.baselines import OWN_ACCOUNTING
from softshare.paper.published import ACCOUNTINGS, PAPER, Published, published
from softshare.result import Result
from softshare.zoo.experiments import EXPERIMENTS

BEGIN, END = "<!-- results -->", "<!-- /results -->"
MOST_OF_A_NAME = 100  # characters of an experiment in the name of a file
NEAR = 0.05  # points of test error: the README compares a file with the paper if it is at most this much worse
# Settings that a table names unless they are off, with the value that means "off".
SWITCHES: dict[str, Any] = {
    "augment": False,
    "label_smoothing": 0.0,
    "hard_from": 1.0,
    "distill": 0.0,
    "from_scratch": False,
    "zeroing": 0.0,
    "symmetries": False,
    "fold_batchnorm": False,
}
_NOT_THE_POINT = ("seed", "capture", "backend", "sha256")  # results of one point may differ in these

_INTRO = """# Results

`softshare results` writes this page from the files in `results/`. `softshare verify` decodes and measures each of them
again.

The bytes are those of the whole file. The ratio is 4 bytes times the number of parameters, divided by the bytes of the
file. Errors are on the test set, before and after compression. With three seeds or more, a figure is the mean and the
standard deviation over the seeds. With two, it is the mean and the range. A real file is also written in the paper's
format (Han's). Published sizes are of three kinds, which should not be compared with each other:
"""


@dataclass(frozen=True)
class Point:
    """The results of one method with the same settings, a seed each."""

    results: tuple[Result, ...]

    @property
    def first(self) -> Result:
        return self.results[0]

    @property
    def n_bytes(self) -> float:
        return statistics.fmean(r.file_bytes for r in self.results)

    @property
    def error_after(self) -> float:
        return statistics.fmean(r.error_after for r in self.results)

    @property
    def ratio(self) -> float:
        return 4 * self.first.n_weights / self.n_bytes

    @property
    def switches(self) -> dict[str, Any]:
        return {
            k: v for k, v in _leaves(self.first.config) if k in SWITCHES and v not in (SWITCHES[k], None, "none", "")
        }

    @property
    def label(self) -> str:
        """The method's name, with the word augmented if it applies and the name lacks it."""
        says_so = not self.augmented or "augmented" in self.first.method
        return self.first.method if says_so else f"{self.first.method}, augmented"

    @property
    def augmented(self) -> bool:
        return "augment" in self.switches


def _leaves(config: Any) -> Iterable[tuple[str, Any]]:
    for name, value in config.items():
        if name == "pretrain":  # its settings are not switches of the method
            continue
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield name, value


def without_seed(config: Any) -> Any:
    """A config, in the present version of the settings, without what may differ between results of one point."""
    if not isinstance(config, dict):
        return config
    return {name: without_seed(value) for name, value in upgraded(config).items() if name not in _NOT_THE_POINT}


def points(results: Iterable[Result]) -> list[Point]:
    """Results grouped by experiment, data, method and settings, in a fixed order: by experiment, then by bytes."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for r in sorted(results, key=lambda r: (r.seed, r.file_bytes)):
        settings = json.dumps(without_seed(r.config), sort_keys=True)
        groups.setdefault((r.experiment, r.dataset, r.method, settings), []).append(r)
    found = [Point(tuple(group)) for group in groups.values()]
    for point in found:
        _require_each_seed_once(point)
    known = list(EXPERIMENTS)

    def order(p: Point) -> tuple[Any, ...]:
        name = p.first.experiment
        rank = known.index(name) if name in known else len(known)
        return rank, name, p.first.dataset, p.augmented, p.n_bytes, p.first.method, p.error_after

    return sorted(found, key=order)


def _require_each_seed_once(point: Point) -> None:
    seeds = [r.seed for r in point.results]
    if len(set(seeds)) < len(seeds):
        first = point.first
        raise ConfigError(
            f"{first.experiment}, {first.method}: expected one result per seed and setting, got seeds {seeds}; "
            "remove one, or let its method or config say what is different"
        )


# Markdown


def render_page(results: Iterable[Result], plots: Collection[str] = ()) -> str:
    """The page as Markdown; `plots` names the experiments whose plot lies beside it."""
    kinds = "; ".join(f"({key}) {text}" for key, text in ACCOUNTINGS.items())
    parts = [f"{_INTRO}{kinds}. Ours are all (c)."]
    for name, group in groupby(points(results), key=lambda p: p.first.experiment):
        parts += _section(name, list(group), name in plots)
    return "\n\n".join(parts) + "\n"


def _section(experiment: str, ours: Sequence[Point], plot: bool) -> list[str]:
    n = ours[0].first.n_weights
    parts = [f"## {_plain(experiment)}", f"{n:,} parameters, {4 * n:,} bytes as float32."]
    for (dataset, augmented), group in groupby(ours, key=lambda p: (p.first.dataset, p.augmented)):
        shown = list(group)
        parts += [f"### {_plain(dataset)}, {_augmentation(experiment, augmented)}", _our_table(shown)]
        parts += [_as_published(p) for p in shown if None not in _published_ratios(p)]
    if rows := published(experiment):
        parts += ["### Published", _published_table(rows)]
    if plot:
        parts.append(f"![Bytes against error, {_plain(experiment)}]({plot_name(experiment)})")
    return parts


def _augmentation(experiment: str, switched_on: bool) -> str:
    if experiment in EXPERIMENTS and EXPERIMENTS[experiment].always_augmented:
        return "augmented as in the paper"
    return f"{'with' if switched_on else 'without'} augmentation"


def plot_name(experiment: str) -> str:
    """Beside the page, whatever the experiment is called: a name in a result is no path."""
    return f"results-{re.sub('[^0-9A-Za-z._-]', '-', experiment)[:MOST_OF_A_NAME]}.png"


def _our_table(ours: Sequence[Point]) -> str:
    columns = (
        "method",
        "seeds",
        "test error %",
        "bytes",
        "ratio",
        "bytes in the paper's format",
        "non-zero %",
        "switches",
    )
    return _table(columns, [_our_row(point) for point in ours])


def _our_row(p: Point) -> list[str]:
    han = [r.han_bytes for r in p.results]
    density = statistics.fmean(100 * r.n_nonzero / r.n_weights for r in p.results)
    han_ratio = 4 * p.first.n_weights / statistics.fmean(han)
    switches = ", ".join(name if value is True else f"{name} {value}" for name, value in p.switches.items())
    return [
        _plain(p.first.method),
        _seeds(p),
        _errors(p),
        spread([r.file_bytes for r in p.results], ",.0f"),
        f"{p.ratio:.1f}",
        f"{spread(han, ',.0f')} ({han_ratio:.1f})",
        f"{density:.2f}",
        _plain(switches) or "-",
    ]


def _published_ratios(p: Point) -> list[float | None]:
    return [r.published_ratio for r in p.results]


def _as_published(p: Point) -> str:
    ratios = [ratio for ratio in _published_ratios(p) if ratio is not None]
    how = OWN_ACCOUNTING.get(p.first.method, "its own accounting")
    return f"As its own paper counts, the ratio of {_plain(p.first.method)} is {spread(ratios, '.1f')}: {how}."


def _seeds(p: Point) -> str:
    seeds = ", ".join(str(r.seed) for r in p.results)
    return f"one seed ({seeds})" if len(p.results) == 1 else f"{len(p.results)} ({seeds})"


def _errors(p: Point) -> str:
    before = statistics.fmean(r.error_before for r in p.results)
    return f"{before:.2f} -> {spread([r.error_after for r in p.results], '.2f')}"


def spread(values: Sequence[float], style: str) -> str:
    """Mean and standard deviation of three or more values, mean and range of two, or the one value."""
    mean = format(statistics.fmean(values), style)
    if len(values) == 1:
        return mean
    if len(values) == 2:
        return f"{mean} ({min(values):{style}} to {max(values):{style}})"
    return f"{mean} ± {statistics.stdev(values):{style}}"


def _published_table(rows: Sequence[Published]) -> str:
    columns = ("who", "test error %", "size", "ratio", "non-zero %", "accounting", "note")
    return _table(columns, [_published_row(row) for row in rows])


def _published_row(row: Published) -> list[str]:
    density = "-" if row.nonzero_percent is None else f"{row.nonzero_percent:g}"
    accounting = f"({row.accounting}) {ACCOUNTINGS[row.accounting]}"
    return [
        row.who,
        _published_error(row),
        _published_size(row),
        f"{row.ratio:g}",
        density,
        accounting,
        row.note or "-",
    ]


def _published_error(row: Published) -> str:
    errors = [error for error in (row.error_before, row.error_after) if error is not None]
    return " -> ".join(f"{error:.1f}" if error == round(error, 1) else f"{error:.2f}" for error in errors)


def _published_size(row: Published) -> str:
    if row.kilobytes is None:
        return "-"
    return f"{'~' if row.accounting == 'b' else ''}{row.kilobytes:g} KB"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _plain(name: str) -> str:
    """A name from a result as Markdown: no element of HTML, and no line of its own."""
    return html.escape(printable(name), quote=False)


# The README's part


def render_summary(results: Iterable[Result]) -> str:
    """The README's table: two rows for each network of the paper, the paper's own and our file beside it."""
    rows = []
    for name, group in groupby(points(results), key=lambda p: p.first.experiment):
        paper = next((row for row in published(name) if row.who == PAPER), None)
        ours = [p for p in group if p.first.method not in OWN_ACCOUNTING and not p.augmented]
        if paper and ours:
            rows += [_published_summary(paper), _our_summary(beside(paper, ours))]
    columns = ("network", "who", "test error %", "size", "ratio", "accounting")
    return _table(columns, rows)


def beside(paper: Published, ours: Sequence[Point]) -> Point:
    """Our smallest file with an error of at most `NEAR` above the paper's. If none has, our lowest error."""
    near = [p for p in ours if p.error_after <= paper.error_after + NEAR]
    return min(near, key=lambda p: p.n_bytes) if near else min(ours, key=lambda p: p.error_after)


def _published_summary(row: Published) -> list[str]:
    who = f"{row.who}; {row.note}" if row.note else row.who
    size, accounting = _published_size(row), ACCOUNTINGS[row.accounting]
    return [row.experiment, who, _published_error(row), size, f"{row.ratio:g}", accounting]


def _our_summary(p: Point) -> list[str]:
    who = f"**{_plain(p.label)}**"
    n = len(p.results)
    who += ", one seed" if n == 1 else f", {n} seeds"
    size = f"{spread([r.file_bytes for r in p.results], ',.0f')} bytes"
    return [_plain(p.first.experiment), who, _errors(p), size, f"{p.ratio:.1f}", ACCOUNTINGS["c"]]


def replace_summary(readme: str, summary: str) -> str:
    """The README with the text between its two markers replaced. Without markers it does not change."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and not end:
        raise ConfigError(f"README.md: expected {END} after {BEGIN}, found none; add it where the table ends")
    return f"{before}{BEGIN}\n{summary}\n{END}{after}" if end else readme
