"""Tensors in several threads, and the parts of one tensor."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

THREADS_FROM = 1 << 20  # weights; with fewer, threads are not worth it
MOST_THREADS = 8  # unless the caller says otherwise; each thread holds a tensor

Run = Callable[[Callable[[Any], None], Iterable[Any]], None]  # calls a function for each item, maybe in threads
In = TypeVar("In")
Out = TypeVar("Out")


def one_by_one(function: Callable[[Any], None], items: Iterable[Any]) -> None:
    """A `Run` in the caller's thread."""
    for item in items:
        function(item)


def in_pool(pool: ThreadPoolExecutor) -> Run:
    """A `Run` in the threads of a pool, whose own tasks must not use it."""

    def run(function: Callable[[Any], None], items: Iterable[Any]) -> None:
        for _ in pool.map(function, items):
            pass

    return run


def in_order(function: Callable[[In], Out], items: Iterable[In], n_weights: int, threads: int | None) -> Iterator[Out]:
    """`map`, in threads if there are many weights. No more results wait than there are threads."""
    threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
    if threads == 1 or n_weights < THREADS_FROM:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Out]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) == threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextlib.contextmanager
def parts_in_threads(n_weights: int, threads: int | None) -> Iterator[Run]:
    """For the parts of one tensor: threads of their own, because those of `in_order` wait for them."""
    threads = threads or min(MOST_THREADS, os.cpu_count() or 1)
    if threads == 1 or n_weights < THREADS_FROM:
        yield one_by_one
        return
    with ThreadPoolExecutor(threads) as pool:
        yield in_pool(pool)
