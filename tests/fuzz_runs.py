"""A fuzzer of everything else that softshare reads: folders of runs and studies, and checkpoints of every format.

It forges one file of a valid folder and runs the commands that read it, in this process. A command may end with status
0, 1 or 2. With status 2 it prints one message. No traceback, no character that a terminal obeys, no element of HTML
from a name, and little time and memory. `make fuzz` runs many, and the tests a few.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from cli_runs import contents, finished_run
from forgeries import FORGERIES, NAMES, Files
from softshare.cli import main as softshare
from softshare.config import CompressConfig
from softshare.config.text import to_toml
from softshare.tune.trials import Row, to_csv

MAX_SECONDS = 60.0  # of the processor, for one command; drawing a page takes 5 to 20 of them
MAX_GROWTH = 1 << 30  # bytes of memory over a run; matplotlib and torch keep some
DRAW_EVERY = 25  # a page takes seconds, so only every so many folders get one
_CONTROL = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass
class Report:
    n_tries: int = 0
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)  # by command
    slowest: tuple[float, str] = (0.0, "")  # seconds, and of what
    growth: int = 0  # bytes
    failures: list[str] = field(default_factory=list)


class Fuzzer:
    """A folder of a valid run and of a valid study, and how the commands read them."""

    def __init__(self, folder: Path) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.run = finished_run(folder)
            self.task = f"{folder / 'net.py'}:task"
            self.folder, self.out, self.delta = folder, folder / "out", folder / "delta.sws"
            assert softshare(self.commands(folder)["tune"]) == 0
        result = (self.run / "result.json").read_bytes()
        rows = [
            Row(
                k,
                "complete",
                "",
                10.0,
                11.0 - k,
                1000 + k,
                20.0 + k,
                10.0,
                1.0,
                {"tau": 0.01 * (k + 1)},
                k < 2,
                9.0,
                9.5,
            )
            for k in range(4)
        ]
        (self.run / "summary.csv").write_bytes(to_csv(rows))
        (self.run / "front" / "trial-0000").mkdir(parents=True)
        (self.run / "front" / "trial-0000" / "result.json").write_bytes(result)
        (self.run / "tuned").mkdir()
        for name in ("study.db", "pretrained.safetensors"):
            (self.run / "tuned" / name).write_bytes((folder / "tuned" / name).read_bytes())
        (self.run / "settings.toml").write_text(to_toml(CompressConfig()))
        before, after = str(self.run / "pretrained.safetensors"), str(self.run / "retrained.safetensors")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert softshare(["quantize", after, "--base", before, "--out", str(self.delta)]) == 0
        (self.run / "shards").mkdir()
        whole = (self.run / "pretrained.safetensors").read_bytes()
        (self.run / "shards" / "pretrained.safetensors").write_bytes(whole)
        self.valid = contents(self.run)
        self.report = Report()

    def commands(self, run: Path) -> dict[str, list[str]]:
        model, weights, out = run / "model.sws", run / "pretrained.safetensors", self.out / "file"
        nothing = ["--weights", str(self.folder / "none")]  # which do not exist, so that nothing is trained
        new = ["--out", f"{out}.sws", "--overwrite"]
        odd, report = self.out / "<svg onload=alert(1)>.pt", ["--report", str(self.out / "report")]
        compress = ["compress", self.task, "--no-limit", "--out", str(self.out / "run")]
        tune = ["tune", self.task, "--trials", "1", "--epochs", "1", "--error-bound", "100"]
        return {
            "evaluate": ["evaluate", str(run), "--task", self.task],
            "verify": ["verify", str(run), "--task", self.task],
            "results": ["results", str(run), "--check", "--root", str(self.out)],
            "settings": [*compress, "--config", str(run / "result.json"), *nothing],
            "inspect": ["inspect", str(model)],
            "decompress": ["decompress", str(model), str(out), "--overwrite", "--max-bytes", str(1 << 20)],
            "export": ["export", str(model), "--sparse", f"{out}.pt", "--overwrite"],
            "quantize": ["quantize", str(weights), *new],
            "page": ["quantize", str(odd), *new, *report],
            "quantize shards": ["quantize", str(run / "shards"), *new],
            "delta": ["quantize", str(self.run / "retrained.safetensors"), "--base", str(weights), *new],
            "sum": ["decompress", str(self.delta), str(out), "--base", str(weights), "--overwrite"],
            "lossless": ["quantize", str(weights), "--lossless", *new],
            "settings file": [*compress, "--config", str(run / "settings.toml"), *nothing],
            "weights": [*compress, "--weights", str(weights), "--epochs", "1", "--overwrite"],
            "figures": ["report", str(run), "--out", str(self.out / "report")],
            "study": ["report", str(run), "--out", str(self.out / "report")],
            "tune": [*tune, "--out", str(run / "tuned")],
        }

    def read_valid(self) -> dict[str, int]:
        """The status of each command on the folder as it is."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return {
                name: softshare(self.commands(self.write(self.valid, is_study=name == "study"))[name])
                for name in self.commands(self.run)
            }

    def forge(self, kind: str, rng: np.random.Generator) -> None:
        """Forge a file, and read it by every command that would."""
        forge, names = FORGERIES[kind]
        run = self.write({**self.valid, **forge(self.valid, rng)}, is_study="study" in names)
        draws = self.report.n_tries % DRAW_EVERY == 0
        for name in names:
            if name == "figures" and not draws:
                self.check(kind, name, lambda: _figures(run))
            elif name == "draw":
                self.check(kind, name, lambda: draw_page(run, self.out / "report"))
            elif name == "page" and not draws:
                self.check(kind, name, lambda: _quantized_page(run / "pretrained.safetensors"))
            elif name == "study" and not draws:
                self.check(kind, name, lambda: _study(run))
            else:
                self.check(kind, name, lambda name=name: softshare(self.commands(run)[name]))  # type: ignore[misc]
        self.report.n_tries += 1

    def write(self, files: Files, is_study: bool) -> Path:
        """A folder with these files. Without the files of a study, it is that of a run."""
        run = self.folder / "forged"
        shutil.rmtree(run / "tuned", ignore_errors=True)  # a study is changed by what reads it
        for name, data in files.items():
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (run / name).write_bytes(data)
            if name.startswith(("summary", "front")) and not is_study:
                (run / name).unlink()
        (self.out / "report").mkdir(parents=True, exist_ok=True)
        shutil.copy(run / "pretrained.safetensors", self.out / "<svg onload=alert(1)>.pt")
        return run

    def check(self, kind: str, name: str, command: Callable[[], int]) -> None:
        out, err, start = io.StringIO(), io.StringIO(), time.process_time()
        problem = None
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = command()
            self.report.statuses[name, status] += 1
            problem = _problem(status, out.getvalue(), err.getvalue())
            for page in (self.out / "report" / "index.html", self.out / "report" / "draw.html"):
                if status == 0 and page.exists() and name in ("figures", "study", "page", "draw"):
                    problem = problem or page_problem(page.read_text())
                    page.unlink()
        except BaseException:  # this is what the fuzzer looks for
            problem = traceback.format_exc()
        seconds = time.process_time() - start
        self.report.slowest = max(self.report.slowest, (seconds, f"{kind}, {name}"))
        if problem is None and seconds > MAX_SECONDS:
            problem = f"{seconds:.1f} s"
        if problem is not None:
            self.report.failures.append(f"{kind}, {name}, try {self.report.n_tries}: {problem}")


def _figures(run: Path) -> int:
    """What a report reads and computes, without drawing it."""
    from softshare.errors import SoftShareError
    from softshare.report.figures.catalogue import FIGURES
    from softshare.report.page import render_page
    from softshare.report.run import Run, drawn_from

    try:
        loaded = Run.load(run)
        with drawn_from(run):
            for plot in FIGURES:
                plot.data(loaded)
            problem = page_problem(render_page(loaded, {plot.name: [] for plot in FIGURES}))
    except SoftShareError:
        return 2
    if problem:
        raise ValueError(problem)
    return 0


def draw_page(run: Path, folder: Path) -> int:
    """The status of the part of `report` that writes the page to draw on; 1 if it says why there is none."""
    from softshare.errors import SoftShareError
    from softshare.report.draw.page import write_draw_page
    from softshare.report.run import Run

    try:
        return int(isinstance(write_draw_page(Run.load(run), folder), str))
    except SoftShareError:
        return 2


def _quantized_page(weights: Path) -> int:
    """What `quantize --report` computes for the page of a checkpoint, without drawing it."""
    import softshare as ss
    from softshare.errors import SoftShareError
    from softshare.network.checkpoint import load_checkpoint
    from softshare.report.figures.rates import rates_data
    from softshare.report.page import render
    from softshare.report.quantized_page import page_of

    try:
        fitted = ss.quantize(load_checkpoint(weights))
    except SoftShareError:
        return 2
    rates_data(fitted)
    if problem := page_problem(render(page_of(fitted, [], weights.name))):
        raise ValueError(problem)
    return 0


def _study(run: Path) -> int:
    from softshare.errors import SoftShareError
    from softshare.report.run import drawn_from
    from softshare.tune.plots import front_data, no_others, settings_data
    from softshare.tune.study_page import study_metric, study_title
    from softshare.tune.trials import from_csv

    try:
        rows, metric = from_csv((run / "summary.csv").read_bytes(), "summary.csv"), study_metric(run)
        with drawn_from(run):
            front_data(study_title(run), rows, no_others(""), metric)
            settings_data("", rows, {}, metric)
    except SoftShareError:
        return 2
    return 0


def _problem(status: int, out: str, err: str) -> str | None:
    if status not in (0, 1, 2):
        return f"status {status}"
    if found := _CONTROL.search(out + err):
        return (
            f"the character {found[0]!r} in the output: {(out + err)[max(0, found.start() - 60) : found.end() + 20]!r}"
        )
    if "Traceback" in err or "unpickled" in out:
        return err or out
    said = err[max(0, err.find("softshare: ")) :]  # a command may have said what it does
    if status == 2 and re.search(r"\n(?!  |$)", said.removesuffix("\n")):
        return f"more than one message: {err!r}"
    return None


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.n_scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.n_scripts += tag == "script"
        if tag in ("img", "iframe", "object", "embed") or any(name.startswith("on") for name, _ in attrs):
            self.problems.append(f"<{tag} {attrs}>")


def page_problem(page: str) -> str | None:
    """An element of the page that is not its own. It has two scripts, and none in an attribute."""
    elements = _Elements()
    elements.feed(page)
    if elements.problems or elements.n_scripts != 2:
        return f"{elements.n_scripts} scripts, and {elements.problems[:3]} in the page"
    return next((f"{name!r} is in the page as it is" for name in NAMES if "<" in name and name in page), None)


def fuzz_runs(n_tries: int, seed: int, kinds: tuple[str, ...] = tuple(FORGERIES)) -> Report:
    """Forge this many folders. The same seed gives the same."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = Fuzzer(Path(folder))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for k in range(n_tries):
            fuzzer.forge(kinds[k % len(kinds)], rng)
        fuzzer.report.growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if fuzzer.report.growth > MAX_GROWTH:
        fuzzer.report.failures.append(f"memory grew by {fuzzer.report.growth >> 20} MiB")
    return fuzzer.report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=list(FORGERIES), help="forge only this; can be repeated")
    parser.add_argument("--log", type=Path, help="append the result to this file")
    options = parser.parse_args()
    start = time.perf_counter()
    report = fuzz_runs(options.folders, options.seed, tuple(options.kind or FORGERIES))
    seconds, n_commands = time.perf_counter() - start, sum(report.statuses.values())
    counted: dict[str, dict[int, int]] = {}
    for (name, status), n in sorted(report.statuses.items()):
        counted.setdefault(name, {})[status] = n
    lines = [
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, seed {options.seed}, {seconds:.0f} s",
        f"{report.n_tries:,} forged folders, {n_commands:,} commands, {len(report.failures)} failures; "
        f"slowest {report.slowest[0]:.1f} s ({report.slowest[1]}), memory growth {report.growth >> 20} MiB",
        "statuses: " + ", ".join(f"{name} {of}" for name, of in counted.items()),
        *report.failures[:20],
    ]
    text = "\n".join(lines) + "\n\n"
    sys.stdout.write(text)
    if options.log:
        with options.log.open("a") as log:
            log.write(text)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
