"""What opening a file takes: the table in benchmarks/README.md is what the kept rows of its run say."""

from __future__ import annotations

import csv
import importlib
import re

import pytest

from paths import ROOT


def test_the_table_is_from_one_kept_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    opening = importlib.import_module("bench_opening")
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^### Opening a file:.*?\n(.*?)^#", text, re.DOTALL | re.MULTILINE)
    (run_id,) = re.findall(r"`(\d{8}T\d{6}Z-[0-9a-f]{4})`", section)
    with (ROOT / "benchmarks/results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run_id"] == run_id]
    written = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| | ")]
    assert written == [opening.written(line) for line in opening.lines(rows)]
    assert len(written) >= 10
