"""A fine-tuned copy of silero-vad: its file alone, and its differences from the network that everyone has.

    python benchmarks/checkpoints/deltas.py silero_vad_16k_op15.onnx

The copy learns to say on noisier sounds what the network says on the plain ones, in some steps of Adam. Each file is
judged by how far its outputs are from those of the copy, on other sounds. Rows are appended to `deltas.csv`.
"""

from __future__ import annotations

import argparse
import copy
import csv
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import silero
import torch
from torch.nn import functional as F

import softshare as ss

HERE = Path(__file__).parent
COLUMNS = ("time", "steps", "kind", "asked", "bytes", "bits", "kl", "kl_of_base", "changed_percent")
ALONE, DELTA = (3, 4, 5, 6), (0.25, 0.5, 1, 2)  # bits a weight


def tuned(base: silero.Silero, steps: int, rate: float = 1e-4) -> silero.Silero:
    """Trained on sounds with more noise, towards the outputs of the base without it."""
    model = copy.deepcopy(base).train()
    sounds = silero.sounds(64, seed=2, seconds=2)
    wanted = silero.outputs(base, sounds).sigmoid()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    g = torch.Generator().manual_seed(0)
    for step in range(steps):
        rows = torch.arange(16) + 16 * (step % 4)
        noise = torch.randn(16, sounds.shape[1], generator=g) * 0.3 * sounds[rows].std(1, keepdim=True)
        loss = F.binary_cross_entropy_with_logits(model(sounds[rows] + noise), wanted[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=HERE / "deltas.csv")
    options = parser.parse_args()
    if not options.path.exists():
        parser.exit(0, f"skipped: there is no {options.path}\n")
    base = silero.load(options.path)
    model = tuned(base, options.steps)
    x = silero.sounds(64, seed=3)
    truth = silero.outputs(model, x)
    before = silero.judged(silero.outputs(base, x), truth)[2]
    pairs = [(t, base.state_dict()[name]) for name, t in model.state_dict().items()]
    moved = sum(float((after - start).square().sum()) for after, start in pairs)
    size = sum(float(start.square().sum()) for _, start in pairs)
    new = not options.out.exists()
    with options.out.open("a", newline="") as file, tempfile.TemporaryDirectory() as folder:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        for kind, rates, of in (("alone", ALONE, None), ("delta", DELTA, base)):
            for bits in rates:
                path, net = Path(folder) / "a.sws", copy.deepcopy(base)
                fitted = ss.quantize(model, bits=bits, base=of)
                n_bytes = fitted.save(path)
                ss.load_into_(net, path, base=of)
                kl = silero.judged(silero.outputs(net, x), truth)[2]
                now = datetime.now(UTC).isoformat(timespec="seconds")
                figures = (n_bytes, f"{fitted.bits_per_weight:.3f}", f"{kl:.5g}", f"{before:.5g}")
                row = (now, options.steps, kind, bits, *figures, f"{100 * (moved / size) ** 0.5:.2f}")
                writer.writerow(row)
                sys.stdout.write("  ".join(f"{k} {v}" for k, v in zip(COLUMNS[1:], row[1:], strict=True)) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
