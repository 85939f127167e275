"""Functions compiled by numba: their caches notice changes and never change a bit. Without numba they still run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softshare._util.compiled import compiler

GRADIENTS = """
import hashlib

import torch
from torch import nn

import softshare as ss

torch.set_num_threads(1)
torch.manual_seed(0)
digest = hashlib.sha256()
for method in ("exact", "table"):
    model = nn.Linear(37, 101)
    prior = ss.MixturePrior(model, ss.PriorConfig(components=6, method=method))
    with ss.hard_step(prior):
        model(torch.randn(5, 37)).square().mean().backward()
    prior.add_gradients_(tau=0.01, n_examples=10)
    for p in (*model.parameters(), *prior.parameters()):
        digest.update(p.grad.numpy().tobytes())
print(digest.hexdigest())
"""


def name_of(folder: Path) -> str:
    """The name under which numba would cache a function that depends on the modules `a` and `b`."""

    @compiler(folder, ["a", "b"])
    def double(x: int) -> int:
        return 2 * x

    assert double(21) == 42
    return double.__qualname__


def test_the_cached_name_depends_on_every_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without numba, where the function is left alone, no name is changed."""
    monkeypatch.setitem(sys.modules, "numba", type(sys)("numba"))
    monkeypatch.setattr("numba.njit", lambda **options: lambda function: function, raising=False)
    (tmp_path / "a.py").write_text("A = 1")
    first = name_of(tmp_path)
    assert name_of(tmp_path) == first
    (tmp_path / "b.py").write_text("B = 1")
    assert name_of(tmp_path) != first
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it now fails
    assert name_of(tmp_path).endswith("double")


@pytest.mark.slow
def test_new_code_and_cached_code_give_the_same_bits(tmp_path: Path) -> None:
    """Numba compiles a called function into its caller's cache file, but does not run that copy at first. The two may
    differ in a last bit, unless the called function is inlined.
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", GRADIENTS], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (run.stdout for run in runs)
    assert first == second != ""
    assert list(tmp_path.rglob("*.nbc"))
