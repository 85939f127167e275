"""Output that nobody reads any more."""

from __future__ import annotations

import errno
import io
import os
import sys

import pytest

from softshare.cli.console import console
from softshare.cli.streams import lasting_streams
from softshare.errors import ConfigError


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def closed_pipe() -> io.TextIOWrapper:
    read, write = os.pipe()
    os.close(read)
    return open(write, "w", buffering=1)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_closed_pipe_is_dropped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = closed_pipe()
    monkeypatch.setattr(sys, name, pipe)
    with lasting_streams():
        for _ in range(3):
            console(stderr=name == "stderr").print("one line")
            print("another", file=getattr(sys, name), flush=True)
    assert getattr(sys, name) is pipe
    pipe.close()  # what Python does at its end: no error remains


def test_a_full_disk_below_standard_output_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Full())
    with lasting_streams(), pytest.raises(ConfigError, match="cannot write to standard output: No space left"):
        console().print("a table")


def test_standard_error_may_be_full_or_closed_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (Full(), closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with lasting_streams():
            console(stderr=True).print("one line")
        assert sys.stderr is stream
