"""The memory that compressing a checkpoint takes, apart from libraries and compiled kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

HELD = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}  # what is freed goes back to the system at once
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
    rise = int(subprocess.run(command, capture_output=True, text=True, check=True, env=HELD).stdout)
    size = paths[1].stat().st_size
    assert 0.3 * size < rise < 3 * size  # the indices and the file alone are a third


STREAMED = """
import json, re, sys
from pathlib import Path
import softshare as ss
from softshare.datafree import stored
from softshare.codec import encoding

def memory(what):
    return 1024 * int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

folder, how = Path(sys.argv[1]), json.loads(sys.argv[2])
stored.IN_MEMORY = encoding._SPOOL = 1 << 16  # as for a checkpoint that is larger than this
ss.quantize(folder / "0.safetensors", **how)  # loads libraries and compiles kernels
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
before = memory("VmRSS")
ss.quantize(folder, **how).save(folder / "model.sws")
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured by Linux's /proc")
def test_memory_grows_with_the_largest_tensor_and_not_with_the_checkpoint(tmp_path: Path) -> None:
    """24 tensors of 1 MiB in 12 shards: two thirds of them in memory at once would break the bound."""
    g, where = torch.Generator().manual_seed(0), dict[str, str]()
    for k in range(12):
        state = {f"{k}.{j}": 0.02 * torch.randn(256, 1024, generator=g) for j in range(2)}
        safetensors.torch.save_file(state, tmp_path / f"{k}.safetensors")
        where |= dict.fromkeys(state, f"{k}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    command = [sys.executable, "-c", STREAMED, str(tmp_path), json.dumps({"bits": 3})]
    rise = int(subprocess.run(command, capture_output=True, text=True, check=True, env=HELD).stdout)
    assert rise < 16 * 2**20


CALIBRATED = """
import re
from pathlib import Path
import torch
from torch import nn
import softshare as ss

def memory(what):
    return 1024 * int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def work(channels):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(channels, 8, 64), nn.ReLU(), nn.Conv1d(8, 8, 1))
    return ss.quantize(net, bits=4, calibrate=[torch.randn(2, channels, 256)])

work(8)  # loads libraries and compiles kernels
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
before = memory("VmHWM")
work(128)
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured by Linux's /proc")
def test_memory_of_calibrating_a_wide_convolution() -> None:
    """8,192 inputs: a matrix of their products in double precision would take 512 MiB, and eight are needed."""
    command, held = [sys.executable, "-c", CALIBRATED], os.environ | {"OMP_NUM_THREADS": "1"}
    rise = int(subprocess.run(command, capture_output=True, text=True, check=True, env=held).stdout)
    assert rise < 2**30
