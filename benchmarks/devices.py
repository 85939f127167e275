"""The device that is measured: its name, its memory and its clock."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from record import HERE, Budget, Timing, cpu_name, timed
from rich.console import Console

Run = Callable[[], object]
FLUSH_BYTES = 2**28  # more than the cache of any GPU
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140)


def skipped(case: str, what: str, reason: object) -> None:
    console.print(f"{case}: {what} skipped: {reason}", style="yellow", markup=False)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="CSV file that rows are appended to")
    return parser


def pick(name: str) -> torch.device:
    device = torch.device(name)
    if device.type not in ("cpu", "cuda"):
        raise SystemExit(f"--device: expected cuda or cpu, got {name}")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("--device cuda: this machine has no CUDA GPU, or this torch cannot use it")
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    return device


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def threads_of(device: torch.device) -> int | None:
    return torch.get_num_threads() if device.type == "cpu" else None


def free_bytes(device: torch.device) -> int | None:
    """Free memory of the device; None if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), None)


def release(device: torch.device) -> None:
    """Return what the allocator holds, so that the next method finds an empty device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def allocated(device: torch.device) -> int:
    """Bytes of tensors now. This also resets the peak."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def peak_mib(device: torch.device, before: int) -> float | None:
    """The peak of tensors since `allocated`, above what was there then; None on a CPU, which does not count them."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def clock(run: Run, device: torch.device, budget: Budget, queued: bool = False) -> Timing:
    """Wall time on a CPU. On a GPU, the time between two events, with nothing of the last run left in its cache.

    A GPU is idle when a run is launched, so launching counts if it takes longer than the kernels. With `queued`, the
    GPU is still busy with clearing its cache, so one launch (of a graph) does not count.
    """
    if device.type == "cpu":
        return timed(run, budget)[1]
    clutter = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < budget.least or (time.perf_counter() - begin < budget.seconds and len(seconds) < budget.most):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        clutter.zero_()
        if not queued:
            torch.cuda.synchronize(device)
        start.record()
        run()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return Timing.of(seconds)


def captured(run: Run) -> Run:
    """The same kernels, replayed from a CUDA graph. `run` must have run before: compiling cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
