"""What all tests share."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from hypothesis import settings

# Tests run in two processes; two threads in each would fight over two cores, many times slower than one each.
torch.set_num_threads(1)

# Without a GPU, Triton's kernels run in its interpreter. It must know before it is loaded.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

# The same examples on every machine, and no deadline: how long one takes says nothing on a busy machine.
settings.register_profile("softshare", deadline=None, derandomize=True)
settings.load_profile("softshare")

# What lies on the developer's disk is no part of a test, but for the kept results of CIFAR-10.
CIFAR10 = os.environ.pop("SOFTSHARE_DATA", None)


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's file may put its folder on Python's path. The next test, and its processes, must not find it there."""
    monkeypatch.setattr(sys, "path", list(sys.path))
