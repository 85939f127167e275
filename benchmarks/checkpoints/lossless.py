"""Compare `quantize --lossless` with zstd and ZipNN: bytes, and processor time of one thread there and back.

    python benchmarks/checkpoints/lossless.py CHECKPOINT ... --zipnn ENVIRONMENT/bin/python

Each checkpoint is measured as it is, and a checkpoint of float32 also in bfloat16, as a file of safetensors. All ways
start from this file's bytes, and all must give every bit back. Ours is the whole command, without start and compiling:
from the file to the `.sws` file, and from that to tensors. ZipNN runs in an environment of its own (`pip install
zipnn`), in chunks of its default size, from bytes to bytes. Rows are appended to `lossless.csv`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")  # before torch and numba

import safetensors.torch
import torch
import zstandard
from torch import Tensor

import softshare as ss
from softshare.config.settings import Speed
from softshare.network.checkpoint import load_checkpoint

HERE = Path(__file__).parent
COLUMNS = ("time", "checkpoint", "dtype", "bytes", "method", "file_bytes", "ratio", "encode_mb_s", "decode_mb_s")
SPEEDS: tuple[Speed, ...] = ("smallest", "balanced", "fastest")  # balanced is the default
ZIPNN = """
import json, sys, time
from zipnn import ZipNN
path, dtype = sys.argv[1:]
data = open(path, "rb").read()
spent = []
for part in (data[:1 << 20], data):
    start = time.process_time()
    coded = ZipNN(bytearray_dtype=dtype, threads=1).compress(bytearray(part))
    middle = time.process_time()
    back = ZipNN(bytearray_dtype=dtype, threads=1).decompress(coded)
    spent = [middle - start, time.process_time() - middle]
    assert bytes(back) == part
print(json.dumps([len(coded), *spent]))
"""

Figures = tuple[int, float, float]  # bytes, seconds of encoding and of decoding


def timed(encode: Callable[[], int], decode: Callable[[], object]) -> Figures:
    start = time.process_time()
    n_bytes = encode()
    middle = time.process_time()
    decode()
    return n_bytes, middle - start, time.process_time() - middle


def ours(path: Path, folder: Path, speed: Speed) -> Figures:
    config = ss.EncodeConfig(speed=speed)
    small = {"a": torch.randn(300, 300), "b": torch.randn(300, 300).bfloat16()}
    file = folder / "lossless.sws"
    ss.quantize(small, lossless=True, config=config).save(file)
    ss.load(file)  # everything is compiled
    found: dict[str, Tensor] = {}
    figures = timed(
        lambda: ss.quantize(path, lossless=True, config=config).save(file), lambda: found.update(ss.load(file))
    )
    wanted = safetensors.torch.load_file(path)
    if set(found) != set(wanted) or not all(same(found[name], t) for name, t in wanted.items()):
        raise SystemExit(f"{path}: the tensors that came back are others")
    return figures


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def zstd(path: Path, level: int) -> Figures:
    data, coded, back = path.read_bytes(), b"", b""

    def encode() -> int:
        nonlocal coded
        coded = zstandard.ZstdCompressor(level=level).compress(data)
        return len(coded)

    def decode() -> None:
        nonlocal back
        back = zstandard.ZstdDecompressor().decompress(coded)

    figures = timed(encode, decode)
    if back != data:
        raise SystemExit(f"{path}: zstd gave other bytes back")
    return figures


def zipnn(path: Path, dtype: str, python: str) -> Figures:
    command = [python, "-c", ZIPNN, str(path), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    n_bytes, encode, decode = json.loads(done.stdout.strip().splitlines()[-1])
    return int(n_bytes), float(encode), float(decode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--zipnn", metavar="PYTHON", help="the interpreter of an environment with ZipNN")
    parser.add_argument("--out", type=Path, default=HERE / "lossless.csv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    new = not options.out.exists()
    with tempfile.TemporaryDirectory() as name, options.out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        for source in options.checkpoints:
            state = {k: t.contiguous() for k, t in load_checkpoint(source).items()}
            for dtype in (torch.float32, torch.bfloat16):
                shown, path = str(dtype).removeprefix("torch."), Path(name) / "model.safetensors"
                cast = {k: t.to(dtype) if t.is_floating_point() else t for k, t in state.items()}
                safetensors.torch.save_file({k: t.clone() for k, t in cast.items()}, path)
                n = path.stat().st_size
                ways = {f"softshare {s}": lambda p=path, s=s: ours(p, Path(name), s) for s in SPEEDS}
                ways |= {f"zstd -{level}": lambda p=path, level=level: zstd(p, level) for level in (3, 19)}
                if options.zipnn:
                    ways["ZipNN"] = lambda p=path, d=shown: zipnn(p, d, options.zipnn)
                for method, measure in ways.items():
                    n_bytes, encode, decode = measure()
                    now = datetime.now(UTC).isoformat(timespec="seconds")
                    speeds = (f"{n / 1e6 / max(seconds, 1e-9):.1f}" for seconds in (encode, decode))
                    row = (now, source.stem, shown, n, method, n_bytes, f"{n_bytes / n:.4f}", *speeds)
                    writer.writerow(row)
                    file.flush()
                    sys.stdout.write("  ".join(map(str, row)) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
