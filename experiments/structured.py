"""A prior on whole units: how many are left, what that costs, and how much faster the smaller network runs.

LeNet-300-100 and LeNet-5-Caffe are pre-trained, then compressed without the units' prior and with it, at each weight
that `--units` names. The network of each file is shrunk to the units that are left. At the end, all of these dense
networks and the original are timed on the CPU, in turns. Rows go to a table and, with `--out`, to a CSV file.

    PYTHONPATH=src python3 experiments/structured.py --device cuda --out runs/structured.csv
"""

from __future__ import annotations

import argparse
import copy
import csv
import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from softshare import Task, compress
from softshare.codec import decode
from softshare.config import CompressConfig
from softshare.result import final_error
from softshare.simplify.shrink import shrink
from softshare.simplify.speed import costs
from softshare.zoo.experiments import get_experiment, make_task, pretrain_

NAMES = ("lenet-300-100", "lenet-5-caffe")
WEIGHTS = (0.0, 0.3, 1.0, 3.0, 10.0)
HARD_FROM = 0.5  # share of the run: without a hard phase, a short run loses its accuracy in quantizing
BATCH = 256  # the larger of the two that are timed; the other is 1


@dataclass(frozen=True)
class Row:
    """One compressed network. Speed-ups compare its shrunk, dense network with the original, on the CPU."""

    experiment: str
    seed: int
    weight: float  # of the units' prior, relative to that of the weights; 0: without it
    units: str  # left in each layer, the last layer included
    units_before: str
    weights: int  # of the shrunk network
    weights_before: int
    nonzero: int
    file_bytes: int
    error: float  # percent, test, of the shrunk network
    error_before: float
    seconds: float  # of retraining
    device: str  # of training
    threads: int = 0  # of timing
    microseconds_1: float = math.nan  # median of the shrunk network, at a batch of 1
    microseconds_256: float = math.nan
    speedup_1: float = math.nan
    speedup_256: float = math.nan


def main() -> None:
    options = parse()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    start, rows = time.perf_counter(), list[Row]()
    for name in options.experiment:
        task = pretrained(name, options)
        found, networks = list[Row](), [copy.deepcopy(task.model).eval()]
        for weight in options.units:
            row, network = run(task, weight, options)
            found.append(row)
            networks.append(network)
            console.print(f"{time.perf_counter() - start:5.0f} s: {name}, units {weight:g}", style="dim")
        rows += timed(found, networks, next(iter(task.train)).images, options.threads)
        if options.out:
            write(rows, options.out)
    console.print(table(rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="*", default=NAMES, help=f"default: {' and '.join(NAMES)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    parser.add_argument("--epochs", type=int, default=30, help="of compression")
    parser.add_argument("--pretrain-epochs", type=int, help="default: those of the experiment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--units", type=float, nargs="+", default=WEIGHTS, help="weights of the units' prior")
    parser.add_argument("--tau", type=float, help="default: that of the experiment")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU, for timing")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    return parser.parse_args()


def pretrained(name: str, options: argparse.Namespace) -> Task:
    experiment, task = get_experiment(name), make_task(name, options.device, options.seed)
    epochs = options.pretrain_epochs or experiment.pretrain.epochs
    capture = torch.device(options.device).type == "cuda"
    pretrain_(task, dataclasses.replace(experiment.pretrain, epochs=epochs, seed=options.seed, capture=capture))
    return task


def run(task: Task, weight: float, options: argparse.Namespace) -> tuple[Row, nn.Module]:
    """Compress, shrink the decoded network, and measure everything except the speed."""
    config = configured(get_experiment(task.name).compress, options).override(units=weight)
    compressed = compress(task, config, target=None)
    data = compressed.to_bytes()
    small = shrink(task.model, decode(data)).eval()
    original = copy.deepcopy(task.model).eval()
    row = Row(
        experiment=task.name,
        seed=options.seed,
        weight=weight,
        units=units_of(small),
        units_before=units_of(original),
        weights=sum(p.numel() for p in small.parameters()),
        weights_before=sum(p.numel() for p in original.parameters()),
        nonzero=compressed.quantized.n_nonzero,
        file_bytes=len(data),
        error=final_error(task, small),
        error_before=final_error(task, original),
        seconds=sum(record.seconds for record in compressed.history),
        device=torch.cuda.get_device_name() if torch.device(options.device).type == "cuda" else "cpu",
    )
    return row, small


def configured(config: CompressConfig, options: argparse.Namespace) -> CompressConfig:
    capture = torch.device(options.device).type == "cuda"
    config = config.override(epochs=options.epochs, seed=options.seed, hard_from=HARD_FROM, capture=capture)
    return config if options.tau is None else config.override(tau=options.tau)


def units_of(model: nn.Module) -> str:
    return "-".join(str(m.weight.shape[0]) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d))


def timed(
    rows: Sequence[Row],
    networks: Sequence[nn.Module],  # the original, then one for each row
    images: Tensor,  # (n, 1, 28, 28)
    threads: int,
) -> list[Row]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    own = costs([copy.deepcopy(m).cpu() for m in networks], (images[:BATCH].cpu(),))
    torch.set_num_threads(before)
    return [
        dataclasses.replace(
            row,
            threads=threads,
            microseconds_1=1e6 * own[k].seconds_for_one,
            microseconds_256=1e6 * own[k].seconds,
            speedup_1=own[0].seconds_for_one / own[k].seconds_for_one,
            speedup_256=own[0].seconds / own[k].seconds,
        )
        for k, row in enumerate(rows, start=1)
    ]


def table(rows: Sequence[Row]) -> Table:
    out = Table(title="Units under a prior of their own", title_justify="left")
    columns = ("experiment", "weight", "units left", "weights", "non-zero", "file", "error", "x batch 1", "x batch 256")
    for k, column in enumerate(columns):
        out.add_column(column, justify="left" if k == 0 else "right", no_wrap=True)
    name = None
    for row in rows:
        if row.experiment != name:
            name = row.experiment
            before = (row.units_before, f"{row.weights_before:,}", "", f"{4 * row.weights_before:,}")
            out.add_row(name, "before", *before, f"{row.error_before:.2f}", "1.0", "1.0")
        after = (row.units, f"{row.weights:,}", f"{row.nonzero:,}", f"{row.file_bytes:,}", f"{row.error:.2f}")
        out.add_row("", f"{row.weight:g}", *after, f"{row.speedup_1:.1f}", f"{row.speedup_256:.1f}")
    return out


def write(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in dataclasses.fields(Row)])
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)


if __name__ == "__main__":
    main()
