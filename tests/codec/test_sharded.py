"""Loading into a network that several processes hold: each decodes what it owns, where the code can be cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import softshare as ss
from loading_together import COLUMNS, CONFIGS, ROWS
from processes import run_together

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    return run_together("loading_together:runs", 2, folder)


@pytest.mark.parametrize("code", CONFIGS)
def test_it_loads_what_one_process_does(code: str, found: list[dict[str, Any]], folder: Path) -> None:
    expected = ss.load(folder / f"{code}.sws")
    assert sorted(expected) == ["first.weight", "last.weight"]
    for own in found:
        for name, tensor in expected.items():
            assert torch.equal(own[code]["loaded"][name], tensor), name


def test_nothing_is_sent_of_what_can_be_cut(found: list[dict[str, Any]]) -> None:
    """The adaptive code cannot be cut: one process decodes the tensor, and sends it whole."""
    kinds = {code: found[0][code]["kinds"] for code in CONFIGS}
    assert kinds["static"]["first.weight"].static
    assert kinds["static"]["last.weight"].static
    assert kinds["bands"]["first.weight"].bands
    assert not kinds["bands"]["last.weight"].planes
    assert [own[code]["sent"] for own in found for code in ("static", "bands")] == [0] * 4
    assert not kinds["adaptive"]["first.weight"].bands
    assert found[0]["adaptive"]["sent"] >= ROWS * COLUMNS
