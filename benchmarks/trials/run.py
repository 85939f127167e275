"""Compress the hand-made tasks, each in a process of its own, and append a row for each to a CSV file.

python benchmarks/trials/run.py --tasks tiny,lstm --seeds 0,1,2 --jobs 2 --sweep tau=0.01,0.03 --out trials.csv
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import tasks
import torch

import softshare
from softshare.config.text import parse
from softshare.result import load_copy
from softshare.verdict import verdict

# Of the printed table. The CSV file has more.
COLUMNS = [
    "task", "seed", "settings", "metric", "val.before", "val.after", "test.before", "test.after",
    "weights", "nonzero", "bytes", "ratio", "s", "fate", "outcome",
]  # fmt: skip
LONGEST = 80  # letters of an outcome in the table


@dataclass(frozen=True)
class Job:
    task: str
    seed: int
    target: str  # none, default or increase:X
    settings: dict[str, str]  # as text

    @property
    def told(self) -> str:
        """What sets this job apart from one with the default settings."""
        return " ".join(f"{name}={value}" for name, value in {"target": self.target, **self.settings}.items())


@dataclass(frozen=True)
class Row:
    task: str
    seed: int
    settings: str
    metric: str = ""
    validation_before: float | None = None
    validation_after: float | None = None
    test_before: float | None = None
    test_after: float | None = None
    n_weights: int | None = None
    n_nonzero: int | None = None
    file_bytes: int | None = None
    ratio: float | None = None
    seconds: float | None = None  # of the whole call of compress
    fate: str = ""  # of the network, by all that was measured: kept or lost
    outcome: str = ""  # of the target on validation data, or the text of an exception
    messages: str = ""
    validation_noise: float | None = None  # one standard error of `validation_before`
    test_noise: float | None = None
    torch: str = ""
    commit: str = ""  # of the code; empty if it is not known

    def cells(self) -> list[str]:
        numbers = (self.validation_before, self.validation_after, self.test_before, self.test_after)
        measured = ["-" if n is None else f"{n:.4g}" for n in numbers]
        nonzero = (
            f"{100 * self.n_nonzero / self.n_weights:.1f}%" if self.n_weights and self.n_nonzero is not None else "-"
        )
        counts = ["-" if n is None else f"{n:,}" for n in (self.n_weights, self.file_bytes)]
        ratio, seconds = ("-" if n is None else f"{n:.1f}" for n in (self.ratio, self.seconds))
        names = [self.task, str(self.seed), self.settings, self.metric]
        return [
            *names,
            *measured,
            counts[0],
            nonzero,
            counts[1],
            ratio,
            seconds,
            self.fate,
            self.outcome[:LONGEST].partition("\n")[0],
        ]


def compress(job: Job) -> Row:
    """Runs in a process of its own."""
    torch.set_num_threads(1)
    try:
        return measured(job)
    except Exception as problem:
        sys.stderr.write(traceback.format_exc())
        return Row(job.task, job.seed, job.told, outcome=f"{type(problem).__name__}: {problem}")


def measured(job: Job) -> Row:
    task = tasks.TASKS[job.task](job.seed)
    values = {name: parse(name, text) for name, text in job.settings.items()}
    config = softshare.CompressConfig().override(**{"seed": job.seed, **values})
    start = time.perf_counter()
    if job.target == "default":
        compressed = softshare.compress(task, config)
    else:
        limit = None if job.target == "none" else softshare.MaxErrorIncrease(float(job.target.partition(":")[2]))
        compressed = softshare.compress(task, config, target=limit)
    seconds = time.perf_counter() - start
    result = softshare.measure(task, compressed, config)
    return Row(
        task=job.task,
        seed=job.seed,
        settings=job.told,
        metric=task.metric.name,
        validation_before=task.judge(task.model),
        validation_after=task.judge(load_copy(task.model, compressed.state_dict())),
        test_before=result.error_before,
        test_after=result.error_after,
        n_weights=result.n_weights,
        n_nonzero=result.n_nonzero,
        file_bytes=result.file_bytes,
        ratio=result.ratio,
        seconds=seconds,
        fate=verdict(result).fate,
        outcome=str(compressed.outcome or ""),
        messages=" | ".join(compressed.messages),
        validation_noise=compressed.outcome.noise if compressed.outcome else None,
        test_noise=result.noise,
        torch=torch.__version__,
        commit=commit(),
    )


def commit() -> str:
    """Of this clone, with a plus if files differ from it."""
    try:
        said = [
            "git",
            "-C",
            str(Path(__file__).parent),
            "describe",
            "--always",
            "--exclude=*",
            "--abbrev=9",
            "--dirty=+",
        ]
        return subprocess.run(said, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def spawned(job: Job) -> Row:
    """A process that is killed costs only its own job."""
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            return process.submit(compress, job).result()
    except Exception as problem:
        return Row(job.task, job.seed, job.told, outcome=f"{type(problem).__name__}: {problem}")


def append(path: Path, row: Row) -> None:
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(asdict(row))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(rows: list[Row]) -> str:
    lines = [COLUMNS, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text_columns = {0, 2, 3, len(COLUMNS) - 2, len(COLUMNS) - 1}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def jobs_of(options: argparse.Namespace) -> list[Job]:
    names = list(tasks.TASKS) if options.tasks == "all" else options.tasks.split(",")
    if unknown := [name for name in names if name not in tasks.TASKS]:
        raise SystemExit(f"--tasks: expected some of {', '.join(tasks.TASKS)}, got {', '.join(unknown)}")
    if options.target not in ("none", "default") and not options.target.startswith("increase:"):
        raise SystemExit(f"--target: expected none, default or increase:NUMBER, got {options.target}")
    fixed = dict(text.split("=", 1) for text in options.set)
    axes = [(name, values.split(",")) for name, values in (text.split("=", 1) for text in options.sweep)]
    grid = [dict(zip([n for n, _ in axes], v, strict=True)) for v in itertools.product(*(v for _, v in axes))]
    for name, text in (item for point in grid for item in {**fixed, **point}.items()):
        parse(name, text)  # a wrong setting ends here
    seeds = [int(seed) for seed in options.seeds.split(",")]
    return [
        Job(name, seed, options.target, {**fixed, **point})
        for name, seed, point in itertools.product(names, seeds, grid)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="all", help="names with commas between them (default: all)")
    parser.add_argument("--seeds", default="0", help="whole numbers with commas between them (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, of one thread each (default: 1)")
    parser.add_argument("--target", default="default", help="none, default or increase:NUMBER (default: default)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting for all jobs")
    parser.add_argument("--sweep", action="append", default=[], metavar="NAME=A,B,...", help="try each of these values")
    parser.add_argument("--out", type=Path, default=Path("build/trials.csv"), help="CSV file to append to")
    options = parser.parse_args()
    jobs = jobs_of(options)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: dict[int, Row] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(spawned, job): i for i, job in enumerate(jobs)}
        for done in as_completed(waiting):
            rows[waiting[done]] = row = done.result()
            append(options.out, row)
            say(f"{len(rows)}/{len(jobs)}  {'  '.join(row.cells())}")
    say("\n" + table([rows[i] for i in range(len(jobs))]))


if __name__ == "__main__":
    main()
