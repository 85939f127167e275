"""The results in this repository: each agrees with its file, and the pages show them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from conftest import CIFAR10
from paths import ROOT
from softshare._util.run_folder import MODEL, RESULT
from softshare.cli import main
from softshare.codec import decode, encode
from softshare.config import EncodeConfig
from softshare.config.stages import upgraded
from softshare.paper.reproduce import reproduce
from softshare.paper.verify import find_runs
from softshare.result import Result

RESULTS = ROOT / "results"
STUDY = ROOT / "docs" / "tuning"

pytestmark = pytest.mark.skipif(not RESULTS.is_dir(), reason="needs the folder results of the repository")


@pytest.mark.slow
def test_every_kept_file_agrees_with_its_result() -> None:
    assert main(["verify", str(RESULTS), *(["--data", CIFAR10] if CIFAR10 else [])]) == 0


@pytest.mark.slow
def test_every_kept_file_is_what_its_settings_write() -> None:
    """Old results do not name the younger settings of the writer. `upgraded` says what they meant."""
    runs = [run for folder in (RESULTS, STUDY) for run in find_runs(folder)]
    assert len(runs) > 60
    for run in runs:
        data, config = (run / MODEL).read_bytes(), upgraded(Result.load(run / RESULT).config)
        assert encode(decode(data), EncodeConfig(**config["encode"])) == data, run


def test_the_pages_are_current() -> None:
    """docs/results.md, the README's table, and every figure between markers are current."""
    assert main(["results", str(RESULTS), "--check", "--root", str(ROOT)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("study", [STUDY, STUDY / "paper"], ids=["ours", "paper"])
def test_the_kept_studies(study: Path) -> None:
    """There are at least 40 trials, and the front beats the paper's ratio of 64.2 at 1.94%, on the test set."""
    with (study / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    front = [row for row in rows if row["on_front"] == "True"]
    assert len(rows) >= 40
    assert any(float(row["ratio"]) > 64.2 and float(row["test_error"]) < 1.94 for row in front)
    for row in front:
        result = Result.load(study / "front" / f"trial-{int(row['trial']):04d}" / "result.json")
        assert (result.file_bytes, result.error_after) == (int(row["file_bytes"]), float(row["test_error"]))
    assert len(list((study / "front").glob("*/model.sws"))) == len(front)
    assert main(["verify", str(study / "front")]) == 0


def test_the_kept_random_trials() -> None:
    """Two of the 30 trials failed."""
    with (STUDY / "random-trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    failed = [row for row in rows if row["failed"] == "True"]
    assert (len(rows), [row["trial"] for row in failed]) == (30, ["10", "20"])
    for row in rows:
        assert (row["failed"] == "True") == (float(row["validation_error"]) > 5 or row["nonzero"] == "0")


def test_the_kept_results_are_made_by_the_recipes_of_today() -> None:
    """Older versions of the settings do not count as other settings."""
    said: list[str] = []
    list(reproduce("lenet-300-100", ["softshare", "paper", "dns"], [0, 1, 2], ROOT / "results", say=said.append))
    assert len(said) == 9
    assert not [text for text in said if "differ" in text]
