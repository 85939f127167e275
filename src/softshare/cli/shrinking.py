"""`softshare export --shrunk`: a network without its dead units, and what it costs to run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from softshare.cli.console import console
from softshare.errors import ConfigError

if TYPE_CHECKING:
    from softshare.export import Inputs
    from softshare.simplify.speed import Cost
    from softshare.task import Task

SUFFIXES = (".onnx", ".safetensors")
out = console()


def require_suffix(target: Path) -> None:
    if target.suffix not in SUFFIXES:
        raise ConfigError(f"--shrunk: expected a name that ends in {' or '.join(SUFFIXES)}, got {target}")


def write_shrunk(task: Task, inputs: Inputs, target: Path) -> None:
    """Write the network of the task without its dead units, and print what it costs, beside that of the whole."""
    from softshare.export import export_onnx
    from softshare.network.checkpoint import save_checkpoint
    from softshare.simplify.shrink import shrink
    from softshare.simplify.speed import costs

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small = shrink(task.model, inputs=inputs)
    for message in {str(w.message): None for w in caught if w.category is UserWarning}:
        out.print(message)
    if target.suffix == ".onnx":
        export_onnx(small, inputs, target)
    else:
        save_checkpoint(target, small.state_dict())
    out.print(cost_table(*costs([task.model, small], inputs)))
    out.print(f"Wrote {target}.")


def cost_table(before: Cost, now: Cost) -> Table:
    from softshare.report.figures.speed import milliseconds

    counted = "{:,.0f}".format
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "whole", "shrunk", "times less"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    rows = (
        ("weights", before.n_weights, now.n_weights, counted),
        ("multiply-adds for one example", before.multiply_adds, now.multiply_adds, counted),
        ("ms for one example", before.seconds_for_one, now.seconds_for_one, milliseconds),
        (f"ms for {before.batch_size} examples", before.seconds, now.seconds, milliseconds),
    )
    for name, a, b, said in rows:
        table.add_row(name, said(a), said(b), f"{a / b:.1f}" if b else "-")
    return table
