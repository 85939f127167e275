"""How long a page takes to decode a file, in a headless Chromium: rows for results.csv. Each time it is loaded again.

PYTHONPATH=tests python benchmarks/bench_page.py results/lenet-300-100/softshare-default/seed-0 --opens 20
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from record import HERE, Results, RunRow, Timing

from browser import CHROMIUM, NO_BROWSER, browser
from softshare.cli.drawing import known_classifier
from softshare.codec import inspect
from softshare.report.draw.page import write_draw_page
from softshare.report.run import Run


def measure(page: Path, opens: int) -> tuple[list[float], list[float], str]:
    """Of each open, the first in a new browser: seconds to decode, and processor seconds of the page's own thread for
    all of its scripts, which other programs disturb less. And the browser's version."""
    decoding, processor = [], []
    with browser() as tab:
        version = tab.send("Browser.getVersion")["product"]
        for _ in range(opens):
            tab.send("Network.setCacheDisabled", cacheDisabled=True)
            tab.send("Performance.disable")
            tab.send("Performance.enable", timeDomain="threadTicks")
            tab.open(page.as_uri())
            tab.wait(lambda: tab.run("document.documentElement.dataset.state"))
            metrics = {m["name"]: float(m["value"]) for m in tab.send("Performance.getMetrics")["metrics"]}
            decoding.append(float(tab.run("classifier.milliseconds")) / 1e3)
            processor.append(metrics["ScriptDuration"])
    return decoding, processor, version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs of image classifiers")
    parser.add_argument("--opens", type=int, default=20)
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="CSV file that rows are appended to")
    options = parser.parse_args()
    results = Results[RunRow](options.out)
    if CHROMIUM is None:
        raise SystemExit(NO_BROWSER)
    for folder in options.runs:
        with tempfile.TemporaryDirectory() as temporary:
            page = write_draw_page(Run.load(folder), Path(temporary), known_classifier)
            if isinstance(page, str):
                raise SystemExit(f"{folder}: {page}")
            decoding, processor, version = measure(page, options.opens)
        info = inspect(folder / "model.sws")
        n_weights = sum(t.n or 0 for t in info.tensors)
        case = f"{folder.parents[1].name}-{folder.parent.name}"
        for method, seconds in (("decoded in the page", decoding), ("all scripts, processor time", processor)):
            note = f"{info.file_bytes} bytes; {1e3 * min(seconds):.0f} ms at best, load {os.getloadavg()[0]:.1f}"
            row = RunRow("page", case, n_weights, method, version, Timing.of(seconds), note=note)
            results.append(row)
            print(f"{case}: {method}: median {row.run.median:.0f} ms of {len(seconds)} opens; {note}; {version}")  # noqa: T201


if __name__ == "__main__":
    main()
