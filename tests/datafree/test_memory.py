"""The memory that compressing a checkpoint takes, apart from libraries and compiled kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

MEASURED = """
import re, sys
from pathlib import Path
import softshare as ss

def memory(what):
    return 1024 * int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

small, large = sys.argv[1:]
ss.compress_weights(small, bits=3)  # loads libraries and compiles kernels
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
before = memory("VmHWM")
ss.compress_weights(large, bits=3)
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured by Linux's /proc")
def test_memory_is_below_three_times_the_checkpoint(tmp_path: Path) -> None:
    """The rise in a process that has already compressed a sixth of it. The largest tensor is two fifths of it."""
    paths = [tmp_path / f"{name}.safetensors" for name in ("small", "large")]
    g = torch.Generator().manual_seed(0)
    for path, rows in zip(paths, (512, 3072), strict=True):
        state = {str(k): 0.02 * torch.randn(n * rows, 512, generator=g) for k, n in enumerate((2, 1, 1, 1))}
        safetensors.torch.save_file(state, path)
    command = [sys.executable, "-c", MEASURED, *map(str, paths)]
    rise = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    size = paths[1].stat().st_size
    assert 0.3 * size < rise < 3 * size  # the indices and the file alone are a third
