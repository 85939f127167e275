"""Measure time and memory of `softshare quantize` on a transformer's checkpoint, in its own process.

    python benchmarks/bench_datafree.py                        # 20 M weights, 3 bits a weight
    python benchmarks/bench_datafree.py --bits 6 --million 50
    python benchmarks/bench_datafree.py --checkpoint SmolLM2-135M-Instruct.Q4_1.gguf

Without `--checkpoint`, it is made up. It has the shapes of a decoder (embedding tied with the head, attention,
feed-forward, layer norm), and each matrix has normal weights with a log-normal scale for each row and column. Time
covers the whole command, start and compilation included, by the clock and by the processor. Memory is the peak of the
process; the row also has the memory after the start, with torch, numba and the package loaded. The row is appended to
results.csv.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import safetensors.torch
import torch
from record import HERE, Results, RunRow, Timing, cpu_name
from torch import nn

from softshare.network.checkpoint import open_checkpoint

MEASURED = """
import re, sys
from pathlib import Path
import softshare.cli.app, softshare.codec.adaptive.tensor, softshare.codec.planes

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

before = peak()
status = softshare.cli.main(sys.argv[1:])
print("PEAK", before, peak(), file=sys.stderr)
sys.exit(status)
"""


class Decoder(nn.Module):
    """A decoder that gives only its state dict."""

    def __init__(self, million: float, width: int = 512) -> None:
        super().__init__()
        vocabulary = round(million * 1e6 * 0.4 / width)
        n_blocks = max(1, round(million * 1e6 * 0.6 / (12 * width**2)))
        self.embedding = nn.Embedding(vocabulary, width)
        block = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, n_blocks, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def made_up_(self) -> Decoder:
        torch.manual_seed(0)
        with torch.no_grad():
            for p in self.parameters():
                p.normal_(std=0.02)
                if p.dim() == 2:
                    for k in (0, 1):
                        p.mul_(torch.randn(p.shape[k]).mul(0.3).exp().unsqueeze(1 - k))
        return self


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--million", type=float, default=20, help="weights")
    source.add_argument("--checkpoint", type=Path, help="a file of your own")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--bits", default="3")
    target.add_argument("--weight-error")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="CSV file that a row is appended to")
    options = parser.parse_args()
    results = Results[RunRow](options.out)
    aim = ["--weight-error", options.weight_error] if options.weight_error else ["--bits", options.bits]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, file = options.checkpoint or Path(folder) / "model.safetensors", Path(folder) / "model.sws"
        if options.checkpoint is None:
            safetensors.torch.save_model(Decoder(options.million).made_up_(), str(checkpoint))
        command = [sys.executable, "-c", MEASURED, "quantize", str(checkpoint), "--out", str(file), *aim]
        load, start = os.getloadavg()[0], time.perf_counter()
        run = subprocess.run(command, capture_output=True, text=True)
        seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if run.returncode:
            raise SystemExit(run.stderr)
        before, peak = (float(word) for word in run.stderr.rpartition("PEAK ")[2].split())
        mib, sizes = checkpoint.stat().st_size / 2**20, [t.numel() for t in open_checkpoint(checkpoint).kinds.values()]
        n = sum(sizes)
        figures = {
            "bits a weight": 8 * file.stat().st_size / n,
            "s of the processor": used.ru_utime + used.ru_stime,
            "MiB of checkpoint": mib,
            "MiB when started": before,
            "MiB at the peak": peak,
            "MiB of the largest tensor in float32": 4 * max(sizes) / 2**20,
            "checkpoints of rise": (peak - before) / mib,
            "checkpoints at the peak": peak / mib,
            "load before": load,
        }
        note = "; ".join(f"{value:.4g} {name}" for name, value in figures.items())
        row = RunRow(
            benchmark="datafree",
            case=options.checkpoint.stem if options.checkpoint else "transformer",
            n_weights=n,
            method=" ".join(aim),
            device=cpu_name(),
            run=Timing.of([seconds]),
            extra_mib=peak - before,
            note=note,
        )
        results.append(row)
        sys.stdout.write(f"{n} weights, {' '.join(aim)}: {seconds:.1f} s; {note}\n")


if __name__ == "__main__":
    main()
