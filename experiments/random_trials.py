"""Draw settings at random from the ranges of a search (docs/tuning.md): how many runs fail?

LeNet-300-100 is pre-trained once. Each trial compresses it with its own settings, drawn from the seed and the trial's
number. A trial fails if it diverges, if no weight is left, or if the file's network has a validation error above
`--limit`. Rows go to a table and, with `--out`, to a CSV file, which is written after each trial.

    PYTHONPATH=src python3 experiments/random_trials.py --out docs/tuning/random-trials.csv
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import multiprocessing
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from softshare import compress
from softshare.config import Range
from softshare.errors import DivergedError
from softshare.network.checkpoint import load_checkpoint, save_checkpoint
from softshare.result import load_copy
from softshare.tune.space import search_space, with_values
from softshare.zoo.experiments import get_experiment, make_task, pretrain_

NAME = "lenet-300-100"
BASE = get_experiment(NAME).compress


@dataclasses.dataclass(frozen=True)
class Row:
    trial: int
    failed: bool
    validation_error: float  # percent; NaN if it diverged
    file_bytes: int
    nonzero: int
    seconds: float
    settings: dict[str, float]


def main() -> None:
    options = parse()
    console, rows = Console(highlight=False), list[Row]()
    for row in run_all(options):
        rows = sorted([*rows, row], key=lambda r: r.trial)
        outcome = "failed" if row.failed else "fine"
        console.print(
            f"trial {row.trial}: {row.validation_error:.2f}%, {row.file_bytes:,} bytes: {outcome}", style="dim"
        )
        if options.out:
            write(rows, options.out)
    console.print(table(rows))
    console.print(f"{sum(row.failed for row in rows)} of {len(rows)} failed.")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=5.0, help="percent of validation error")
    parser.add_argument("--pretrain-epochs", type=int, help="default: those of the experiment")
    parser.add_argument("--most-epochs", type=int, help="most epochs of a trial, for a short test")
    parser.add_argument("--processes", type=int, default=2, help="trials at a time, one thread each")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    return parser.parse_args()


def draw(trial: int, seed: int) -> dict[str, float]:
    chance = random.Random(f"{seed} {trial}")
    return {name: between(range, chance.random()) for name, range in search_space(BASE).items()}


def between(range: Range, share: float) -> float:
    low, high = (math.log(range.low), math.log(range.high)) if range.log else (range.low, range.high)
    value = low + share * (high - low)
    value = math.exp(value) if range.log else value
    return round(value) if isinstance(range.low, int) and isinstance(range.high, int) else value


def run_all(options: argparse.Namespace) -> Iterator[Row]:
    """The row of each trial, in the order in which they end."""
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder) / "pretrained.safetensors"
        task, schedule = make_task(NAME), get_experiment(NAME).pretrain
        pretrain_(task, dataclasses.replace(schedule, epochs=options.pretrain_epochs or schedule.epochs))
        save_checkpoint(start, task.model.state_dict())
        fresh = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        with ProcessPoolExecutor(options.processes, fresh, torch.set_num_threads, (1,)) as pool:
            jobs: list[Future[Row]] = [pool.submit(run, trial, start, options) for trial in range(options.trials)]
            for job in as_completed(jobs):
                yield job.result()


def run(trial: int, start: Path, options: argparse.Namespace) -> Row:
    began, settings, task = time.perf_counter(), draw(trial, options.seed), make_task(NAME)
    task.model.load_state_dict(load_checkpoint(start))
    config = with_values(BASE, settings)
    epochs = config.retrain.epochs or 1
    config = config.override(epochs=min(epochs, options.most_epochs or epochs))
    try:
        compressed = compress(task, config, target=None)
    except DivergedError:
        return Row(trial, True, math.nan, 0, 0, time.perf_counter() - began, settings)
    error, nonzero = task.judge(load_copy(task.model, compressed.state_dict())), compressed.quantized.n_nonzero
    failed = not nonzero or error > options.limit
    size, seconds = len(compressed.to_bytes()), time.perf_counter() - began
    return Row(trial, failed, error, size, nonzero, seconds, settings)


def table(rows: Sequence[Row]) -> Table:
    out = Table(title=f"{NAME}, settings drawn at random", title_justify="left")
    for column in ("trial", "validation error %", "bytes", "non-zero", ""):
        out.add_column(column, justify="right")
    for row in rows:
        figures = f"{row.validation_error:.2f}", f"{row.file_bytes:,}", f"{row.nonzero:,}"
        out.add_row(str(row.trial), *figures, "failed" if row.failed else "")
    return out


def write(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        figures = [f.name for f in dataclasses.fields(Row) if f.name != "settings"]
        writer.writerow([*figures, *rows[0].settings])
        for row in rows:
            values = [getattr(row, name) for name in figures] + list(row.settings.values())
            writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in values])


if __name__ == "__main__":
    main()
