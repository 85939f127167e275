"""Ctrl-C and SIGTERM: one line that says what was kept and how to go on, and the exit status of the signal."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from signal import SIGINT
from types import FrameType
from typing import NoReturn

import typer

from softshare._util.signals import USUAL, end_fork
from softshare._util.words import AGAIN, STOPPED
from softshare.cli.console import console
from softshare.errors import StoppedError

RESUME = "Give the same command with --resume to go on"
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
    except KeyboardInterrupt as stop:
        _end(f"stopped. {said}" if (said := kept()) else STOPPED, stop.number if isinstance(stop, _Heard) else SIGINT)


class _Heard(KeyboardInterrupt):
    """A signal that came at any time, with its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Within, SIGTERM is heard as Ctrl-C is, and an error after either is that signal.

    One in the middle of an import can become any other exception.
    """
    heard: list[int] = []
    process = os.getpid()

    def hear(number: int, frame: FrameType | None) -> NoReturn:
        end_fork(number, process)
        heard.append(number)
        raise _Heard(number)

    is_main = threading.current_thread() is threading.main_thread()
    listens = [number for number, usual in USUAL.items() if is_main and signal.getsignal(number) is usual]
    try:
        for number in listens:
            signal.signal(number, hear)
        yield
    except typer.Exit:
        raise
    except Exception as problem:
        if heard:
            raise _Heard(heard[0]) from problem
        raise
    finally:
        for number in listens:
            signal.signal(number, USUAL[number])


def _end(text: str, number: int) -> NoReturn:
    log = console(stderr=True)
    if number == SIGINT and log.cuts:
        log.print()  # a terminal has written ^C to this line
    log.print(f"softshare: {text}")
    raise typer.Exit(128 + number) from None
