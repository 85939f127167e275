"""The command line: the list of commands. Each command imports what it needs when it is called.

An error that a user can cause ends in a message and exit status 2.
"""

from __future__ import annotations

import functools
import io
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

import softshare
from softshare._util.user_code import failed, user_frames
from softshare.cli.checkpoints import quantize
from softshare.cli.console import console
from softshare.cli.decompressing import decompress
from softshare.cli.options import with_config_options, with_file_options
from softshare.cli.reading import evaluate, export, inspect
from softshare.cli.records import report, reproduce, results, verify
from softshare.cli.searching import tune
from softshare.cli.settings import config
from softshare.cli.start import init
from softshare.cli.stopping import interrupts, stopping
from softshare.cli.streams import lasting_streams
from softshare.cli.training import compress, demo, pretrain
from softshare.errors import SoftShareError, TaskError

MOST_CHARACTERS = 4000  # of a message, which may list the names of a file


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values(super().get_params(ctx))


class _Commands(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values(super().get_params(ctx))


def _without_values(parameters: list[Any]) -> list[Any]:
    """A flag takes no value, so its help must not show one, as in `--overwrite <bool>`."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


app = typer.Typer(
    name="softshare",
    cls=_Commands,
    help="Compress a trained PyTorch network to a file that is many times smaller and loads back. The network is "
    "retrained under a mixture prior that is learned over its weights, then quantized and encoded.",
    epilog="Start with: softshare demo",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

COMMANDS: list[Callable[..., None]] = [  # in the order of --help
    demo,
    init,
    with_config_options(compress),
    with_file_options(quantize),
    with_config_options(tune),
    config,
    pretrain,
    inspect,
    decompress,
    evaluate,
    export,
    report,
    verify,
    reproduce,
    results,
]


def _own_status(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with an exit status of its own: a task that calls `sys.exit` must not set it.

    A command ends by `typer.Exit` or by an error, so a SystemExit or an odd exception comes from the code of a user.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with stopping(), interrupts():  # commands that keep something say what
                command(*args, **kwargs)
        except Exception:
            raise
        except BaseException as problem:
            raise failed("the task", problem) from problem

    return run


for command in COMMANDS:
    app.command(cls=_Command)(_own_status(command))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"softshare {softshare.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a name that the terminal cannot show must not end the program
    words = sys.argv[1:] if argv is None else list(argv)
    with lasting_streams():
        try:
            app(args=words, obj=shlex.join(["softshare", *words]))  # a run records its command
        except SoftShareError as error:
            text = "\n".join([f"softshare: {_message(error)}", *getattr(error, "__notes__", ())])
            console(stderr=True).print(text, style="red")
            if isinstance(error, TaskError) and error.__cause__ and (frames := user_frames(error.__cause__)):
                console(stderr=True).print(Text(f"Your own code, most recent call last:\n{frames}"))
            return 2
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def _message(error: SoftShareError) -> str:
    """The text of an error. Its own further lines are indented; another new line comes from a name."""
    text = re.sub(r"\n(?!  )", r"\\n", str(error))
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
