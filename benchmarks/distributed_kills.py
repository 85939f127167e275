"""Runs of `softshare compress` in several processes, of which one is killed: what `distributed.py kills` does."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from devices import console
from starting import environment, torchrun

TASK = """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import softshare
from softshare.zoo.datasets import load_mnist
from softshare.zoo.models import LeNet300100

torch.set_num_threads(1)


def make_task():
    torch.manual_seed(0)
    n, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    model, (train, val, _) = LeNet300100(), load_mnist()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    images, labels = train.images[:6400].flatten(1), train.labels[:6400]
    for step in range(200):
        rows = torch.arange(step * 64, step * 64 + 64) % 6400
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    data = TensorDataset(images, labels)
    loader = DataLoader(data, 64 // n, sampler=DistributedSampler(data, num_replicas=n, rank=rank))
    held_out = DataLoader(TensorDataset(val.images[:1000].flatten(1), val.labels[:1000]), 500)
    return softshare.Task.from_loaders(model, loader, held_out, nn.CrossEntropyLoss())
"""


def kills(times: int, processes: int, seed: int) -> None:
    """Kill one process at a random moment of each run; torchrun starts all again. Compare the files."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        task = Path(root, "net.py")
        task.write_text(TASK)

        def run(name: str, after: float | None) -> tuple[float, bool, bytes]:
            """The seconds it took, whether a process was killed, and the file."""
            out, start = Path(root, name), time.monotonic()
            words = ["--max-restarts", "3", "--monitor-interval", "0.1", "-m", "softshare", "compress"]
            settings = ["--steps", "150", "--no-limit", "--checkpoint-every", "0.5", "--fsdp", "--out", str(out)]
            command = [*torchrun(processes), *words, f"{task}:make_task", *settings]
            with Path(root, "log").open("wb") as log:
                process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log)
            killed = False
            if after is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(after)
                killed = _killed_one(process.pid, draw)
            status = process.wait(600)
            if status:
                console.print(Path(root, "log").read_text()[-3000:])
                raise SystemExit(f"{name} ended with status {status}")
            file = (out / "model.sws").read_bytes()
            shutil.rmtree(out)
            return time.monotonic() - start, killed, file

        seconds, _, expected = run("undisturbed", None)
        console.print(f"undisturbed: {seconds:.0f} s, {len(expected)} bytes")
        n, same = 0, 0
        while n < times:
            after = draw.uniform(0, seconds)
            took, killed, file = run("killed", after)
            if not killed:  # no process was there yet, or all had ended: another moment
                continue
            n, same = n + 1, same + (file == expected)
            console.print(f"{n:2}: killed after {after:4.1f} s, done after {took:3.0f} s, {file == expected}")
        console.print(f"{n} runs, all ended, {same} with the bytes of the undisturbed one")


def _killed_one(parent: int, draw: random.Random) -> bool:
    """SIGKILL to one of the processes that torchrun has started, if any runs."""
    found = Path(f"/proc/{parent}/task/{parent}/children")
    running = [int(child) for child in found.read_text().split() if _is_running(int(child))] if found.exists() else []
    if running:
        os.kill(draw.choice(running), signal.SIGKILL)
    return bool(running)


def _is_running(process: int) -> bool:
    """Whether it has not ended: torchrun asks only now and then."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
