"""Compressing from the command line without a task: weights as they are, without data."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from softshare import tables
from softshare.codec import inspect as inspect_file
from softshare.config import EncodeConfig
from softshare.datafree import ERROR, compress_weights
from softshare.errors import ConfigError
from softshare.files import require_writable
from softshare.runs import made_folder
from softshare.zoo.experiments import EXPERIMENTS

out = Console(markup=False)


def require_no_task_options(overrides: Iterable[str], **others: object) -> None:
    """Of the others, None or False stands for one that was not given."""
    of_file = {"rules", *(f.name for f in dataclasses.fields(EncodeConfig))}
    names = [name for name in overrides if name not in of_file]
    names += [name for name, value in others.items() if value is not None and value is not False]
    if names:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise ConfigError(f"{flags}: without a task nothing is trained; leave the option out or give a task")


def compress_without_task(
    weights: Path | None,
    file: Path | None,
    bits: float | None,
    weight_error: float | None,
    overrides: dict[str, Any],
    overwrite: bool,
) -> None:
    """Fit a file to a checkpoint's weights and show it."""
    if weights is None:
        raise ConfigError(
            f"expected a task ({', '.join(EXPERIMENTS)} or FILE.py:make_task), or --weights to compress without one"
        )
    file = file or weights.with_suffix(".sws")
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; without a task, expected by --out the name of a file")
    if file.exists() and not overwrite:
        raise ConfigError(f"{file} exists already; give --overwrite or another --out")
    start = time.perf_counter()
    rules = overrides.pop("rules", ())
    with made_folder(file.parent):
        require_writable(file.parent)
        fitted = compress_weights(
            weights, bits=bits, weight_error=weight_error, rules=rules, config=EncodeConfig(**overrides)
        )
        fitted.save(file)
    out.print(tables.file_table(inspect_file(file), str(file)))
    worst = max(fitted.errors, key=lambda name: fitted.errors[name])
    total = math.sqrt(sum(error**2 for error in fitted.errors.values()) / len(fitted.errors))
    if bits is None and weight_error is None:
        out.print(
            f"by default, an error of up to {100 * ERROR:g}% was allowed; --bits or --weight-error set another goal"
        )
    out.print(
        f"error of the weights, relative to each tensor: {100 * total:.2f}% (root mean square), at most "
        f"{100 * fitted.errors[worst]:.2f}%, in {worst}; {time.perf_counter() - start:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
