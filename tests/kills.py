"""A process that dies, or a disk that fills, at any call to the file system."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

CALLS = (
    *("open", "write", "pwrite", "truncate", "fsync", "replace", "rename", "unlink"),
    *("rmdir", "mkdir", "chmod", "fchmod"),
)
_KILLED = 77  # exit status of a child that died on purpose


def patch_calls(act: Callable[..., None], patch: Callable[[Any, str, Any], None]) -> None:
    """Call `act` with its name and its arguments before each call to the file system."""
    from softshare._util import swap

    def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            act(name, *args)
            return function(*args, **kwargs)

        return call

    for name in CALLS:
        patch(os, name, wrapped(name, getattr(os, name)))
    patch(swap, "exchange", wrapped("exchange", swap.exchange))


def killed_at(k: int, action: Callable[[], None]) -> bool:
    """Whether a child that runs `action` and dies before its k-th call to the file system got that far."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads, which the child does not use
        child = os.fork()
    if child == 0:
        status = 1
        try:
            calls = itertools.count(1)
            patch_calls(lambda *_: os._exit(_KILLED) if next(calls) == k else None, setattr)
            action()
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, _KILLED)
    return status == _KILLED


def every_kill(action: Callable[[], None]) -> Iterator[int]:
    """Run `action` in a child once for each of its calls, and kill the child there. Yields the number of the call."""
    k = 1
    while killed_at(k, action):
        yield k
        k += 1
    assert k > 5, "the shim has seen no calls"


@contextlib.contextmanager
def full_disk(k: int, lasts: bool) -> Iterator[list[str]]:
    """The disk is full at the k-th call to the file system, or from there on for what needs space. Yields the calls
    that failed.
    """
    calls, failed = itertools.count(1), list[str]()

    def act(name: str, *_: object) -> None:
        now = next(calls)
        if now == k or (lasts and now > k and name in ("open", "write", "pwrite", "fsync", "mkdir")):
            failed.append(name)
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch_calls(act, patch.setattr)
        yield failed
