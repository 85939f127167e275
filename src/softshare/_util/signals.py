"""SIGINT and SIGTERM: who handles them in a fresh Python, and what they mean in a process that was forked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from signal import SIG_DFL, SIGINT, SIGTERM, Handlers, Signals, default_int_handler
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | Handlers | None

# nohup, or a program around this one, has set others.
USUAL: dict[Signals, Handler] = {SIGINT: default_int_handler, SIGTERM: SIG_DFL}


def end_fork(number: int, process: int) -> None:
    """Let SIGTERM end a fork of the process, which has its handlers: a pool ends its own processes that way."""
    if number == SIGTERM and os.getpid() != process:
        signal.signal(number, SIG_DFL)
        os.kill(os.getpid(), number)
