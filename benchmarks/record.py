"""Record measurements, one CSV row each. Rows are only ever appended, and every run has its own id.

`record.py --merge FILE` appends the rows of another file of the same columns, measured on another machine.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gc
import os
import platform
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Generic, TypeVar

Out = TypeVar("Out")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Timing:
    """Milliseconds of repeated runs."""

    median: float
    p20: float
    p80: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        cuts = statistics.quantiles(seconds, n=5, method="inclusive") if len(seconds) > 1 else seconds * 4
        return cls(1e3 * statistics.median(seconds), 1e3 * cuts[0], 1e3 * cuts[-1])

    def mw_s(self, n_weights: int) -> float:
        return n_weights / self.median / 1e3

    def cells(self, what: str) -> dict[str, object]:
        return {f"{what}_ms": self.median, f"{what}_ms_p20": self.p20, f"{what}_ms_p80": self.p80}


@dataclass(frozen=True)
class Budget:
    """How often to measure: `least` to `most` times within the seconds, but only once if one run takes longer."""

    seconds: float = 1.5
    least: int = 3
    most: int = 15


def timed(
    function: Callable[[], Out], budget: Budget, clock: Callable[[], float] = time.perf_counter
) -> tuple[Out, Timing]:
    seconds: list[float] = []
    out: list[Out] = []
    gc.collect()
    while not seconds or (
        seconds[0] < budget.seconds
        and (len(seconds) < budget.least or (sum(seconds) < budget.seconds and len(seconds) < budget.most))
    ):
        out.clear()  # the previous result must not add to the memory of the next run
        start = clock()
        out.append(function())
        seconds.append(clock() - start)
    return out[0], Timing.of(seconds)


@dataclass(frozen=True)
class Row:
    """One measurement of a codec; README.md explains the columns. None was not measured and is an empty cell."""

    benchmark: str
    case: str
    n_weights: int
    n_nonzero: int
    order0_bytes: float
    method: str
    n_bytes: float
    threads: int = 1
    encode: Timing | None = None
    decode: Timing | None = None
    load: Timing | None = None
    encode_peak_mib: float | None = None
    decode_peak_mib: float | None = None
    error: float | None = None
    note: str = ""

    def cells(self) -> dict[str, object]:
        cells = _fields(self, TIMINGS)
        cells["ratio_to_order0"] = self.n_bytes / self.order0_bytes if self.order0_bytes else None
        for what in TIMINGS:
            timing: Timing | None = getattr(self, what)
            if timing is not None:
                cells |= timing.cells(what) | {f"{what}_mw_s": timing.mw_s(self.n_weights)}
        return cells


@dataclass(frozen=True)
class RunRow:
    """One measurement of the prior, of a training step or of a command."""

    benchmark: str
    case: str
    n_weights: int
    method: str
    device: str
    run: Timing
    threads: int | None = None
    components: int | None = None
    extra_mib: float | None = None
    ratio_to_plain: float | None = None
    ratio_to_copy: float | None = None
    overhead_percent: float | None = None
    score_error: float | None = None
    loss_error: float | None = None
    note: str = ""

    def cells(self) -> dict[str, object]:
        return _fields(self, ("run",)) | self.run.cells("run")


AnyRow = TypeVar("AnyRow", Row, RunRow)
RUN_ID = "SOFTSHARE_RUN_ID"  # in the environment: the id of a run that several scripts share
TIMINGS = ("encode", "decode", "load")
PACKAGES = ("numpy", "numba", "torch", "softshare", "constriction", "zstandard")
COLUMNS = [
    "run_id",
    "date",
    *("benchmark", "case", "n_weights", "n_nonzero", "order0_bytes", "method", "n_bytes", "ratio_to_order0", "threads"),
    *(f"{what}_{figure}" for what in TIMINGS for figure in ("ms", "ms_p20", "ms_p80", "mw_s")),
    *("encode_peak_mib", "decode_peak_mib", "error", "cpu", "cpu_count", "python", *PACKAGES, "note"),
    *("device", "triton", "components", "run_ms", "run_ms_p20", "run_ms_p80", "extra_mib"),
    *("ratio_to_plain", "ratio_to_copy", "overhead_percent", "score_error", "loss_error"),
]


class Results(Generic[AnyRow]):
    """The CSV file of all runs, and the rows of this one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[AnyRow] = []
        self.run_id = os.environ.get(RUN_ID) or new_run_id()
        self._constant: dict[str, object] = {"run_id": self.run_id, "cpu": cpu_name(), "cpu_count": os.cpu_count() or 1}
        self._constant |= {"python": platform.python_version()}
        self._constant |= {name: _version(name) for name in (*PACKAGES, "triton")}
        _check_columns(path)

    def append(self, row: AnyRow) -> None:
        self.rows.append(row)
        _write(self.path, [row.cells() | self._constant | {"date": datetime.now(UTC).isoformat(timespec="seconds")}])


def new_run_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def merge(source: Path, target: Path) -> int:
    """Append the rows of `source` to `target`, once. Returns their number."""
    _check_columns(target)
    new, old = _read(source), _read(target) if target.exists() else []
    both = {row["run_id"] for row in new} & {row["run_id"] for row in old}
    if both:
        raise SystemExit(f"{target} has rows of these runs already: {', '.join(sorted(both))}; nothing was merged")
    _write(target, new)
    return len(new)


def _fields(row: Row | RunRow, without: Sequence[str]) -> dict[str, object]:
    return {f.name: getattr(row, f.name) for f in dataclasses.fields(row) if f.name not in without}


def _check_columns(path: Path) -> None:
    if path.exists() and path.stat().st_size:
        with path.open(newline="") as file:
            header = next(csv.reader(file))
        if header != COLUMNS:
            raise SystemExit(f"{path}: its columns differ from those of this version; give another file with --out")


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        raise SystemExit(f"{path}: expected a CSV file of rows, found none")
    _check_columns(path)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)


def _plain(value: object) -> object:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) and value < 1e5 else value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--merge", type=Path, required=True, metavar="FILE", help="CSV file whose rows are appended")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="CSV file that they are appended to")
    options = parser.parse_args()
    sys.stdout.write(f"{merge(options.merge, options.out)} rows appended to {options.out}\n")


if __name__ == "__main__":
    main()
