"""What watches or draws a run must not end it: on the command line, its errors are lines on the error stream."""

from __future__ import annotations

from contextlib import AbstractContextManager

from softshare.cli.console import console
from softshare.train import spared as quietly
from softshare.train.hooks import Hook


def spared(what: str, then: str = "The run goes on without it") -> AbstractContextManager[None]:
    """Turn an error in the block into a message."""
    return quietly.spared(what, say, then)


def spared_hook(hook: Hook) -> Hook:
    return quietly.Spared(hook, say)


def say(text: str) -> None:
    console(stderr=True).print(f"softshare: {text}")
