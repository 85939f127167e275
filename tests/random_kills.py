"""Kill runs at random moments, let them go on, and compare what they leave with a run that was never stopped.

python tests/random_kills.py --kills 100 --seed 0

Each command of `COMMANDS` is run whole once. Then it is started again and again in another folder, and killed by
SIGKILL, SIGTERM or SIGINT after a random time, until a sitting comes to its end. Its files must be those of the whole
run, and a file that was there before a kill must be there after it. A command that cannot go on starts anew. The table
has a row for each command.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

TASK = """
import torch
from torch.nn import functional as F

import softshare as ss


def make_task():
    torch.manual_seed(0)
    x = torch.randn(600, 12)
    y = (x[:, :3].sum(1) > 0).long()
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(x[:400]), y[:400]).backward()
        optimizer.step()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:400], y[:400]), 40, shuffle=True)
    return ss.Task(
        model, loader, lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        lambda m: 100 * float((m(x[400:]).argmax(1) != y[400:]).double().mean()),
    )
"""
# The word `torchrun` starts the rest in two processes. A study gives up a trial whose process died after a minute, and
# one that has died three times. Here it is after a second, and never. `reproduce` has one recipe here, of a short
# training.
PROGRAM = """
import sys
if sys.argv[1] == "torchrun":
    from torch.distributed.run import main
    sys.exit(main(["--nproc-per-node", "2", "-m", "softshare", *sys.argv[2:]]))
if sys.argv[1] == "reproduce":
    import dataclasses
    from softshare.paper import recipes
    short = recipes.get_recipe("lenet-300-100", "softshare")
    pretrain = dataclasses.replace(short.pretrain, epochs=2)
    recipes.RECIPES = (dataclasses.replace(short, pretrain=pretrain, config=short.config.override(epochs=2)),)
from softshare.tune import storages, study
storages.GRACE, study.RETRIES = 1, 1000
from softshare.cli.app import main
sys.exit(main(sys.argv[1:]))
"""
# By name: the words of the command, with OUT for its folder or file; what it needs to go on; the files to compare.
COMMANDS = {
    "compress": (
        "compress task.py:make_task --steps 120 --checkpoint-every 0.2 --out OUT/run",
        "--resume",
        ("run/model.sws", "run/retrained.safetensors"),
    ),
    "compress --no-limit": (
        "compress task.py:make_task --no-limit --steps 400 --checkpoint-every 0.2 --out OUT/run",
        "--resume",
        ("run/model.sws",),
    ),
    "pretrain": (
        "pretrain lenet-300-100 --checkpoint-every 0.2 --out OUT/run",
        "--resume",
        ("run/pretrained.safetensors",),
    ),
    "tune": (
        "tune task.py:make_task --steps 100 --trials 4 --error-bound 100 --out OUT/study",
        "",
        ("study/pretrained.safetensors", "study/trials/*/model.sws"),
    ),
    "reproduce": (
        "reproduce lenet-300-100 --seeds 0 --checkpoint-every 0.2 --checkpoints OUT/pretrained --out OUT/results",
        "",
        ("pretrained/*.safetensors", "results/lenet-300-100/softshare/seed-0/model.sws"),
    ),
    "quantize": ("quantize weights.safetensors --bits 4 --out OUT/model.sws", "--overwrite", ("model.sws",)),
    "quantize a folder": ("quantize folder --bits 4 --out OUT/small/model.sws", "--overwrite", ("small/*",)),
    "decompress to shards": (
        "decompress weights.sws OUT/back.safetensors --shards 700KB",
        "--overwrite",
        ("back*.safetensors", "back*.json"),
    ),
    "compress by torchrun": (
        "torchrun compress task.py:make_task --no-limit --steps 400 --checkpoint-every 0.2 --out OUT/run",
        "--resume",
        ("run/model.sws",),
    ),
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
WRITTEN = (0, 3, 4)  # exit statuses of a command that wrote its files, whatever the network lost


@dataclass
class Tally:
    kills: Counter[str] = field(default_factory=Counter)
    ends: int = 0  # runs that came to their end
    lost: int = 0  # could not go on, or no longer had a file that was there before a kill
    others: int = 0  # ended with other files than the whole run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="in all (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the signals (default: 0)")
    parser.add_argument("--command", action="append", choices=list(COMMANDS), help="only this one; can be repeated")
    options = parser.parse_args()
    names = options.command or list(COMMANDS)
    with tempfile.TemporaryDirectory() as folder:
        tallies = {
            name: tried(name, -(-options.kills // len(names)), Path(folder) / str(k), random.Random(options.seed + k))
            for k, name in enumerate(names)
        }
    say(f"{'command':22}{'kills':>7}{'by signal':>34}{'ended':>7}{'lost':>6}{'other files':>13}")
    for name, tally in tallies.items():
        by_signal = ", ".join(f"{n} {kind}" for kind, n in sorted(tally.kills.items()))
        say(f"{name:22}{tally.kills.total():>7}{by_signal:>34}{tally.ends:>7}{tally.lost:>6}{tally.others:>13}")
    return min(1, sum(tally.lost + tally.others for tally in tallies.values()))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tried(name: str, kills: int, folder: Path, chance: random.Random) -> Tally:
    """Kill the command until there were so many kills and the last run has come to its end."""
    words, again, files = COMMANDS[name]
    prepare(folder)
    (folder / "whole").mkdir()
    start = time.monotonic()
    whole = subprocess.run(command(words, "whole"), cwd=folder, capture_output=True, text=True)
    longest = time.monotonic() - start
    if whole.returncode not in WRITTEN:
        raise SystemExit(f"{name}: {whole.stdout}{whole.stderr}")
    wanted, tally = digests(folder / "whole", files), Tally()
    attempt, sitting = 0, 0
    before: dict[str, str] = {}
    while tally.kills.total() < kills or sitting:
        out, start = f"attempt-{attempt}", time.monotonic()
        (folder / out).mkdir(exist_ok=True)
        more = again if sitting else ""
        may_kill = tally.kills.total() < kills
        status, said = killed(command(words, out, more), folder, longest, chance, tally, may_kill)
        now = digests(folder / out, files)
        kept = all(now.get(path) == digest for path, digest in before.items())
        if status is None and kept and set(now.values()) != set(wanted.values()):
            sitting, before = sitting + 1, now
            continue
        tally.ends += 1
        is_lost, is_other = (
            status not in (None, whole.returncode) or not kept,
            set(now.values()) != set(wanted.values()),
        )
        tally.lost += is_lost
        tally.others += is_other
        if is_lost or is_other:
            say(f"{name}, attempt {attempt}: exit status {status}, files kept: {kept}\n{said}")
        if status is not None and not sitting:
            longest = min(longest, time.monotonic() - start)  # the whole run may have had to compile first
        attempt, sitting, before = attempt + 1, 0, {}
    return tally


def prepare(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    import softshare
    from softshare.network.checkpoint import save_shards

    folder.mkdir(parents=True)
    (folder / "task.py").write_text(TASK)
    torch.manual_seed(0)
    weights = {f"layer{k}.weight": torch.randn(400, 400) for k in range(4)}
    save_file(weights, folder / "weights.safetensors")
    softshare.quantize(weights, bits=3).save(folder / "weights.sws")
    (folder / "folder").mkdir()
    save_shards(folder / "folder" / "model.safetensors", weights, weights.items(), 1 << 20)
    for name in ("config.json", "tokenizer.json"):
        (folder / "folder" / name).write_text("{}")


def command(words: str, out: str, more: str = "") -> list[str]:
    return [sys.executable, "-c", PROGRAM, *f"{words} {more}".replace("OUT", out).split()]


def killed(
    words: list[str], folder: Path, seconds: float, chance: random.Random, tally: Tally, may_kill: bool
) -> tuple[int | None, str]:
    """The exit status, or None if the command was killed; and what it said."""
    process = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    number = chance.choice(SIGNALS)
    try:
        said, _ = process.communicate(timeout=chance.uniform(0.2, 1.0) * seconds if may_kill else None)
        return process.returncode, said
    except subprocess.TimeoutExpired:
        started = descendants(process.pid)
        os.killpg(process.pid, number)
        try:
            said, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:  # it is in a long step, or another process has its output open
            started += descendants(process.pid)
            os.killpg(process.pid, signal.SIGKILL)
            end(started)
            said, _ = process.communicate()
        end(started)
        tally.kills[number.name] += 1
        if process.returncode in WRITTEN:  # it came to its end before the signal
            return process.returncode, said
        return None, said


def end(processes: list[int]) -> None:
    """Those of torchrun have sessions of their own, and may outlive it."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def descendants(of: int) -> list[int]:
    """The processes that a process has started, and those that these have started (Linux)."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # one that has just ended
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [of]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def digests(folder: Path, files: tuple[str, ...]) -> dict[str, str]:
    """By path in the folder."""
    there = [path for pattern in files for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in there}


if __name__ == "__main__":
    sys.exit(main())
