"""Run commands on a disk that fills, twice at once, and with links and devices in their way; count what is lost.

python tests/hardships.py --points 20 --pairs 50 --seed 0

A disk that fills is a small tmpfs, which takes root. A row of the table is a command in one kind of trouble. Lost are
an earlier run that is no longer whole, files that are not those of one whole run, a victim of a link that was touched,
an exit status that is none of softshare's, a traceback, and a command that does not end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from random_kills import WRITTEN, command, digests, prepare, say

COMPRESS = "compress task.py:make_task --no-limit --steps 120 --checkpoint-every 0.1 --out OUT/run"
QUANTIZE = "quantize weights.safetensors --bits 4 --out OUT/model.sws"
FOLDER = "quantize folder --bits 4 --out OUT/small/model.sws"
SHARDS = "decompress weights.sws OUT/back.safetensors --shards 700KB"
FILE = ("model.sws",)
SMALL, BACK = ("small/*",), ("back*.safetensors", "back*.json")
ENDED = (*WRITTEN, 1, 2)  # exit statuses of a command that came to its own end
NAMED = ("run/model.sws", "run/retrained.safetensors", "run/pretrained.safetensors")  # the same in every whole run
PATIENCE = 600  # seconds
PAGE = 4096  # bytes

Tallies = dict[str, Counter[str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20, help="sizes of a disk that fills (default: 20)")
    parser.add_argument("--pairs", type=int, default=50, help="of runs in one folder (default: 50)")
    parser.add_argument(
        "--links", default="all", help="the command to put links and devices in the way of, or none (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    options = parser.parse_args()
    tallies: Tallies = {}
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid() == 0 and options.points:
            tallies |= full_disks(Path(folder) / "disk", options.points)
        if options.pairs:
            tallies |= pairs(Path(folder) / "pairs", options.pairs, random.Random(options.seed))
        if options.links != "none":
            tallies |= in_the_way(Path(folder) / "way", options.links)
    say(f"{'trouble':44}{'tries':>6}  outcomes")
    for name, tally in tallies.items():
        say(f"{name:44}{tally.total():>6}  {', '.join(f'{n} {what}' for what, n in sorted(tally.items()))}")
    return int(any(what.startswith("lost") for tally in tallies.values() for what in tally))


def run(words: str, folder: Path, out: str = ".", more: str = "") -> tuple[int | None, str]:
    """The exit status, or None if the command did not end; and what it said."""
    try:
        ended = subprocess.run(
            command(words, out, more),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return None, "did not end"
    return ended.returncode, (ended.stdout + ended.stderr)[-1000:]


def wrong(status: int | None, said: str) -> str:
    """What is lost by the way that a command ended, if it is."""
    if status not in ENDED:
        return f"lost: exit status {status}"
    return "lost: traceback" if 'File "' in said else ""


# A disk that fills


@contextlib.contextmanager
def disk(at: Path, n_bytes: int) -> Iterator[None]:
    at.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "none", str(at)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def full_disks(folder: Path, points: int) -> Tallies:
    """Each command over its own earlier result. It fails or not; then the disk grows and it is given again."""
    prepare(folder)
    tallies: Tallies = {}
    for words, files, again in (
        (COMPRESS, NAMED, "--overwrite --resume"),
        (QUANTIZE, FILE, "--overwrite"),
        (FOLDER, SMALL, "--overwrite"),
        (SHARDS, BACK, "--overwrite"),
    ):
        name = name_of(words)
        earlier, whole = folder / f"earlier-{name}", folder / f"whole-{name}"
        seeds = ("--seed 1", "--seed 0") if words == COMPRESS else ("", "")
        for out, more in zip((earlier, whole), seeds, strict=True):
            out.mkdir()
            status, said = run(words, folder, out.name, more)
            assert status in WRITTEN, said
        tally = tallies[f"{name} on a disk that fills"] = Counter[str]()
        for k in range(points):
            n_bytes = usage(earlier) + 3 * k * usage(whole) // (2 * points)  # from no room at all to more than enough
            tally[on_a_disk(folder, words, files, again, n_bytes)] += 1
    return tallies


def name_of(words: str) -> str:
    return {FOLDER: "quantize-folder", SHARDS: "decompress-shards"}.get(words, words.split()[0])


def on_a_disk(folder: Path, words: str, files: tuple[str, ...], again: str, n_bytes: int) -> str:
    name = name_of(words)
    earlier, whole = (digests(folder / f"{which}-{name}", files) for which in ("earlier", "whole"))
    at = folder / f"disk-{name}-{n_bytes}"
    with disk(at, n_bytes):
        shutil.copytree(folder / f"earlier-{name}", at, dirs_exist_ok=True)
        status, said = run(words, folder, at.name, "--overwrite")
        if lost := wrong(status, said):
            say(said)
            return lost
        now = digests(at, files)
        if status in WRITTEN and now == whole:
            return "had room"
        if now != earlier:
            return "lost: the earlier result"
        subprocess.run(["mount", "-o", "remount,size=1g", str(at)], check=True)
        status, said = run(words, folder, at.name, again)
        if digests(at, files) != whole:
            say(said)
            return "lost: could not go on"
        return "kept the earlier result, then went on"


def usage(folder: Path) -> int:
    """On a tmpfs, which gives whole pages."""
    return sum(-(-path.stat().st_size // PAGE) * PAGE for path in folder.rglob("*") if path.is_file()) + 4 * PAGE


# Two runs in one folder


def pairs(folder: Path, n: int, chance: random.Random) -> Tallies:
    """Two runs of other seeds into one folder, one a little after the other."""
    prepare(folder)
    wholes = []
    for seed in (0, 1):
        start = time.monotonic()
        status, said = run(COMPRESS, folder, f"whole-{seed}", f"--seed {seed}")
        seconds = time.monotonic() - start
        assert status in WRITTEN, said
        wholes.append(digests(folder / f"whole-{seed}", NAMED))
    tally = Counter[str]()
    for k in range(n):
        out = f"pair-{k}"
        first = started(folder, out, 0)
        time.sleep(chance.uniform(0, 1.2) * seconds)
        second = started(folder, out, 1)
        ended = [process.wait(PATIENCE) for process in (first, second)]
        now, left = digests(folder / out, NAMED), sorted(p.name for p in (folder / out).iterdir())
        if now not in wholes or any(status not in ENDED for status in ended) or left != ["run"]:
            say(f"pair {k}: exit statuses {ended}, in the folder {left}")
            tally["lost: not one whole run"] += 1
        elif 2 in ended:
            tally["one refused, the other's run whole"] += 1
        else:
            tally["one after the other, the last one's run whole"] += 1
    return {"two runs in one folder": tally}


def started(folder: Path, out: str, seed: int) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    words = command(COMPRESS, out, f"--seed {seed} --overwrite")
    return subprocess.Popen(words, cwd=folder, stdin=nothing, stdout=nothing, stderr=nothing)


# Links and devices in every place


def link_to_folder(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def link_to_file(path: Path, victim: Path) -> None:
    path.symlink_to(victim / "precious")


def link_to_nothing(path: Path, victim: Path) -> None:
    path.symlink_to(victim / "missing")


def hard_link(path: Path, victim: Path) -> None:
    os.link(victim / "precious", path)


def pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def device(path: Path, victim: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null


def bound_socket(path: Path, victim: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)


def folder_with_a_file(path: Path, victim: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("kept")


def file_of_others(path: Path, victim: Path) -> None:
    path.write_text("mine")


KINDS: tuple[Callable[[Path, Path], None], ...] = (
    *(link_to_folder, link_to_file, link_to_nothing, hard_link, pipe, bound_socket, folder_with_a_file),
    file_of_others,
    *((device,) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()),
)
# By command: the places that it writes to, in the folder OUT.
PLACES = {
    COMPRESS: (
        "run",
        ".run.unfinished",
        ".run.lock",
        "run/model.sws",
        "run/result.json",
        "run/history.csv",
        "run/note",
        "run/report/draw.html",
    ),
    QUANTIZE: ("model.sws",),
    FOLDER: ("small", "small/model.sws", "small/config.json", "small/tokenizer.json"),
    "decompress whole/model.sws OUT/model.safetensors": ("model.safetensors",),
    SHARDS: ("back-00001-of-00004.safetensors", "back-00007-of-00009.safetensors", "back.safetensors.index.json"),
    "tune task.py:make_task --steps 60 --trials 1 --error-bound 100 --out OUT/study": (
        *("study", "study/study.db", "study/.lock", "study/pretrained.safetensors", "study/trials", "study/front"),
        *("study/trials/trial-0000", "study/front/trial-0000", "study/summary.csv", "study/front.png"),
        *("study/.running-0.lock", "study/settings.png"),
    ),
    "report whole/run --out OUT/report": ("report", "report/index.html", "report/draw.html", "report/figures"),
}
# Folders that a command was told to write into: a link to one is as good as the folder.
ON_THE_WAY = ("small",)


def in_the_way(folder: Path, command: str) -> Tallies:
    prepare(folder)
    for words in (QUANTIZE, COMPRESS):
        status, said = run(words, folder, "whole")
        assert status in WRITTEN, said
    tallies: Tallies = {}
    for words, places in PLACES.items():
        if command not in ("all", name_of(words)):
            continue
        tally = tallies[f"links and devices, {name_of(words)}"] = Counter[str]()
        for place in places:
            for kind in KINDS:
                if kind is link_to_folder and place in ON_THE_WAY:
                    continue
                tally[with_one(folder, words, place, kind)] += 1
    return tallies


def replaces(words: str) -> bool:
    """Whether --overwrite of this command means any file of the name. That of `compress` means an earlier run."""
    return words.startswith(("quantize", "decompress"))


def with_one(folder: Path, words: str, place: str, kind: Callable[[Path, Path], None]) -> str:
    out, victim = folder / "out", folder / "victim"
    victim.mkdir()
    (victim / "precious").write_text("kept")
    path = out / place
    path.parent.mkdir(parents=True)
    kind(path, victim)
    before = path.lstat()
    more = "--overwrite" if words.startswith("compress") or replaces(words) else ""
    try:
        status, said = run(words, folder, "out", more)
        lost = wrong(status, said)
        if os.listdir(victim) != ["precious"] or (victim / "precious").read_text() != "kept":
            lost = "lost: what a link pointed to"
        if kind is folder_with_a_file and not (path / "precious").exists():
            lost = "lost: a folder"
        if kind is file_of_others and not replaces(words) and path.read_bytes() != b"mine":
            lost = "lost: a file of others"
        if lost:
            say(f"{lost}: {words.split()[0]}, {kind.__name__} in place of {place}\n{said}")
            return lost
        same = os.path.lexists(path) and path.lstat().st_ino == before.st_ino
        if status == 2:
            return "refused" if same else "lost: refused, but removed"
        return "went on beside or through it" if same else "replaced or removed it alone"
    finally:
        shutil.rmtree(out)
        shutil.rmtree(victim)


if __name__ == "__main__":
    sys.exit(main())
