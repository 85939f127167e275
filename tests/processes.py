"""Runs a function in several processes of one gloo group, each with one thread, and returns what each of them does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from paths import ROOT

SECONDS = 300


def run_together(function: str, n: int, folder: Path, *arguments: str) -> list[Any]:
    """What `MODULE:NAME` returns in each process, called with the folder and the arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "processes", function, str(n), str(folder), *arguments]
    running = [subprocess.Popen([*command, "--rank", str(rank)], env=environment) for rank in range(n)]
    try:
        statuses = [process.wait(SECONDS) for process in running]
    finally:
        for process in running:
            process.kill()
    assert statuses == [0] * n, f"{function} ended with {statuses}"
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(n)]


def _main() -> None:
    function, n, folder, *arguments, _, rank = sys.argv[1:]
    torch.set_num_threads(1)
    module, _, name = function.partition(":")
    store = f"file://{Path(folder).resolve() / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=int(rank), world_size=int(n))
    try:
        found = getattr(__import__(module, fromlist=[name]), name)(Path(folder), *arguments)
        torch.save(found, Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    _main()
