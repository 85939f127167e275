"""The results in this repository, where there are any: each agrees with its file, and the page is what they give."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest

from conftest import CIFAR10
from paths import ROOT
from softshare.cli import main
from softshare.result import Result

RESULTS = ROOT / "results"
STUDY = ROOT / "docs" / "tuning"

pytestmark = pytest.mark.skipif(not RESULTS.is_dir(), reason="no results are kept here")


def test_every_kept_file_is_what_its_result_says() -> None:
    assert main(["verify", str(RESULTS), *(["--data", CIFAR10] if CIFAR10 else [])]) == 0


def test_the_page_is_current() -> None:
    assert main(["results", str(RESULTS), "--check", "--root", str(ROOT)]) == 0


@pytest.mark.parametrize("study", [STUDY, STUDY / "paper"], ids=["ours", "paper"])
def test_the_kept_studies_and_what_is_told_of_them(study: Path) -> None:
    """At least 40 trials, and a front past the paper's 64.2 at 1.94%, by real files and on the test set."""
    with (study / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    front = [row for row in rows if row["on_front"] == "True"]
    assert len(rows) >= 40
    assert any(float(row["ratio"]) > 64.2 and float(row["test_error"]) < 1.94 for row in front)
    told = (ROOT / "docs" / "tuning.md").read_text()
    for row in front:
        result = Result.load(study / "front" / f"trial-{int(row['trial']):04d}.json")
        assert (result.file_bytes, result.error_after) == (int(row["file_bytes"]), float(row["test_error"]))
        errors = f"{float(row['validation_error']):.2f} | {result.error_after:.2f}"
        assert f"| {row['trial']} | {result.file_bytes:,} | {result.ratio:.0f} | {errors} |" in told
    assert len(list((study / "front").glob("*.sws"))) == len(front)
    assert main(["verify", str(study / "front")]) == 0


def test_the_kept_random_trials() -> None:
    """At most 3 of 30 may have failed."""
    with (STUDY / "random-trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    failed = [row for row in rows if row["failed"] == "True"]
    assert (len(rows), [row["trial"] for row in failed]) == (30, ["10", "20"])
    for row in rows:
        assert (row["failed"] == "True") == (float(row["validation_error"]) > 5 or row["nonzero"] == "0")


@pytest.mark.parametrize("experiment", ["lenet-300-100", "lenet-5-caffe", "wrn-16-4"])
def test_what_is_told_of_the_presets(experiment: str) -> None:
    """In docs/tuning.md, a line a network: by the defaults, and by the paper's preset."""
    cells = []
    for method in ("softshare-default", "paper"):
        results = [Result.load(path) for path in sorted((RESULTS / experiment / method).glob("*.json"))]
        if not results:
            cells.append("-")
            continue
        n_bytes, ratio, before, after = (
            statistics.fmean(getattr(result, name) for result in results)
            for name in ("file_bytes", "ratio", "error_before", "error_after")
        )
        seeds = f"{len(results)} seeds" if len(results) > 1 else "one seed"
        cells.append(f"{n_bytes:,.0f} ({ratio:.0f}), {before:.2f} -> {after:.2f}, {seeds}")
    told = (ROOT / "docs" / "tuning.md").read_text()
    assert f"| {experiment} | {' | '.join(cells)} |" in told


def test_what_is_told_of_the_coder() -> None:
    """In the README: whole files over the order-0 entropy of their indices."""
    results = [Result.load(path) for path in RESULTS.glob("lenet-*/softshare*/*.json")]
    shares = [result.file_bytes / result.entropy_bytes for result in results]
    assert (
        f"take {min(shares):.2f} to {max(shares):.2f} of the indices' order-0 entropy"
        in (ROOT / "README.md").read_text()
    )


def test_what_is_told_of_nncodec() -> None:
    with (ROOT / "benchmarks" / "results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run_id"] == "20261115T214215Z-247d"]
    sizes = {(row["case"], row["method"]): int(row["n_bytes"]) for row in rows}
    told = (ROOT / "docs" / "experiments.md").read_text()
    for case in {case for case, _ in sizes}:
        network, method = case.rsplit("-", 1)
        name = {"lenet-300-100": "LeNet-300-100", "lenet-5-caffe": "LeNet-5-Caffe"}[network]
        cells = [f"{sizes[case, by]:,}" for by in ("softshare file", "nncodec integer", "nncodec quantized")]
        assert f"| {name}, `{method}` | {' | '.join(cells)} |" in told


def test_what_is_told_of_whole_units() -> None:
    told = (ROOT / "docs" / "experiments.md").read_text()
    with (ROOT / "docs" / "structured.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    for row in rows:
        counts = " | ".join(f"{int(row[name]):,}" for name in ("weights", "nonzero", "file_bytes"))
        figures = f"{float(row['error']):.2f} | {float(row['speedup_1']):.1f} | {float(row['speedup_256']):.1f}"
        assert f"| {float(row['tau']):g} | {row['units']} | {counts} | {figures} |" in told
