"""`torchrun -m softshare compress`: several processes make one run, also if one of them is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

import softshare as ss
from paths import ROOT
from softshare.cli import main
from softshare.cli.together import is_finished, is_restarted, processes
from softshare.distributed.group import ALONE
from softshare.errors import ConfigError, NotAvailableError

SECONDS = 120
# A user's file: a network that has learned its data, which each process takes a share of.
TASK = """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import softshare

torch.set_num_threads(1)


def make_task():
    torch.manual_seed(0)
    n, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 5))
    x = torch.randn(512, 20)
    y = (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    train, val = TensorDataset(x[:384], y[:384]), TensorDataset(x[384:], y[384:])
    own = DistributedSampler(train, num_replicas=n, rank=rank, seed=1)
    judged = DistributedSampler(val, num_replicas=n, rank=rank, shuffle=False) if n > 1 else None
    return softshare.Task.from_loaders(
        model, DataLoader(train, 64 // n, sampler=own), DataLoader(val, 32, sampler=judged), nn.CrossEntropyLoss()
    )
"""
RUN = ["--steps", "200", "--tau", "0.00003", "--zero-mixing", "0.5", "--no-limit", "--checkpoint-every", "0.1"]


def start(folder: Path, n: int, restarts: int, *words: str) -> subprocess.Popen[bytes]:
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(n), "--monitor-interval", "0.1"]
    command = [sys.executable, "-m", *torchrun, "--max-restarts", str(restarts), "-m", "softshare", "compress"]
    task = [f"{folder / 'net.py'}:make_task", "--out", str(folder / "run"), *RUN, "--fsdp", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([*command, *task], env=environment, stdout=log, stderr=subprocess.STDOUT)


def kill_one(folder: Path, parent: int, earlier: set[int], n: int = 2) -> set[int]:
    """SIGKILL to one of the processes that torchrun has started since, once they have written a checkpoint."""
    checkpoint, until = folder / ".run.unfinished" / "retraining.run", time.monotonic() + SECONDS
    children, seen = set[int](), 0
    while not (len(children) == n and checkpoint.exists() and checkpoint.stat().st_mtime_ns > seen):
        assert time.monotonic() < until, (folder / "log").read_text()
        time.sleep(0.02)
        now = set(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())) - earlier
        if now != children:
            children, seen = now, checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    os.kill(max(children), signal.SIGKILL)
    return children


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(TASK)
    return tmp_path


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="needs /proc to find the processes of torchrun"
)


@pytest.mark.slow
@needs_proc
def test_a_killed_process_costs_nothing_and_another_number_goes_on(folder: Path) -> None:
    task = f"{folder / 'net.py'}:make_task"
    assert main(["compress", task, "--out", str(folder / "one"), *RUN]) == 0
    run = start(folder, 2, restarts=1)
    try:
        first = kill_one(folder, run.pid, set())
        kill_one(folder, run.pid, first)  # torchrun has started both again, and they have gone on
        assert run.wait(SECONDS) != 0
    finally:
        run.kill()
    assert not (folder / "run").exists()
    assert main(["compress", task, "--out", str(folder / "run"), *RUN, "--resume"]) == 0  # in one process
    check(folder / "run", json.loads((folder / "one" / "result.json").read_text()))


@pytest.mark.slow
@needs_proc
def test_more_processes_go_on(folder: Path) -> None:
    task = f"{folder / 'net.py'}:make_task"
    assert main(["compress", task, "--out", str(folder / "one"), *RUN]) == 0
    run = start(folder, 1, restarts=0)
    try:
        kill_one(folder, run.pid, set(), n=1)
        assert run.wait(SECONDS) != 0
        assert not (folder / "run").exists()
        run = start(folder, 2, 0, "--resume")
        assert run.wait(SECONDS) == 0, (folder / "log").read_text()
        assert "(processes 1 then, 2 now)" in (folder / "log").read_text()
    finally:
        run.kill()
    check(folder / "run", json.loads((folder / "one" / "result.json").read_text()))


def check(folder: Path, expected: dict[str, float]) -> None:
    """The same network, up to a rounding that may move a weight between two components."""
    found = json.loads((folder / "result.json").read_text())
    assert found["error_after"] == expected["error_after"]
    assert found["file_bytes"] == pytest.approx(expected["file_bytes"], rel=0.01)
    assert len((folder / "history.csv").read_text().splitlines()) == 12  # no look is lost, and none is there twice
    assert ss.inspect(folder / "model.sws").file_bytes == found["file_bytes"]


def test_fsdp_needs_torchrun(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["compress", "lenet-300-100", "--fsdp", "--out", str(tmp_path / "run")]) == 2
    assert "torchrun --nproc-per-node" in capsys.readouterr().err
    with processes() as group:
        assert group is ALONE


def test_a_run_that_is_done_is_not_begun_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert is_restarted()
    assert not is_finished(tmp_path / "run", ALONE)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    assert is_finished(tmp_path / "run", ALONE)
    (tmp_path / ".run.unfinished").mkdir()
    assert not is_finished(tmp_path / "run", ALONE)


def test_a_process_whose_torchrun_was_killed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for half an hour, with what it had loaded."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "2"}
    for name, value in (variables | {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("softshare.cli.together.CONNECTING", timedelta(seconds=2))
    start = time.monotonic()
    with pytest.raises(NotAvailableError, match="expected torchrun"), processes():
        pytest.fail("there is no group")
    assert time.monotonic() - start < 60


def test_distributed_needs_a_process_group() -> None:
    from torch import nn

    task = ss.Task(nn.Linear(2, 2), [0], lambda model, _: next(model.parameters()).sum(), lambda _: 0.0, n_examples=1)
    with pytest.raises(ConfigError, match="init_process_group"):
        ss.compress(task, distributed="shard")
    with pytest.raises(ConfigError, match="replicate, shard"):
        ss.compress(task, distributed="all")  # type: ignore[call-overload]
