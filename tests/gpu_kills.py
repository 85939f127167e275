"""Kill runs on a GPU, let them go on, and compare their files with those of a run that was never stopped.

python tests/gpu_kills.py                 # on a GPU: about a minute and a half
python tests/gpu_kills.py --device cpu    # without one: the same, but no captured steps

A task of one's own is compressed with --device. Each run is stopped by SIGTERM, goes on, is stopped by SIGKILL, goes on
and ends. Its files must be those of the whole run, and its result must name the device. Steps are launched one by one,
then replayed from a CUDA graph (capture).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TASK = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import softshare as ss


def make_task():
    torch.manual_seed(0)
    x = torch.randn(4096, 32)
    y = (x[:, :4].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[:3072]), y[:3072]).backward()
        optimizer.step()
    train, held_out = (TensorDataset(x[part], y[part]) for part in (slice(3072), slice(3072, None)))
    batches = DataLoader(train, 128, shuffle=True, drop_last=True)
    return ss.Task.from_loaders(model, batches, DataLoader(held_out, 512), nn.CrossEntropyLoss())
"""
COMPARED = ("model.sws", "retrained.safetensors")
CHECKPOINT = "retraining.run"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="of the runs (default: cuda)")
    parser.add_argument("--steps", type=int, default=2000, help="of each run (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills (default: 0)")
    options = parser.parse_args()
    chance, others = random.Random(options.seed), 0
    say(f"{'steps':10}{'whole':>9}   stopped and gone on with")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "task.py").write_text(TASK)
        for capture in (False, True) if options.device.startswith("cuda") else (False,):
            others += not tried(Path(folder), options.device, options.steps, capture, chance)
    return min(1, others)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tried(folder: Path, device: str, steps: int, capture: bool, chance: random.Random) -> bool:
    """Whether a run that was killed twice left the files of a whole one."""
    name = "captured" if capture else "launched"
    words = f"compress task.py:make_task --no-limit --steps {steps} --device {device} --set capture={capture}".lower()
    words += " --checkpoint-every 0.1 --out"
    start = time.monotonic()
    whole = subprocess.run(command(words, f"{name}-whole"), cwd=folder, capture_output=True, text=True)
    seconds = time.monotonic() - start
    if whole.returncode:
        raise SystemExit(f"{name}: {whole.stdout}{whole.stderr}")
    stops = []
    for number in (signal.SIGTERM, signal.SIGKILL):
        said = stopped(command(words, name, "--resume"), folder, name, number, chance)
        stops.append(f"{number.name} {said}")
    last = subprocess.run(command(words, name, "--resume"), cwd=folder, capture_output=True, text=True)
    if last.returncode:
        raise SystemExit(f"{name}, after {stops}: {last.stdout}{last.stderr}")
    same = all((folder / name / f).read_bytes() == (folder / f"{name}-whole" / f).read_bytes() for f in COMPARED)
    there = json.loads((folder / name / "result.json").read_text())["device"]
    is_there = there != "cpu" if device != "cpu" else there == "cpu"
    say(f"{name:10}{seconds:>7.1f} s   {', '.join(stops)}: {'the same' if same else 'OTHER'} bytes, on {there}")
    return same and is_there


def command(words: str, out: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "softshare", *words.split(), out, *more]


def stopped(words: list[str], folder: Path, out: str, number: signal.Signals, chance: random.Random) -> str:
    """Start the run, and kill it a little after it has written a new checkpoint. How it ended."""
    checkpoint = folder / f".{out}.unfinished" / CHECKPOINT
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    process = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    end = time.monotonic() + 100
    while process.poll() is None and time.monotonic() < end:
        if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
            time.sleep(chance.uniform(0.0, 0.3))
            break
        time.sleep(0.02)
    if process.poll() is None:
        os.killpg(process.pid, number)
    _, said = process.communicate()
    if process.returncode == 0:
        return "came too late"
    if not checkpoint.exists():
        raise SystemExit(f"{out}: {number.name} left no checkpoint: {said}")
    return f"left {checkpoint.stat().st_size:,} bytes"


if __name__ == "__main__":
    sys.exit(main())
