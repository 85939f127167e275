"""All kept LeNet files in both forms: bytes of version 1 and of the compact form, and the time that decoding takes.

    python benchmarks/bench_compact.py

Nothing in results/ is changed. Times are processor time, the best of some runs in one process, in Python, with sws.h
and with sws.js. The rows go to compact.csv, and a table of means over seeds is printed. It needs a C compiler and Node.
"""

from __future__ import annotations

import csv
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from record import HERE

from softshare import codec
from softshare.config import EncodeConfig

ROOT = HERE.parent
OUT = HERE / "compact.csv"
RUNS = 5
HEAD = ("network", "recipe", "seed", "kept", "version 1", "compact", *(
    f"{language} ms, {form}" for language in ("Python", "C", "JavaScript") for form in ("version 1", "compact")
))  # fmt: skip
IN_NODE = """
import { readFileSync } from "node:fs";
const { decode } = await import(process.argv[1]);
for (const path of process.argv.slice(2)) {
  const data = readFileSync(path);
  let best = Infinity;
  for (let k = 0; k < %d; k++) {
    const before = process.cpuUsage();
    decode(data);
    const used = process.cpuUsage(before);
    best = Math.min(best, used.user + used.system);
  }
  console.log(best / 1000);
}
"""


def by_python(path: Path) -> float:
    data, best = path.read_bytes(), float("inf")
    for _ in range(RUNS):
        start = time.process_time()
        for tensor in codec.decode(data, threads=1).shared:
            tensor.dense()
        best = min(best, time.process_time() - start)
    return 1000 * best


def by_c(program: Path, path: Path) -> float:
    done = subprocess.run([program, path, str(RUNS)], capture_output=True, text=True, check=True)
    return 1000 * float(done.stdout.split()[0])


def by_node(paths: list[Path]) -> list[float]:
    module = (ROOT / "decoders" / "js" / "sws.js").as_uri()
    call = ["node", "--input-type=module", "-e", IN_NODE % RUNS, module, *map(str, paths)]
    return [float(text) for text in subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()]


def measured(folder: Path) -> list[list[str]]:
    program = folder / "speed"
    subprocess.run(["make", "-s", "-C", ROOT / "decoders" / "c", f"B={folder}", program], check=True)
    kept = sorted(ROOT.glob("results/lenet-*/*/seed-*/model.sws"))
    files: list[Path] = []
    for k, path in enumerate(kept):
        weights = codec.decode(path.read_bytes())
        for form, compact in (("version-1", False), ("compact", True)):
            files.append(folder / f"{k}-{form}.sws")
            codec.save(weights, files[-1], EncodeConfig(compact=compact))
    in_node, rows = by_node(files), []
    for k, path in enumerate(kept):
        pair, nodes = files[2 * k : 2 * k + 2], in_node[2 * k : 2 * k + 2]
        times = [*map(by_python, pair), *(by_c(program, p) for p in pair), *nodes]
        sizes = [p.stat().st_size for p in (path, *pair)]
        seed = path.parent.name.removeprefix("seed-")
        row = [path.parts[-4], path.parts[-3], seed, *map(str, sizes), *(f"{t:.2f}" for t in times)]
        rows.append(row)
    return rows


def table(rows: list[list[str]]) -> str:
    """Means over seeds."""
    out = ["| network, recipe | version 1, B | compact, B | | Python, ms | C, ms | JavaScript, ms |", "|---" * 7 + "|"]
    for names, group in itertools.groupby(rows, lambda row: row[:2]):
        columns = list(zip(*((float(x) for x in row[4:]) for row in group), strict=True))
        first, second, *times = (sum(column) / len(column) for column in columns)
        pairs = [f"{before:.1f}, {after:.1f}" for before, after in zip(times[::2], times[1::2], strict=True)]
        gain = f"{100 * (second / first - 1):+.1f}%"
        out.append(f"| {', '.join(names)} | {first:,.0f} | {second:,.0f} | {gain} | {' | '.join(pairs)} |")
    return "\n".join(out) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(Path(folder))
    with OUT.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])
    sys.stdout.write(table(rows))


if __name__ == "__main__":
    main()
