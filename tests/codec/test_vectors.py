"""docs/format-vectors.md is what `vectors.py` writes today: tiny files decode step by step as the page says."""

from __future__ import annotations

import vectors


def test_the_page_is_up_to_date() -> None:
    assert vectors.PAGE.read_text(encoding="utf-8") == vectors.page()
