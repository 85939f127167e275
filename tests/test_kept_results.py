"""The results in this repository, where there are any: each agrees with its file, and the page is what they give."""

from __future__ import annotations

from pathlib import Path

import pytest

from softshare.cli import main

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"

pytestmark = pytest.mark.skipif(not RESULTS.is_dir(), reason="no results are kept here")


def test_every_kept_file_is_what_its_result_says() -> None:
    assert main(["verify", str(RESULTS)]) == 0


def test_the_page_is_current() -> None:
    assert main(["results", str(RESULTS), "--check", "--root", str(ROOT)]) == 0
