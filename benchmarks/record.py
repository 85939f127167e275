"""One CSV row per measurement. Rows are only ever appended; every run has an id of its own."""

from __future__ import annotations

import csv
import dataclasses
import gc
import os
import platform
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

Out = TypeVar("Out")


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


@dataclass(frozen=True)
class Budget:
    """How often to measure: `least` to `most` times within the seconds, but once only where one run takes longer."""

    seconds: float = 1.5
    least: int = 3
    most: int = 15


def timed(function: Callable[[], Out], budget: Budget) -> tuple[Out, Timing]:
    seconds: list[float] = []
    out: list[Out] = []
    gc.collect()
    while not seconds or (
        seconds[0] < budget.seconds
        and (len(seconds) < budget.least or (sum(seconds) < budget.seconds and len(seconds) < budget.most))
    ):
        out.clear()  # the last result must not add to the memory of the next run
        start = time.perf_counter()
        out.append(function())
        seconds.append(time.perf_counter() - start)
    return out[0], Timing.of(seconds)


@dataclass(frozen=True)
class Row:
    """One measurement; the columns are explained in README.md. What was not measured is None: an empty cell."""

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


TIMINGS = ("encode", "decode", "load")
PACKAGES = ("numpy", "numba", "torch", "softshare", "constriction", "zstandard")
COLUMNS = [
    "run_id",
    "date",
    *("benchmark", "case", "n_weights", "n_nonzero", "order0_bytes", "method", "n_bytes", "ratio_to_order0", "threads"),
    *(f"{what}_{figure}" for what in TIMINGS for figure in ("ms", "ms_p20", "ms_p80", "mw_s")),
    *("encode_peak_mib", "decode_peak_mib", "error", "cpu", "cpu_count", "python", *PACKAGES, "note"),
]


class Results:
    """The CSV file of all runs, and the rows of this one."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, list[Row]()
        now = datetime.now(UTC)
        self.run_id = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        self._constant = {"run_id": self.run_id, "cpu": cpu_name(), "cpu_count": os.cpu_count() or 1}
        self._constant |= {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}
        if path.exists() and path.stat().st_size:
            with path.open(newline="") as file:
                header = next(csv.reader(file))
            if header != COLUMNS:
                raise SystemExit(f"{path}: its columns are not those of this version; give another file with --out")

    def append(self, row: Row) -> None:
        self.rows.append(row)
        cells = {f.name: getattr(row, f.name) for f in dataclasses.fields(row) if f.name not in TIMINGS}
        cells["ratio_to_order0"] = row.n_bytes / row.order0_bytes if row.order0_bytes else None
        for what in TIMINGS:
            timing: Timing | None = getattr(row, what)
            if timing is not None:
                cells |= {f"{what}_ms": timing.median, f"{what}_ms_p20": timing.p20, f"{what}_ms_p80": timing.p80}
                cells[f"{what}_mw_s"] = timing.mw_s(row.n_weights)
        cells |= self._constant | {"date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow({name: _plain(value) for name, value in cells.items()})


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
