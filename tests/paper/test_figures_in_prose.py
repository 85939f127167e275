"""Figures in prose: the text of each marker, against numbers computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from softshare.errors import ConfigError
from softshare.paper.figures_in_prose import Row, files_below, fill

ROWS: list[Row] = [
    {"method": "dns", "seed": 0, "file_bytes": 1_000, "n_weights": 10_000, "error": 1.5},
    {"method": "dns", "seed": 1, "file_bytes": 3_000, "n_weights": 10_000, "error": 2.5},
    {"method": "softshare-small", "seed": 0, "file_bytes": "1234.5", "n_weights": "10000", "error": "0.5"},
]


def lookup(source: str) -> list[Row]:
    return ROWS if source == "here" else []


def filled(marker: str) -> str:
    text = fill(f"a <!-- = {marker} -->old<!-- / --> b", lookup)
    assert text.startswith(f"a <!-- = {marker} -->")
    assert text.endswith("<!-- / --> b")
    return text.removeprefix(f"a <!-- = {marker} -->").removesuffix("<!-- / --> b")


FIGURES = {
    "here method=dns seed=0 file_bytes": "1,000",
    "here method=soft* file_bytes": "1,234",
    "here method=soft* file_bytes:.1f": "1234.5",
    "here method=soft* method": "softshare-small",
    "here method=dns seed=1 100*file_bytes/n_weights:.1f": "30.0",
    "here method=dns seed=1 6000/file_bytes": "2",
    "here method=dns mean(file_bytes)": "2,000",
    "here method=dns mean(4*n_weights/file_bytes):.1f": "20.0",  # of the means: not (40 + 13.3) / 2
    "here method=dns min(4*n_weights/file_bytes):.1f": "13.3",
    "here max(error):g": "2.5",
    "here median(error):g": "1.5",
    "here rows": "3",
    "here method=dns seeds": "2 seeds",
    'here "method=softshare-small" seeds': "one seed",
}


def test_a_figure() -> None:
    assert {marker: filled(marker) for marker in FIGURES} == FIGURES


def test_filling_again_changes_nothing() -> None:
    once = fill("x <!-- = here rows --><!-- / -->, y <!-- = here max(error):g -->9<!-- / -->", lookup)
    assert once == "x <!-- = here rows -->3<!-- / -->, y <!-- = here max(error):g -->2.5<!-- / -->"
    assert fill(once, lookup) == once
    assert (
        fill("no marker <!-- results -->\n<!-- /results -->\n", lookup)
        == "no marker <!-- results -->\n<!-- /results -->\n"
    )


def test_a_table() -> None:
    head = "<!-- table here sort:error | method = method | error % = error:.1f -->"
    text = fill(f"before\n\n{head}\n\nold\n\n<!-- /table -->\n\nafter\n", lookup)
    lines = ["| method | error % |", "| --- | --- |", "| softshare-small | 0.5 |", "| dns | 1.5 |", "| dns | 2.5 |"]
    assert text == "\n".join(["before", "", head, "", *lines, "", "<!-- /table -->", "", "after", ""])
    assert fill(text, lookup) == text


MISTAKES = {
    "a <!-- = there rows --><!-- / -->": "expected rows in there, found none",
    "a <!-- = here method=dns file_bytes --><!-- / -->": r"expected one row, found 2; .* mean\(file_bytes\)",
    "a <!-- = here seed=1 bytes --><!-- / -->": "expected a column .*, got bytes; its columns are method, seed",
    "a <!-- = here seed=1 method:.1f --><!-- / -->": "expected a number in method, got 'dns'",
    "a <!-- = here seed=1 file_bytes+1 --><!-- / -->": r"expected a figure such as .*, got file_bytes\+1",
    "a <!-- = here rows -->3": "expected <!-- / --> after each",
    "<!-- table here | a = seed -->\n| a |\n": "expected .*<!-- /table --> after each",
    "- a\n  <!-- = here rows -->3<!-- / --> b": "<!-- = here rows -->: a marker may not begin a line",
}


def test_mistakes() -> None:
    for text, message in MISTAKES.items():
        with pytest.raises(ConfigError, match=message):
            fill(text, lookup)


def test_files_of_a_repository(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.csv").write_text("name,size\nx,12\ny,30\n")
    rows = files_below(tmp_path)
    assert (
        fill("a <!-- = docs/a.csv name=y size --><!-- / -->", rows) == "a <!-- = docs/a.csv name=y size -->30<!-- / -->"
    )
    with pytest.raises(ConfigError, match=r"expected rows in docs/b\.csv, found none"):
        fill("a <!-- = docs/b.csv size --><!-- / -->", rows)
