"""Measure what a look at the page of `--live` costs, in processor time of the training's own process.

    python benchmarks/bench_live.py runs/demo

The page is that of a finished run, shown as if it were still training. Every look follows an epoch, so everything is
drawn again. The first look also loads the library that draws, and is not counted. The row is appended to results.csv.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from record import HERE, Results, RunRow, Timing, cpu_name

from softshare._util.run_folder import FRAMES, HISTORY, RESULT
from softshare.report.live import LivePage
from softshare.result import Result
from softshare.train.hooks import EpochRecord

LOOKS = 7


def look(page: LivePage) -> float:
    """Seconds of the processor, in this process, which also serves the page."""
    page.on_epoch(EpochRecord(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0))  # what was drawn before is out of date
    start = time.process_time()
    with urllib.request.urlopen(page.address) as answer:
        answer.read()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="CSV file that a row is appended to")
    options = parser.parse_args()
    result = Result.load(options.run / RESULT)
    with tempfile.TemporaryDirectory() as folder:
        for name in (HISTORY, FRAMES):  # all that a run has while it trains
            shutil.copy(options.run / name, folder)
        with LivePage(Path(folder)) as page:
            seconds = [look(page) for _ in range(1 + LOOKS)][1:]
    row = RunRow(
        benchmark="live",
        case=result.experiment,
        n_weights=result.n_weights,
        method="a look",
        device=cpu_name(),
        run=Timing.of(seconds),
        note="processor time",
    )
    Results[RunRow](options.out).append(row)
    sys.stdout.write(f"a look at {options.run}: {row.run.median:.0f} ms of the processor\n")


if __name__ == "__main__":
    main()
