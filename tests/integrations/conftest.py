"""Transformers and Lightning take seconds to import: do not even collect their tests for a run without slow ones."""

from __future__ import annotations

from pathlib import Path

import pytest

SLOW = ("test_huggingface.py", "test_lightning.py", "test_pretrained.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    left_out = "not slow" in config.getoption("markexpr")
    return True if left_out and collection_path.name in SLOW else None
