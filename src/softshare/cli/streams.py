"""Output that nobody reads any more must not end a run: a closed pipe, a lost terminal, a log on a full disk."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from softshare.errors import ConfigError


class Lasting:
    """A text stream that drops what cannot be written. Of standard output only a closed pipe is dropped: what else
    goes wrong there, such as a full disk below a redirected table, is an error.
    """

    def __init__(self, stream: TextIO, drops: tuple[type[Exception], ...]) -> None:
        self._stream, self._drops = stream, drops

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            with contextlib.suppress(OSError, ValueError):  # so that Python's own flush at the end has a reader
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, self._stream.fileno())
                os.close(nothing)
        except self._drops:
            pass
        except OSError as error:
            raise ConfigError(f"cannot write to standard output: {error.strerror or error}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def lasting_streams() -> Iterator[None]:
    """Make standard output and standard error last until the end of the block."""
    before = sys.stdout, sys.stderr
    drops: tuple[tuple[type[Exception], ...], ...] = ((), (OSError, ValueError))  # ValueError: the stream is closed
    sys.stdout, sys.stderr = (s and Lasting(s, drop) for s, drop in zip(before, drops, strict=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
