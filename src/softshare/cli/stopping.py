"""Ctrl-C: one line that says what was kept and how to go on, no traceback, and the exit status of the signal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from signal import SIGINT
from typing import NoReturn

import typer

from softshare.cli.console import console
from softshare.errors import StoppedError

RESUME = "Give the same command with --resume to go on"
AGAIN = "Give the same command again"


@contextlib.contextmanager
def stopping(go_on: str = AGAIN, kept: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Within, a signal ends the command. `kept` says what is left if a run did not keep its own checkpoint.

    If nothing is left there is nothing to go on with, and the command can only be given again.
    """
    try:
        yield
    except StoppedError as stop:
        _end(f"{stop}. {go_on}", stop.signal)
    except KeyboardInterrupt:
        left = kept()
        _end(f"stopped. {left}. {go_on}" if left else f"stopped. Nothing was kept. {AGAIN}", SIGINT)


def _end(text: str, signal: int) -> NoReturn:
    console(stderr=True).print(f"softshare: {text}", soft_wrap=True)
    raise typer.Exit(128 + signal) from None
