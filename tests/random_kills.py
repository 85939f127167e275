"""Kill runs at random moments, let them go on, and compare what they leave with a run that was never stopped.

python tests/random_kills.py --kills 100 --seed 0

Each command of `COMMANDS` is run whole once. Then it is started again and again in another folder, and killed by
SIGKILL, SIGTERM or SIGINT after a random time, until a sitting comes to its end. Its files must be those of the whole
run, and a file that was there before a kill must be there after it. A command that cannot go on starts anew. The table
has a row for each command.
"""

from __future__ import annotations

import argparse
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
# A study gives up a trial whose process died after a minute, and one that has died three times. Here it is after a
# second, and never.
PROGRAM = """
import sys, softshare.tune.study as study
study.GRACE, study.RETRIES = 1, 1000
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
    "quantize": ("quantize weights.safetensors --bits 4 --out OUT/model.sws", "--overwrite", ("model.sws",)),
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


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
    start = time.monotonic()
    whole = subprocess.run(command(words, "whole"), cwd=folder, capture_output=True, text=True)
    longest = time.monotonic() - start
    if whole.returncode not in (0, 3):
        raise SystemExit(f"{name}: {whole.stdout}{whole.stderr}")
    wanted, tally = digests(folder / "whole", files), Tally()
    attempt, sitting = 0, 0
    before: dict[str, str] = {}
    while tally.kills.total() < kills or sitting:
        out, start = f"attempt-{attempt}", time.monotonic()
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

    folder.mkdir(parents=True)
    (folder / "task.py").write_text(TASK)
    torch.manual_seed(0)
    save_file({f"layer{k}.weight": torch.randn(400, 400) for k in range(4)}, folder / "weights.safetensors")


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
        os.killpg(process.pid, number)
        try:
            said, _ = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:  # it is in a long step
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
        tally.kills[number.name] += 1
        if process.returncode in (0, 3):  # it came to its end before the signal
            return process.returncode, said
        return None, said


def digests(folder: Path, files: tuple[str, ...]) -> dict[str, str]:
    """By path in the folder."""
    there = [path for pattern in files for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in there}


if __name__ == "__main__":
    sys.exit(main())
