"""The command line. Each command is a few calls into the package; every error of the user's ends with exit status 2."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence

import typer
from rich.console import Console

from softshare.cli_compress import compress, demo, pretrain
from softshare.cli_files import decompress, evaluate, export, inspect
from softshare.cli_init import init
from softshare.cli_results import report, reproduce, results, verify
from softshare.cli_tune import tune
from softshare.errors import SoftShareError
from softshare.options import with_config_options

app = typer.Typer(
    name="softshare",
    help="Make a trained PyTorch network many times smaller: retrain it under a learned mixture prior over its "
    "weights, merge, quantize and write a file that loads back into a network just as accurate.",
    epilog="Start with: softshare demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

COMMANDS: list[Callable[..., None]] = [  # in the order of --help
    demo,
    init,
    pretrain,
    with_config_options(compress),
    with_config_options(tune),
    inspect,
    decompress,
    evaluate,
    export,
    reproduce,
    verify,
    report,
    results,
]
for command in COMMANDS:
    app.command()(command)


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        app(args=list(argv) if argv is not None else None)
    except SoftShareError as error:
        Console(stderr=True).print(f"softshare: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0
