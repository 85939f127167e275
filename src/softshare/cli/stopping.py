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
AGAIN_TO_GO_ON = f"{AGAIN} to go on"


@contextlib.contextmanager
def stopping(go_on: str = AGAIN, kept: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Within, a signal ends the command. A run that keeps a checkpoint says so itself, and `go_on` says what to do.

    Otherwise `kept` says both: what is left, and what to do. It is empty if nothing is left.
    """
    try:
        yield
    except StoppedError as stop:
        _end(f"{stop}. {go_on}", stop.signal)
    except KeyboardInterrupt:
        _end(f"stopped. {kept() or f'Nothing new was kept. {AGAIN}'}", SIGINT)


def _end(text: str, signal: int) -> NoReturn:
    console(stderr=True).print(f"softshare: {text}", soft_wrap=True)
    raise typer.Exit(128 + signal) from None
