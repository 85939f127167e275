"""Measure the memory that coding takes beside its input, in its own process.

`memory.py encode|decode FILE CODEC THREADS` loads the input, codes a little so that everything is compiled, and reports
the rise of its own peak resident memory (Linux: VmHWM) in MiB. It does not use `ru_maxrss`, which a process inherits
from the one that starts it.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from cases import synthetic

from softshare.codec import decode, encode
from softshare.config import EncodeConfig
from softshare.config.stages import Codec
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

WARM_UP = [(1100, 1000), (100, 100)]  # shapes for the models of large and of small tensors


def peaks(
    weights: QuantizedWeights, data: bytes, config: EncodeConfig, threads: int
) -> tuple[float | None, float | None]:
    """MiB of encoding, with the bytes, and of decoding, with the indices; None if it cannot be measured."""
    if not Path("/proc/self/status").exists():
        return None, None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights"
        torch.save([(t.name, t.shape, t.dtype, t.indices, t.codebook) for t in weights.shared], file)
        encoding = _child("encode", file, config.codec, threads)
        file.write_bytes(data)
        return encoding, _child("decode", file, config.codec, threads)


def _child(what: str, file: Path, codec: str, threads: int) -> float:
    command = [sys.executable, __file__, what, str(file), codec, str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _status(field: str) -> int:  # KiB
    found = re.search(rf"^{field}:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"/proc/self/status has no {field}")
    return int(found[1])


def main(what: str, file: str, codec: Codec, threads: int) -> None:
    config = EncodeConfig(codec=codec)
    warm = synthetic("", WARM_UP, 0.02, False).make()
    decode(encode(warm, config, threads=threads), threads=threads)
    if what == "encode":
        weights = QuantizedWeights(tuple(QuantizedTensor(*fields) for fields in torch.load(file)), {}, {})
    else:
        data = Path(file).read_bytes()
    before = _status("VmHWM")
    with contextlib.suppress(OSError):  # reset the peak to what is in use
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
    result = encode(weights, config, threads=threads) if what == "encode" else decode(data, threads=threads)
    after = _status("VmHWM")
    del result
    sys.stdout.write(f"{max(0, after - before) / 1024:.1f}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))  # type: ignore[arg-type]
