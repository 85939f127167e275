"""Several runs of a network side by side: each stops before every operation, and whoever steers does the work.

A run has a thread of its own, but only for the code of the network. One thread runs at a time.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Operation(NamedTuple):
    function: Any  # of torch's `aten`
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Left(BaseException):
    """The run is no longer wanted. No error: code of a user that catches those lets it pass."""


class Running:
    """A call of a function, stopped before its next operation, or at its end."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.output: Any = None
        self.next: Operation | None = None  # None at the end
        self._function = function
        self._failure: BaseException | None = None
        self._reply: Any = None
        self._below: Any = None  # what the dispatcher leaves out below autograd
        self._problem: BaseException | None = None
        self._left = False
        self._go, self._stopped = threading.Lock(), threading.Lock()  # held by whoever waits
        self._go.acquire()
        self._stopped.acquire()
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(self._run,), daemon=True)
        self._thread.start()
        self._wait()

    def do(self, args: tuple[Any, ...] | None = None) -> None:
        """The next operation, with other arguments if given, and go on to the one after it."""
        assert self.next is not None
        try:
            with torch._C._ExcludeDispatchKeyGuard(self._below):  # autograd has done its part within the run
                self._reply = self.next.function(*(self.next.args if args is None else args), **self.next.kwargs)
        except Exception as problem:  # it is the network's own, which may catch it
            self._problem = problem
        self.next = None
        self._wait()

    def leave(self) -> None:
        """Let the call end before its time."""
        if self._thread.is_alive():
            self._left = True
            self._go.release()
            self._thread.join()

    def _wait(self) -> None:
        self._go.release()
        self._stopped.acquire()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        self._go.acquire()
        try:
            with torch.no_grad(), _Relay(self._ask):
                self.output = self._function()
        except Left:
            pass
        except BaseException as problem:
            self._failure = problem
        finally:
            self.next = None
            self._stopped.release()

    def _ask(self, operation: Operation) -> Any:
        self.next, self._below = operation, torch._C._dispatch_tls_local_exclude_set()
        self._stopped.release()
        self._go.acquire()
        if self._left:
            raise Left
        reply, problem = self._reply, self._problem
        self._reply = self._problem = None
        if problem is not None:
            raise problem
        return reply


class _Relay(TorchDispatchMode):
    def __init__(self, ask: Callable[[Operation], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ask = ask

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.ask(Operation(func, args, kwargs or {}))
