"""What trainers do to the gradients, and to the weights in the end, in several processes: the result of one."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from callbacks_together import VARIANTS
from processes import run_together

pytestmark = pytest.mark.slow

CASES = [(trainer, kind, way) for trainer, variants in VARIANTS.items() for kind, way in variants]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("variants")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {trainer: run_together(f"{trainer}_together:variants", 2, folder / trainer) for trainer in VARIANTS}


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """In this process, which takes the shares of each batch in turn."""
    runs = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the trainers
        for trainer, kind in {case[:2]: None for case in CASES}:
            runs[trainer, kind] = importlib.import_module(f"{trainer}_together").variant(folder, kind)
    return runs


@pytest.mark.parametrize(("trainer", "kind", "way"), CASES)
def test_it_ends_as_one_process_does(trainer: str, kind: str, way: str, found: Any, alone: Any) -> None:
    """Clipping, bfloat16, float16 with its scaler, and a mean of the weights (Lightning)."""
    one, (first, second) = alone[trainer, kind], (own[f"{kind} {way}"] for own in found[trainer])
    weights = torch.cat([values.flatten() for values in one["retrained"].values()])
    assert float((weights != 0).float().mean()) > 0.1
    for name, values in one["retrained"].items():
        torch.testing.assert_close(first["retrained"][name], values, atol=1e-4, rtol=1e-4)
    assert first["file"] == second["file"]
    assert len(first["file"]) == pytest.approx(len(one["file"]), abs=2)
