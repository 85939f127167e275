"""Other coders of the same indices: a static range coder, and general compressors on packed indices."""

from __future__ import annotations

import bz2
import importlib
import lzma
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from softshare.quantization.quantized import QuantizedWeights

Array = npt.NDArray[Any]
MODEL_BYTES = 4  # per used symbol of a tensor: what a static model is charged for its frequencies
SAMPLE = 1_000_000  # indices on which the packing is chosen and the time projected
LIMIT_S = 60.0  # a method that would take longer is left out
_CHUNK = 1 << 20  # indices packed at a time, a multiple of 8


class SkippedError(Exception):
    """The reason why a method is left out."""


def optional(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise SkippedError(f"needs the package {package}: pip install 'softshare[bench]'") from None


@dataclass(frozen=True)
class Rival:
    """A coder and its input, ready to be timed."""

    name: str
    encode: Callable[[], Any]
    decode: Callable[[Any], object]
    n_bytes: Callable[[Any], int]
    same: Callable[[object], bool]  # whether what was decoded is what was coded
    note: str


# A static range coder


def static_range(weights: QuantizedWeights) -> Rival:
    """One range coder over all tensors. Its model is the frequencies of each tensor's indices."""
    stream = optional("constriction").stream

    def model(counts: Array) -> Any:
        return stream.model.Categorical((counts / counts.sum()).astype(np.float32), perfect=False)

    def encode() -> tuple[Array, list[tuple[Array, Array, int]]]:
        coder, models = stream.queue.RangeEncoder(), []
        for t in weights.shared:
            counts = np.bincount(t.indices.numpy(), minlength=len(t.codebook))
            used = np.flatnonzero(counts)
            models.append((used, counts[used], t.indices.numel()))
            if len(used) > 1:
                rank = np.zeros(len(counts), np.int32)
                rank[used] = np.arange(len(used))
                coder.encode(rank[t.indices.numpy()], model(counts[used]))
        return coder.get_compressed(), models

    def decode(coded: tuple[Array, list[tuple[Array, Array, int]]]) -> list[Array]:
        coder, out = stream.queue.RangeDecoder(coded[0]), []
        for used, counts, n in coded[1]:
            ranks = coder.decode(model(counts), n) if len(used) > 1 else np.zeros(n, np.int32)
            out.append(used.astype(np.uint8 if used[-1] < 256 else np.int32)[ranks])
        return out

    def n_bytes(coded: tuple[Array, list[tuple[Array, Array, int]]]) -> int:
        return int(coded[0].nbytes) + MODEL_BYTES * sum(len(used) for used, _, _ in coded[1])

    def same(decoded: Any) -> bool:
        return all(np.array_equal(t.indices.numpy(), d) for t, d in zip(weights.shared, decoded, strict=True))

    note = f"order-0 model of each tensor, charged {MODEL_BYTES} bytes per used symbol"
    return Rival("static range", encode, decode, n_bytes, same, note)


# General compressors


def compressors() -> dict[str, Callable[[], tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]]]:
    def zstd() -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
        package = optional("zstandard")
        return package.ZstdCompressor(level=19).compress, package.ZstdDecompressor().decompress

    return {
        "xz -9e": lambda: (lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME), lzma.decompress),
        "zstd -19": zstd,
        "bz2 -9": lambda: (lambda data: bz2.compress(data, 9), bz2.decompress),
    }


def general(name: str, weights: QuantizedWeights) -> Rival:
    """A compressor on all indices in order, as whole bytes or as few bits as possible, whichever it makes smaller."""
    compress, decompress = compressors()[name]()
    n_values = max(len(t.codebook) for t in weights.shared)
    bits = max(1, math.ceil(math.log2(n_values)))
    packings = {f"{width} bits per index": width for width in (8 * (1 + (n_values > 256)), bits)}
    sample = _first(weights, SAMPLE)
    sizes, seconds = {}, {}
    for packing, width in packings.items():
        packed = pack(sample, width)
        start = time.perf_counter()
        sizes[packing] = len(compress(packed))
        seconds[packing] = time.perf_counter() - start
    best = min(sizes, key=lambda packing: sizes[packing])
    projected = seconds[best] * weights.n_shared / len(sample)
    if weights.n_shared > SAMPLE and projected > LIMIT_S:
        raise SkippedError(f"would take about {projected:,.0f} s, more than {LIMIT_S:.0f} s")
    data = b"".join(pack(t.indices.numpy(), packings[best]) for t in weights.shared)
    return Rival(name, lambda: compress(data), decompress, len, lambda out: out == data, best)


def _first(weights: QuantizedWeights, n: int) -> Array:
    parts, left = [], n
    for t in weights.shared:
        parts.append(t.indices[:left].numpy())
        left -= len(parts[-1])
    return np.concatenate(parts)


def pack(indices: Array, bits: int) -> bytes:
    """The low bits of each index, the highest first."""
    if bits == 8:
        return indices.astype(np.uint8).tobytes()
    out = []
    for start in range(0, len(indices), _CHUNK):
        wide = indices[start : start + _CHUNK].astype(">u4")[:, None].view(np.uint8)  # (n, 4)
        out.append(np.packbits(np.unpackbits(wide, axis=1)[:, 32 - bits :]).tobytes())
    return b"".join(out)
