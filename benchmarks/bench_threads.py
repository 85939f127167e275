"""Time the codec on one thread against several, on a sparse network: bench_threads.py [--threads 2] [--turns 5].

The shapes are those of VGG-16, 2% of the weights are not zero. The counts of threads take turns, so that both meet the
same machine, and the best turn counts: other programs only ever make one slower. On a busy machine no wall time says
what threads are worth, so with --patience each turn waits for a quiet moment. The note has two figures that other
programs disturb less: the processor time, as weights a second of one core, and how many threads were ready to work on
average: those that ran and those that waited for a processor, by the scheduler's own count (Linux).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cases
import torch
from record import HERE, Results, Row, Timing

from softshare.codec import decode, encode, parallel
from softshare.quantization.description_length import entropy_bits
from softshare.quantization.quantized import QuantizedWeights

IDLE = 0.9  # of the processors, for half a second, before a turn


def processors_idle() -> float:
    """Seconds that all processors together have been idle, on Linux."""
    return int(Path("/proc/stat").read_text().split()[4]) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(patience: float) -> None:
    """Return when the machine has nothing else to do, or when the patience ends."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        before, start = processors_idle(), time.monotonic()
        time.sleep(0.5)
        if processors_idle() - before > IDLE * (os.cpu_count() or 1) * (time.monotonic() - start):
            return


def ready_seconds() -> float:
    """Of this thread: it ran, or it waited for a processor. A thread that waits for another one is not ready."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return (int(ran) + int(waited)) / 1e9


READY: list[float] = []  # seconds that the codec's threads were ready, of each of their tasks


class Watched(ThreadPoolExecutor):
    """The codec's threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def watched() -> Any:
            before = ready_seconds()
            try:
                return fn(*args, **kwargs)
            finally:
                READY.append(ready_seconds() - before)

        return super().submit(watched)


Times = defaultdict[int, list[tuple[float, float, float]]]  # by threads: wall and processor seconds, threads ready


def seconds(function: Callable[[], object]) -> tuple[float, float, float]:
    READY.clear()
    start, processor, own = time.perf_counter(), time.process_time(), ready_seconds()
    function()
    wall = time.perf_counter() - start
    return wall, time.process_time() - processor, (sum(READY) + ready_seconds() - own) / wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--patience", type=float, default=0, help="seconds that a turn waits for a quiet moment")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="CSV file that rows are appended to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parallel.ThreadPoolExecutor = Watched  # type: ignore[attr-defined]
    name = "138M 2.0% structured, VGG-16"
    weights = cases.synthetic(name, cases.VGG16, 0.02, True).make()
    warm_up = QuantizedWeights(weights.shared[:1], {}, {})
    decode(encode(warm_up, threads=1), threads=1)
    data = encode(weights, threads=options.threads)
    back = decode(data, threads=options.threads)
    if not all(torch.equal(a.indices, b.indices) for a, b in zip(weights.shared, back.shared, strict=True)):
        raise SystemExit("the file does not decode to what was coded")
    del back
    encoding, decoding = Times(list), Times(list)
    for _ in range(options.turns):
        for threads in (1, options.threads):
            wait_for_quiet(options.patience)
            encoding[threads].append(seconds(lambda t=threads: encode(weights, threads=t)))  # type: ignore[misc]
            decoding[threads].append(seconds(lambda t=threads: decode(data, threads=t)))  # type: ignore[misc]
    results, order0, n = Results[Row](options.out), entropy_bits(weights) / 8, weights.n_shared
    for threads in (1, options.threads):
        best = [min(wall for wall, _, _ in found[threads]) for found in (encoding, decoding)]
        core = [n / min(processor for _, processor, _ in found[threads]) / 1e6 for found in (encoding, decoding)]
        times = [
            min(wall for wall, _, _ in found[1]) / wall for found, wall in zip((encoding, decoding), best, strict=True)
        ]
        ready = [max(ready for _, _, ready in found[threads]) for found in (encoding, decoding)]
        note = (
            f"best of {options.turns} turns, load {os.getloadavg()[0]:.1f}; {times[0]:.2f} and {times[1]:.2f} times "
            f"one thread; by processor time {core[0]:.0f} and {core[1]:.0f} M/s a core; "
            f"{ready[0]:.2f} and {ready[1]:.2f} threads ready"
        )
        row = Row(
            "codec", name, n, weights.n_nonzero, order0, "adaptive", len(data), threads,
            encode=Timing.of([best[0]]), decode=Timing.of([best[1]]), note=note,
        )  # fmt: skip
        results.append(row)
        sys.stdout.write(f"{threads} threads: {n / best[0] / 1e6:.1f} and {n / best[1] / 1e6:.1f} M/s; {note}\n")


if __name__ == "__main__":
    main()
