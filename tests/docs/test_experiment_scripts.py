"""The scripts in `experiments/`, run as a reader would run them, with few epochs."""

from __future__ import annotations

import csv
import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paths import ROOT
from softshare._util.run_folder import MODEL, RESULT
from softshare.cli import main
from softshare.codec import decode
from softshare.config import EncodeConfig
from softshare.result import Result

pytestmark = pytest.mark.slow


def run(script: str, *args: str, out: Path) -> list[dict[str, str]]:
    """Run a script and return the rows of the CSV file that it writes."""
    command = [sys.executable, str(ROOT / "experiments" / script), *args, "--pretrain-epochs", "1", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=600)
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_structured(tmp_path: Path) -> None:
    options = ("lenet-300-100", "--device", "cpu", "--epochs", "2", "--units", "5")
    (row,) = run("structured.py", *options, out=tmp_path / "rows.csv")
    assert row["experiment"] == "lenet-300-100"
    assert 0 < int(row["weights"]) < int(row["weights_before"]) == 266_610
    assert float(row["speedup_256"]) > 0


def test_random_trials(tmp_path: Path) -> None:
    rows = run("random_trials.py", "--trials", "2", "--most-epochs", "1", "--processes", "1", out=tmp_path / "rows.csv")
    assert [row["trial"] for row in rows] == ["0", "1"]
    with (ROOT / "docs/tuning/random-trials.csv").open(newline="") as file:
        kept = list(csv.DictReader(file))[:2]
    for row, before in zip(rows, kept, strict=True):  # they draw the same settings as the kept trials
        assert {name: float(row[name]) for name in ("tau", "width", "lr_means")} == pytest.approx(
            {name: float(before[name]) for name in ("tau", "width", "lr_means")}
        )


def test_rewrite_results(tmp_path: Path) -> None:
    """A file of version 1 gets the compact form, and its result says so. A second time changes nothing."""
    kept = ROOT / "docs/tuning/front/trial-0021"
    run = tmp_path / "results" / "lenet-300-100"
    shutil.copytree(kept, run)
    for _ in range(2):
        command = [sys.executable, str(ROOT / "experiments/rewrite_results.py"), str(tmp_path / "results")]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True, timeout=600)
        data, result, old = (run / MODEL).read_bytes(), Result.load(run / RESULT), Result.load(kept / RESULT)
        assert len(data) == result.file_bytes < old.file_bytes
        assert result.ratio == 4 * old.n_weights / len(data)
        assert result.config["encode"] == dataclasses.asdict(EncodeConfig())
        before, after = decode((kept / MODEL).read_bytes()).state_dict(), decode(data).state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert main(["verify", str(tmp_path / "results")]) == 0
