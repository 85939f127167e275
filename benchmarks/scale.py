"""A model of what the prior costs on many GPUs, beside what training by FSDP2 costs in any case; see docs/scale.md.

python benchmarks/scale.py

The speed of the sweep and of a copy are those of one H200 in results.csv. All else is an assumption, and printed.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from devices import console

CASE, N_CASE, COMPONENTS = "138M x 17", 138_000_000, 16
FLOPS = 0.4 * 989e12  # bfloat16 operations a second of an H200, at 40% use
WITHIN, BETWEEN, HOP = 450e9, 50e9, 10e-6  # bytes a second of a GPU in a node of 8, and between nodes; seconds a hop
LAUNCHES = 50e-6  # seconds in which a sweep of one mixture is launched, and as much for its part of a hard step
TOKENS = 8192  # of each GPU in a step
GPU_BYTES = 141e9
# Bytes that pass the memory for each weight of a hard step: weights are quantized and put back, gradients are added up.
HARD_TRAFFIC = (4 + 4 + 4 + 1) + (4 + 4) + (1 + 4)


@dataclass(frozen=True)
class Cost:
    """Of one GPU."""

    held: float  # bytes of weights, gradients and the state of Adam
    added: float  # bytes of the prior, with zeroing, in a hard step
    compute: float  # seconds of forward and backward
    fsdp: float  # seconds of the messages of FSDP2
    sweep: float  # seconds of the prior
    hard: float  # seconds that a hard step takes more
    message: float  # seconds of the prior's messages
    n_bytes: int  # of them

    @property
    def share(self) -> float:
        """Of the prior in a hard step, if FSDP2 hides all it can behind the computation, and the prior nothing."""
        own = self.sweep + self.hard + self.message
        return own / (own + max(self.compute, self.fsdp))


def measured(method: str) -> float:
    """Seconds for a weight of the last H200 in results.csv."""
    with (Path(__file__).parent / "results.csv").open() as file:
        rows = [
            r for r in csv.DictReader(file) if (r["benchmark"], r["case"], r["method"]) == ("mixture", CASE, method)
        ]
    return float(next(r["run_ms"] for r in reversed(rows) if "H200" in r["device"])) / 1000 / N_CASE


def message_bytes(components: int, mixtures: int, hard: bool) -> int:
    """What each process sends in a step: sums of three kinds and the loss; in a hard step the means' gradients too."""
    return 24 * (components + 1) * mixtures + 8 + (8 * components * mixtures if hard else 0)


def cost(n: float, gpus: int, mixtures: int) -> Cost:
    own, sent = n / gpus, message_bytes(COMPONENTS, mixtures, hard=True)
    bandwidth = WITHIN if gpus <= 8 else BETWEEN
    copied = measured("copy, eager") / 8  # seconds for a byte
    return Cost(
        held=16 * own,
        added=(4 + 5) * own,
        compute=6 * n * TOKENS / FLOPS,
        fsdp=3 * 2 * n * (gpus - 1) / gpus / bandwidth,  # two gathers and a sum, in bfloat16
        sweep=max(own * measured("exact, eager"), mixtures * LAUNCHES),
        hard=max(own * HARD_TRAFFIC * copied, mixtures * LAUNCHES),
        message=2 * (2 * math.ceil(math.log2(gpus)) * HOP) + 2 * sent / bandwidth,
        n_bytes=sent,
    )


def main() -> None:
    console.print(
        f"one H200 sweeps a weight under {COMPONENTS + 1} components in {measured('exact, eager') * 1e12:.1f} ps and "
        f"copies it in {measured('copy, eager') * 1e12:.1f} ps (measured)\n"
        f"assumed: {TOKENS} tokens for each GPU in a step, {FLOPS / 1e12:.0f} Tflop/s, {WITHIN / 1e9:.0f} GB/s in a "
        f"node of 8 GPUs, {BETWEEN / 1e9:.0f} GB/s between nodes, {HOP * 1e6:.0f} us a hop, "
        f"{LAUNCHES * 1e6:.0f} us to launch the work on a mixture"
    )
    for n, mixtures in ((1e9, 160), (70e9, 560)):
        for gpus in (8, 64, 1024):
            c = cost(n, gpus, mixtures)
            fits = "" if c.held + c.added < GPU_BYTES else " (does not fit)"
            console.print(
                f"{n / 1e9:.0f} B weights, {mixtures} mixtures, {gpus} GPUs: holds {c.held / 1e9:.2f} GB and "
                f"{c.added / 1e9:.2f} GB for the prior{fits}; computes {c.compute * 1e3:.0f} ms, FSDP2 sends for "
                f"{c.fsdp * 1e3:.0f} ms, sweep {c.sweep * 1e3:.3f} ms, hard {c.hard * 1e3:.3f} ms, messages "
                f"{c.message * 1e3:.3f} ms ({c.n_bytes:,} bytes): {100 * c.share:.2f}% of a hard step"
            )


if __name__ == "__main__":
    main()
