"""The table of many GPUs in docs/scale.md is what benchmarks/scale.py computes."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from paths import ROOT

PAGE = (ROOT / "docs/scale.md").read_text()
SIZE = r"(?P<n>\d+) B, (?P<mixtures>\d+)"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(rf"\| {SIZE} \|", line)
]
UNITS = {"GB": 1e9, "s": 1.0, "ms": 1e-3}


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scale")


def is_rounded(said: str, exact: float) -> bool:
    """Whether a figure with its unit is the exact one, rounded to the digits that it has."""
    figure, unit = said.split(" ")
    digits = len(figure.partition(".")[2])
    return figure == f"{exact / UNITS[unit]:.{digits}f}"


def test_all_sizes_are_there() -> None:
    assert [row[:2] for row in ROWS] == [
        [size, gpus] for size in ("1 B, 160", "70 B, 560") for gpus in ("8", "64", "1,024")
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}, {row[1]}")
def test_a_row_is_what_the_model_says(row: list[str], scale: Any) -> None:
    size, gpus, held, added, compute, sent, own, messages = row
    found = re.fullmatch(SIZE, size)
    assert found
    cost = scale.cost(float(found["n"]) * 1e9, int(gpus.replace(",", "")), int(found["mixtures"]))
    said, _, remark = added.partition(": ")
    exact = (cost.held, cost.added, cost.compute, cost.fsdp, cost.sweep + cost.hard, cost.message)
    for text, value in zip((held, said, compute, sent, own, messages), exact, strict=True):
        assert is_rounded(text, value), (text, value)
    assert (remark == "too much") == (cost.held + cost.added > scale.GPU_BYTES)


def test_the_measured_speeds_and_the_messages_of_one_mixture(scale: Any) -> None:
    sweep, copy = (1e12 * scale.measured(method) for method in ("exact, eager", "copy, eager"))
    prose = " ".join(PAGE.split())
    assert f"a sweep takes {sweep:.1f} ps a weight under 17 components, and a copy {copy:.1f} ps" in prose
    soft, hard = (scale.message_bytes(scale.COMPONENTS, 1, hard) for hard in (False, True))
    assert f"For 16 components and one mixture they have {soft} and {hard - soft} bytes" in prose
