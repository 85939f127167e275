"""Work on tensors that stay where they are, replayed from a CUDA graph: one launch, however many kernels it has."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch.optim import Optimizer

Out = TypeVar("Out")
WARM_UP = 3  # runs before a capture: libraries must have made their choices and their memory


class Replayed(Generic[Out]):
    """The function itself in the first calls, then its graph. The next call overwrites what a replay returned.

    The function must not synchronise the GPU, and must read and write the same tensors each time.
    """

    def __init__(self, function: Callable[[], Out], stream: torch.cuda.Stream) -> None:
        self._function, self._stream = function, stream
        self._runs = 0
        self._captured: tuple[torch.cuda.CUDAGraph, Out] | None = None

    def __call__(self) -> Out:
        if self._runs < WARM_UP:
            self._runs += 1
            return run_aside(self._function, self._stream)
        if self._captured is None:
            self._captured = capture(self._function, self._stream)
        graph, out = self._captured
        graph.replay()
        return out


def run_aside(function: Callable[[], Out], stream: torch.cuda.Stream) -> Out:
    """Run on another stream, as what will be captured must have been."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = function()
    torch.cuda.current_stream().wait_stream(stream)
    return out


def capture(function: Callable[[], Out], stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, Out]:
    """The graph of what the function launches, and its result, which holds no values before the first replay."""
    graph = torch.cuda.CUDAGraph()
    gc.collect()  # another graph that is collected during the capture would end it
    collects = gc.isenabled()
    gc.disable()
    try:
        # "thread_local": other threads, such as those that load data, may use the GPU meanwhile
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            out = function()
    finally:
        if collects:
            gc.enable()
    return graph, out


def silenced(optimizer: Optimizer) -> Optimizer:
    """The optimizer without torch's warning that it is made for a graph and runs without one, as in the warm-up."""
    optimizer._warned_capturable_if_run_uncaptured = True
    return optimizer
