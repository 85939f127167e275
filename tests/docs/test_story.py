"""The notebook runs from its first cell to its last, and shows what it is committed with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from paths import ROOT

STORY = ROOT / "examples" / "story.ipynb"


def shown(notebook: Any) -> list[list[str]]:
    """The kinds of output of each code cell."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kinds = [[kind for output in cell.outputs for kind in output.get("data", [output.output_type])] for cell in cells]
    return [sorted(of_one) for of_one in kinds]


@pytest.mark.slow
def test_the_story_runs_and_ends_with_a_small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(STORY, as_version=4)
    kept = shown(notebook)
    assert len(notebook.cells) == 10
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert shown(notebook) == kept  # pictures, a table, no warning
    assert sum(kind == "image/png" for kinds in kept for kind in kinds) == 3
    before, size, error_before, error = re.findall(
        r"([\d,]+) bytes -> ([\d,]+) bytes, .*Test error ([\d.]+) % -> ([\d.]+) %",
        notebook.cells[-1].outputs[0].data["text/markdown"],
    )[0]
    assert (tmp_path / "story.sws").stat().st_size == int(size.replace(",", ""))
    assert int(before.replace(",", "")) > 100 * int(size.replace(",", ""))
    assert float(error) < float(error_before) + 0.25  # the noise of 10,000 images
    assert "The network kept its accuracy: " in notebook.cells[-1].outputs[0].data["text/markdown"]


def test_the_story_is_light() -> None:
    assert STORY.stat().st_size < 300_000
