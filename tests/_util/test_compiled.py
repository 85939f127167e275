from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_what_was_just_compiled_and_what_was_kept_give_the_same_bits(tmp_path: Path) -> None:
    """A function that calls another has a copy of it in the file that numba keeps, but does not run that at first: the
    two may differ in a last bit, unless the one is inlined into the other.
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", GRADIENTS], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (run.stdout for run in runs)
    assert first == second != ""
    assert list(tmp_path.rglob("*.nbc"))
