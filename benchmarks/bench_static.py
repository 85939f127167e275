"""Measure the static code of dense tensors against version 1: bench_static.py [--device cuda]; see README.md."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import nncodec_compare
import numpy as np
import torch
from record import Budget, Results, Row, RunRow, Timing, timed

from softshare.codec import decode, encode
from softshare.codec.header import Shared
from softshare.codec.header_reading import read_header, read_prefix
from softshare.codec.wire import Reader
from softshare.config import EncodeConfig
from softshare.quantization.description_length import entropy_bits
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

HERE = Path(__file__).parent
CLOCK = time.process_time  # of one thread: other programs disturb it less than the time on the wall
NOTE = "processor time"
PLANES = Budget(0.5, 1, 5)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def dense(rows: int, cols: int, bits: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> QuantizedTensor:
    """Normal weights whose rows and columns differ in scale by about a tenth, on a grid of about `bits` bits."""
    rng = np.random.default_rng(seed)
    n_values = 2 ** (bits + 1) + 1
    step = 4.13 / 2**bits  # the entropy of a normal number on this grid is about `bits`
    scales = np.exp(0.1 * rng.standard_normal((rows, 1))) * np.exp(0.1 * rng.standard_normal((1, cols)))
    levels = np.rint(rng.standard_normal((rows, cols), np.float32) * scales / step)
    index = np.minimum(2 * np.abs(levels) - (levels > 0), n_values - 1).astype(np.uint8)
    book = torch.tensor([0.0, *(((k + 1) // 2) / 64 * (1 if k % 2 else -1) for k in range(1, n_values))])
    return QuantizedTensor("w", (rows, cols), dtype, torch.from_numpy(index.reshape(-1)), book)


def on_the_cpu(results: Results[Row], quick: bool, nncodec_python: str | None) -> None:
    """Version 1 and both forms of the static code in one run, on one thread, in processor time."""
    torch.set_num_threads(1)
    rows, cols = (512, 1024) if quick else (2048, 2048)
    warm_up = QuantizedWeights((dense(300, 300, 3),), {}, {})
    for speed in ("smallest", "balanced", "fastest"):
        decode(encode(warm_up, EncodeConfig(speed=speed), threads=1), threads=1)
    for bits in (3, 4):
        weights = QuantizedWeights((dense(rows, cols, bits),), {}, {})
        blank = Row("codec", f"dense, {bits} bits", rows * cols, weights.n_nonzero, entropy_bits(weights) / 8, "", 0)
        of_version_1 = 0.0
        for row in measured(weights, blank, nncodec_python):
            of_version_1 = of_version_1 or row.n_bytes
            results.append(row)
            assert row.encode is not None
            assert row.decode is not None
            say(
                f"{row.case:14} {row.method:17} {row.n_bytes:>10,} bytes, {row.n_bytes / row.order0_bytes:.4f} of "
                f"order 0, {row.n_bytes / of_version_1:.4f} of version 1; encode {row.encode.mw_s(row.n_weights):.0f}, "
                f"decode {row.decode.mw_s(row.n_weights):.0f} M weights/s"
            )


def measured(weights: QuantizedWeights, blank: Row, nncodec_python: str | None) -> Iterator[Row]:
    for method, config in (
        ("adaptive", EncodeConfig(speed="smallest")),
        ("static, 4 lanes", EncodeConfig(speed="balanced")),
        ("static, 32 lanes", EncodeConfig(speed="fastest")),
    ):
        budget = Budget(0.1, 1, 1) if method == "adaptive" else Budget(1.0, 5, 15)
        data, encoding = timed(partial(encode, weights, config, threads=1), budget, CLOCK)
        back, decoding = timed(partial(decode, data, threads=1), budget, CLOCK)
        if not torch.equal(back.shared[0].indices, weights.shared[0].indices):
            raise SystemExit(f"{blank.case}: {method} does not decode to what was coded")
        yield replace(blank, method=method, n_bytes=len(data), encode=encoding, decode=decoding, note=NOTE)
    if nncodec_python:
        n_bytes, encoding, decoding, note = nncodec_compare.same_indices(weights, nncodec_python)
        yield replace(blank, method="nncodec integer", n_bytes=n_bytes, encode=encoding, decode=decoding, note=note)
    else:
        say(f"NNCodec skipped: {nncodec_compare.INSTALL}; then --nncodec-python")


def planes(quick: bool) -> None:
    """Whole tensors without loss: the static code of byte planes against the adaptive one and zstd -19."""
    n = (256, 1024) if quick else (1024, 1024)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(n).astype(np.float32) * 0.02)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        t = x.to(dtype)
        raw = t.view(torch.uint8).numpy().tobytes()
        for method, speed in (("adaptive planes", "smallest"), ("static planes", "fastest")):
            config = EncodeConfig(speed=speed)  # type: ignore[arg-type]
            weights = QuantizedWeights((), {"x": t}, {})
            data, encoding = timed(partial(encode, weights, config, threads=1), PLANES, CLOCK)
            back, decoding = timed(partial(decode, data, threads=1), PLANES, CLOCK)
            if not torch.equal(back.rest["x"], t):
                raise SystemExit(f"{dtype}: {method} does not decode to what was coded")
            report(str(dtype)[6:], method, len(data), len(raw), encoding, decoding)
        try:
            import zstandard
        except ImportError:
            say("zstd skipped: install zstandard")
            continue
        packer, unpacker = zstandard.ZstdCompressor(19), zstandard.ZstdDecompressor()
        packed, encoding = timed(partial(packer.compress, raw), Budget(0.1, 1, 1), CLOCK)
        _, decoding = timed(partial(unpacker.decompress, packed), PLANES, CLOCK)
        report(str(dtype)[6:], "zstd -19", len(packed), len(raw), encoding, decoding)


def report(case: str, method: str, n_bytes: int, n_raw: int, encoding: Timing, decoding: Timing) -> None:
    say(
        f"{case:14} {method:17} {n_bytes:>10,} bytes, {n_bytes / n_raw:.4f} of raw; encode "
        f"{n_raw / encoding.median / 1e3:.0f}, decode {n_raw / decoding.median / 1e3:.0f} MB/s"
    )


def on_the_gpu(results: Results[RunRow], shapes: list[tuple[int, int]]) -> None:
    """The kernel alone, by events, and a tensor from the host's bytes; every bit is compared with the CPU's."""
    from softshare.codec.static import decode_triton, gpu

    device, name = torch.device("cuda"), torch.cuda.get_device_name()
    original = decode_triton.decode
    for rows, cols in shapes:
        drawn = dense(rows, cols, 3)
        for method, speed in (("static, 4 lanes", "balanced"), ("static, 32 lanes", "fastest")):
            data = encode(QuantizedWeights((drawn,), {}, {}), EncodeConfig(speed=speed))  # type: ignore[arg-type]
            reader = Reader(io.BytesIO(data), len(data) - 4)
            header = read_header(reader, read_prefix(reader))
            entry, book = header.entries[0], header.codebooks[0]
            if not isinstance(entry.kind, Shared) or not entry.kind.static:
                raise SystemExit(f"{method}: the tensor is not static")
            section = data[entry.offset : entry.offset + entry.n_bytes]
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                kind = replace(entry.kind, dtype=str(dtype)[6:])
                own = replace(entry, kind=kind)
                target = torch.empty(entry.shape, dtype=dtype, device=device)
                pending, calls = gpu.Pending(device), []

                def seen(*arguments: Any, calls: list[Any] = calls) -> None:
                    calls.append(arguments)
                    original(*arguments)

                decode_triton.decode = seen
                gpu.decode_into(section, own, book, target, pending)
                pending.check()
                decode_triton.decode = original
                if not torch.equal(target.cpu(), replace(drawn, dtype=dtype).dense()):
                    raise SystemExit(f"{method}, {dtype}: the GPU does not decode to the same bits")
                seconds = on_device(lambda calls=calls: original(*calls[0]))  # type: ignore[misc]
                start = time.perf_counter()
                gpu.decode_into(section, own, book, target, pending)
                pending.check()
                whole = time.perf_counter() - start
                case = f"dense, 3 bits to {str(dtype)[6:]}"
                note = f"{rows} x {cols}, same bits; {1e3 * whole:.2f} ms from the host's bytes"
                results.append(RunRow("static", case, entry.n, method, name, Timing.of(seconds), note=note))
                say(f"{case:24} {method:17} {entry.n / np.median(seconds) / 1e9:.0f} G weights/s; {note}")


def on_device(run: Callable[[], None]) -> list[float]:
    for _ in range(3):
        run()
    seconds = []
    for _ in range(15):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="small tensors")
    parser.add_argument("--nncodec-python", default=os.environ.get("SOFTSHARE_NNCODEC_PYTHON"), help="see README.md")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="CSV file that rows are appended to")
    options = parser.parse_args()
    if options.device == "cuda":
        on_the_gpu(Results(options.out), [(1024, 4096)] if options.quick else [(4096, 4096), (8192, 16384)])
        return
    on_the_cpu(Results(options.out), options.quick, options.nncodec_python)
    planes(options.quick)


if __name__ == "__main__":
    sys.exit(main())
