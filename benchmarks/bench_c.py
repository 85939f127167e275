"""Time sws.h against the package's own decoder, on the same files in the same run, one thread: rows for results.csv.

    python benchmarks/bench_c.py [FILE.sws ...]

Both decode all shared tensors of a file into their own dtypes. It is processor time, so other programs disturb it less.
It needs a C compiler and make.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from record import HERE, Results, RunRow, Timing, cpu_name

from softshare import codec
from softshare.config import EncodeConfig
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

ROOT = HERE.parent
FILES = (
    "benchmarks/networks/lenet-300-100.sws", "results/lenet-5-caffe/softshare/seed-0/model.sws",
    "results/wrn-16-4/softshare/seed-0/model.sws", "tests/golden/adaptive.sws", "tests/golden/han.sws",
)  # fmt: skip
LEVELS = torch.tensor([0.0, -0.4, 0.4, -0.9, 0.9, -1.5, 1.5, -2.3, 2.3])  # of the dense tensor, about 3 bits a weight
RUNS = 5
WARM = 3  # decodings in a turn, of which the best counts: the first one meets cold memory


def dense_file(folder: Path) -> Path:
    """A normal 2048 x 2048 tensor with rows of different scale, in the static code."""
    generator = torch.Generator().manual_seed(0)
    scale = 0.5 + torch.rand(2048, 1, generator=generator)
    weights = torch.randn(2048, 2048, generator=generator) * scale
    indices = (weights.reshape(-1, 1) - LEVELS).abs().argmin(1).to(torch.uint8)
    tensor = QuantizedTensor("dense", (2048, 2048), torch.float32, indices, LEVELS)
    path = folder / "dense-3-bit.sws"
    codec.save(QuantizedWeights((tensor,), {}, {}, ()), path, EncodeConfig(speed="balanced"))
    return path


def python_seconds(path: Path) -> float:
    start = time.process_time()
    for tensor in codec.decode(path.read_bytes(), threads=1).shared:
        tensor.dense()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=HERE / "results.csv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Results[RunRow](options.out)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["make", "-s", "-C", ROOT / "decoders/c", f"B={folder}", f"{folder}/speed"], check=True)
        files = options.files or [*(ROOT / name for name in FILES), dense_file(Path(folder))]
        for path in files:
            case = str(path.resolve().relative_to(ROOT)) if path.resolve().is_relative_to(ROOT) else path.name
            weights = codec.decode(path.read_bytes(), threads=1)  # compiles the decoder
            n = sum(t.indices.numel() for t in weights.shared)
            seconds: dict[str, list[float]] = {"numba": [], "C": []}
            for _ in range(RUNS):  # in turns, so that both meet the same machine
                seconds["numba"].append(min(python_seconds(path) for _ in range(WARM)))
                printed = subprocess.run(
                    [f"{folder}/speed", path, str(WARM)], check=True, capture_output=True, text=True
                )
                seconds["C"].append(float(printed.stdout.split()[0]))
            ratio = float(np.median(seconds["numba"]) / np.median(seconds["C"]))
            for method, times in seconds.items():
                note = "processor time" + (f"; {ratio:.2f} times numba's speed" if method == "C" else "")
                results.append(RunRow("c", case, n, method, cpu_name(), Timing.of(times), threads=1, note=note))


if __name__ == "__main__":
    main()
