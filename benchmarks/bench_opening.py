"""What opening a file takes, in one run: bench_opening.py [--turns 5]. Prints the table of README.md as Markdown.

It calls the scripts that measure each part, with one run id for the rows of all: bench_static.py, bench_threads.py,
bench_c.py and bench_page.py. It adds the flash and the RAM of the decoder in C. What this machine cannot measure is
left out with a message: a GPU, Chromium, a compiler for the Cortex-M4 (arm-none-eabi-gcc).
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from record import HERE, RUN_ID, Results, Row, new_run_id

from softshare import codec

ROOT = HERE.parent
LENET = ROOT / "results/lenet-5-caffe/softshare-small/seed-0/model.sws"
PAGE = "results/lenet-300-100/softshare-default/seed-0"
DECODER = ROOT / "decoders" / "c"
CORTEX = "-mcpu=cortex-m4 -mthumb"
GOLDEN = "tests/golden/adaptive.sws"
DENSE = "dense-3-bit.sws"
Found = dict[str, str]
Line = tuple[str, str, str, str]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def steps(turns: int) -> Iterator[list[str]]:
    """The commands that measure, each a script and its options."""
    yield ["bench_static.py"]
    if torch.cuda.is_available():
        yield ["bench_static.py", "--device", "cuda"]
    else:
        say("skipped: no GPU for bench_static.py --device cuda")
    yield ["bench_threads.py", "--turns", str(turns), "--patience", "60"]
    yield ["bench_c.py"]
    if any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        yield ["bench_page.py", str(ROOT / PAGE)]
    else:
        say("skipped: no Chromium for bench_page.py")


def memory_of_c() -> Iterator[tuple[str, int]]:
    """Bytes that opening the small LeNet-5 takes: flash on each processor with a compiler here, and RAM."""
    compilers = {"x86-64": ("cc", "")}
    if arm := shutil.which("arm-none-eabi-gcc"):
        compilers["Cortex-M4"] = (arm, CORTEX)
    else:
        say("skipped: no arm-none-eabi-gcc for the Cortex-M4")
    for processor, (compiler, flags) in compilers.items():
        printed = subprocess.run(
            ["sh", DECODER / "size.sh"],
            env=os.environ | {"CC": compiler, "CFLAGS": flags},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        sizes = [int(line.split()[0]) for line in printed.splitlines()]
        names = ("adaptive alone", "adaptive and compact", "all codecs")
        for name, size in zip(names, sizes, strict=True):
            yield f"C, flash, {processor}, {name}", size
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["make", "-s", "-C", DECODER, f"B={folder}", f"{folder}/digit"], check=True)
        shown = subprocess.run([f"{folder}/digit"], input=bytes(28 * 28), capture_output=True, check=True).stdout
    workspace, stack = shown.decode().splitlines()[-1].split()
    yield "C, RAM, workspace and stack", int(workspace) + int(stack)


def rate(row: Found, what: str) -> float:
    return float(row[f"{what}_mw_s"])


def lines(rows: list[Found]) -> Iterator[Line]:
    """Of each line of the table: what, wanted, measured, script. Lines whose rows are missing are left out."""

    def of(benchmark: str, case: str, method: str, threads: str = "") -> Found:
        """The last such row: of a GPU's, that of the largest tensor."""
        return next(
            row
            for row in reversed(rows)
            if (row["benchmark"], row["method"]) == (benchmark, method)
            and case in row["case"]
            and threads in ("", row["threads"])
        )

    def dense(figure: Callable[[Found], str], between: str = " and ") -> str:
        return between.join(figure(of("codec", f"dense, {bits} bits", "static, 4 lanes")) for bits in (3, 4))

    def against_version_1(row: Found) -> str:
        first = of("codec", row["case"], "adaptive")
        return f"{float(row['n_bytes']) / float(first['n_bytes']):.4f} and {float(row['ratio_to_order0']):.4f}"

    def vgg() -> str:
        one, two = (of("codec", "VGG-16", "adaptive", threads) for threads in ("1", "2"))
        found = {what: (rate(one, what), rate(two, what)) for what in ("encode", "decode")}
        walls = ", ".join(f"{what}s {a:.0f} and {b:.0f} M/s, {b / a:.2f} times" for what, (a, b) in found.items())
        return "; ".join([walls, *two["note"].split("; ")[2:]])

    def against_numba(case: str) -> str:
        return f"{float(of('c', case, 'numba')['run_ms']) / float(of('c', case, 'C')['run_ms']):.2f} times"

    def in_c(what: str) -> str:
        found = [row for row in rows if row["benchmark"] == "c" and row["method"].startswith(f"C, {what}")]
        return "; ".join(f"{int(float(row['n_bytes'])):,} B{row['method'].removeprefix(f'C, {what}')}" for row in found)

    def page() -> str:
        own, all_scripts = of("page", "", "decoded in the page"), of("page", "", "all scripts, processor time")
        best = own["note"].split("; ")[1]
        return f"{float(own['run_ms']):.0f} ms, {best}; {float(all_scripts['run_ms']):.0f} ms of processor time"

    def gpu() -> str:
        lanes = [of("static", "to bfloat16", f"static, {n} lanes") for n in (32, 4)]
        return " and ".join(f"{float(row['n_weights']) / float(row['run_ms']) / 1e6:.0f}" for row in lanes)

    files = ("lenet-300-100.sws", "lenet-5-caffe/", "wrn-16-4/")
    table: list[tuple[str, str, Callable[[], str], str]] = [
        ("dense, 3 and 4 bits, decode, one thread", "150 M weights/s (goal 350)",
         lambda: dense(lambda row: f"{rate(row, 'decode'):.0f}"), "bench_static.py"),
        ("the same, bytes against version 1 and order 0", "1.01, 1.005", lambda: dense(against_version_1, "; "),
         "bench_static.py"),
        ("dense, 3 and 4 bits, encode, one thread", "60 M weights/s (goal 150)",
         lambda: dense(lambda row: f"{rate(row, 'encode'):.0f}"), "bench_static.py"),
        ("sparse 2%, VGG-16's shapes, two threads against one", "1.8 times", vgg, "bench_threads.py"),
        ("NVIDIA GPU, dense 3 bits to bfloat16, 32 and 4 lanes", "100 G weights/s", gpu,
         "bench_static.py --device cuda"),
        ("C, `-O2`, against numba: adaptive", "as fast (goal 1.5 times)",
         lambda: ", ".join(map(against_numba, files)), "bench_c.py"),
        ("the same, fast model of large sparse tensors", "as fast", lambda: against_numba(GOLDEN), "bench_c.py"),
        ("the same, static", "as fast (goal 1.5 times)", lambda: against_numba(DENSE), "bench_c.py"),
        ("C, flash to open LeNet-5", "16 KB (goal 8)", lambda: in_c("flash"), "size.sh"),
        ("C, RAM to open LeNet-5", "48 KB (goal 16)", lambda: in_c("RAM"), "build/digit"),
        ("JavaScript, LeNet-300-100 of 5 kB, Chromium", "150 ms (goal 50)", page, "bench_page.py"),
    ]  # fmt: skip
    for what, wanted, measured, script in table:
        try:
            yield what, wanted, measured(), script
        except StopIteration:
            continue


def written(line: Line) -> str:
    what, wanted, measured, script = line
    return f"| {what} | {wanted} | {measured} | `{script}` |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="of bench_threads.py")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="CSV file that rows are appended to")
    options = parser.parse_args()
    run_id = os.environ.setdefault(RUN_ID, new_run_id())
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    for script, *others in steps(options.turns):
        say(f"{script} {' '.join(others)}, load {os.getloadavg()[0]:.1f}")
        subprocess.run([sys.executable, HERE / script, *others, "--out", options.out], check=True)
    results, info = Results[Row](options.out), codec.inspect(LENET)
    n_weights, n_nonzero = (sum(getattr(t, name) or 0 for t in info.tensors) for name in ("n", "n_nonzero"))
    for method, n_bytes in memory_of_c():
        results.append(Row("c", str(LENET.relative_to(ROOT)), n_weights, n_nonzero, 0, method, n_bytes))
    with options.out.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run_id"] == run_id]
    say(f"\nRun `{run_id}`, load {os.getloadavg()[0]:.1f}:\n\n| | wanted | measured | script |\n|---|---|---|---|")
    for line in lines(rows):
        say(written(line))


if __name__ == "__main__":
    main()
