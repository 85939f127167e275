"""Show what several processes cost, and that they give the result of one; see docs/scale.md.

python benchmarks/distributed.py curves --processes 2     # losses, files, bytes and memory, beside one process
python benchmarks/distributed.py files --processes 4      # the file of a larger network, and each process's memory
python benchmarks/distributed.py kills --times 20         # kill -9 of one process under torchrun's restarts
python benchmarks/distributed.py overhead                 # the distributed path in one process, beside the plain one
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from devices import console
from distributed_kills import kills
from distributed_runs import NETWORKS, STEPS, TAU, larger
from starting import run, torchrun
from torch import nn

import softshare as ss
from softshare.distributed.wrap import shard_
from softshare.train.curvature import Curvature

RUNS = str(Path(__file__).resolve().with_name("distributed_runs.py"))


def curves(processes: int, networks: list[str], sums: str) -> None:
    console.print(
        f"{STEPS} steps, half of them hard; {processes} processes with gloo, one seed; gradients add in {sums}"
    )
    for network in networks:
        alone: dict[str, Any] = {}
        for way in ("one", "ddp", "fsdp"):
            with tempfile.TemporaryDirectory() as folder:
                n = 1 if way == "one" else processes
                command = [sys.executable] if n == 1 else torchrun(n)
                words = [RUNS, network, way, str(processes), sums, folder]
                run([*command, *words])
                found = json.loads(Path(folder, "found.json").read_text())
            alone = alone or found
            apart = max(abs(a - b) for a, b in zip(alone["losses"], found["losses"], strict=True))
            _, trained, encoded = found["MB"]
            console.print(
                f"{network:14} {way:4} x{n}: losses differ by {apart:.1e}, file {found['file']} bytes, error "
                f"{found['error']:.2f}%, {found['bytes per step']} bytes a step (at most {found['allowed']} allowed), "
                f"{found['ms']:.1f} ms a step, peak {trained:.0f} MB in training and {encoded:.0f} MB with encoding"
            )


def files(processes: int) -> None:
    """The memory of each process, and the file, which is compared with that of one process from the same weights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([*torchrun(processes), RUNS, str(folder)])
        for rank in range(processes):
            start, trained, encoded, loaded = json.loads((folder / f"{rank}.json").read_text())
            console.print(
                f"process {rank}: {start:.0f} MB with its shards, peak {trained:.0f} MB in training, {encoded:.0f} MB "
                f"with encoding ({100 * (encoded / trained - 1):+.1f}%), {loaded:.0f} MB once a second one is loaded"
            )
        model = larger(meta=False)
        state, mixture = torch.load(folder / "state.pt")
        model.load_state_dict(state)
        prior = ss.MixturePrior(model, ss.PriorConfig())
        prior.load_state_dict(mixture)
        file, expected = (folder / "model.sws").read_bytes(), prior.quantize(hard=True).to_bytes()
    n = sum(p.numel() for p in model.parameters())
    console.print(f"{n:,} weights, {len(file):,} bytes; one process writes the same bytes: {file == expected}")


def overhead(steps: int, device: str) -> None:
    """Training steps in one process: on plain weights, by DDP, and by FSDP2 on a mesh of one. All take turns.

    A way's overhead is what the prior adds to its step beyond what it adds on plain weights: the cost of DDP and FSDP2
    themselves is not counted.
    """
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    width = 4096 if device == "cuda" else 512
    x = torch.randn(256, width, device=device)

    def steps_of(way: str) -> dict[str, Callable[[], None]]:
        """Steps of one network: without a prior, soft ones, and hard ones."""
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(device)
        model = {"plain": lambda m: m, "ddp": nn.parallel.DistributedDataParallel, "fsdp": shard_}[way](model)
        prior = ss.MixturePrior(model, ss.PriorConfig())
        curvature = Curvature(prior)
        groups = [{"params": model.parameters(), "lr": 1e-5}, *prior.param_groups()]
        optimizer = torch.optim.Adam(groups, foreach=True)

        def step(kind: str) -> None:
            optimizer.zero_grad()
            with ss.hard_step(prior) if kind == "hard" else contextlib.nullcontext():
                model(x).square().mean().backward()
            if kind == "hard":
                curvature.note_()
            if kind != "no prior":
                prior.add_gradients_(TAU, 50_000)
            optimizer.step()

        return {kind: functools.partial(step, kind) for kind in ("no prior", "soft", "hard")}

    made = {(way, kind): step for way in ("plain", "ddp", "fsdp") for kind, step in steps_of(way).items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in made}
    for k in range(steps + 5):
        for key, step in made.items():
            took = _timed(step, device)
            if k >= 5:
                times[key].append(took)
    kind_of_time = "time" if device == "cuda" else "processor time"
    console.print(f"{4 * width * (width + 1):,} weights on {device}, ms of {kind_of_time} a step, {steps} of each")
    for way in ("plain", "ddp", "fsdp"):
        bare = times[way, "no prior"]
        text = f"{way:5} without a prior {statistics.median(bare):.3f}"
        for kind in ("soft", "hard"):
            rounds = zip(times[way, kind], bare, times["plain", kind], times["plain", "no prior"], strict=True)
            over = [(own - without) - (plain - plain_without) for own, without, plain, plain_without in rounds]
            whole = statistics.median(times[way, kind])
            low, middle, high = (100 * statistics.quantiles(over, n=10)[k] / whole for k in (1, 4, 7))
            text += f", {kind} {whole:.3f}"
            if way != "plain":
                text += f" (overhead {middle:+.2f}%, 20th and 80th percentile {low:+.2f} and {high:+.2f}%)"
        console.print(text)
    dist.destroy_process_group()


def _timed(step: Callable[[], None], device: str) -> float:
    """Milliseconds: on a GPU until it is done, on the CPU those that the process had."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    _wait(device)
    start = clock()
    step()
    _wait(device)
    return 1000 * (clock() - start)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("curves", "files", "kills"):
        commands.add_parser(name).add_argument("--processes", type=int, default=2)
    commands.choices["curves"].add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    commands.choices["curves"].add_argument("--sums", choices=("float64", "float32"), default="float64")
    commands.choices["kills"].add_argument("--times", type=int, default=20)
    commands.choices["kills"].add_argument("--seed", type=int, default=0)
    commands.add_parser("overhead").add_argument("--steps", type=int, default=100)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    commands.choices["overhead"].add_argument("--device", choices=("cpu", "cuda"), default=device)
    given = parser.parse_args()
    if given.command == "curves":
        curves(given.processes, given.networks, given.sums)
    elif given.command == "files":
        files(given.processes)
    elif given.command == "kills":
        kills(given.times, given.processes, given.seed)
    else:
        overhead(given.steps, given.device)


if __name__ == "__main__":
    main()
