"""A mutation fuzzer of the `.sws` reader: `make fuzz`, or a short run in the tests.

It flips, cuts, extends and splices valid files. Half of them get a new checksum, so that the reader gets past it. A
reader may do one of two things: raise `FormatError` with section and offset, or return consistent weights that survive
writing and reading again. With a wrong checksum it may only raise. Anything else is a failure: another exception, too
much time or memory, a wrong success.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import io
import multiprocessing
import platform
import resource
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from softshare import codec
from softshare.codec import choice
from softshare.codec.adaptive import bands
from softshare.codec.adaptive import tensor as adaptive
from softshare.codec.base import Base, open_base
from softshare.codec.static import code
from softshare.codec.symbols import matrix_shape
from softshare.config import EncodeConfig
from softshare.errors import ConfigError, FormatError, ModelError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights, index_dtype

MAX_BYTES = 1 << 20  # of decoded tensors
MAX_SECONDS = 5.0  # for one file; none needs a tenth of it
MAX_GROWTH = 64 << 20  # bytes of memory over a run
FAST_ABOVE = 20  # weights, in every second run: the fast model's own threshold is beyond MAX_BYTES


@dataclass(frozen=True, eq=False)
class Seed:
    """A valid file. `like` is the network for a file without names, and `base` that of a file of differences."""

    data: bytes
    config: EncodeConfig
    like: nn.Module | None = None
    base: Base | None = None


@dataclass
class Report:
    n_files: int = 0
    n_refused: int = 0
    n_consistent: int = 0
    sections: Counter[str] = field(default_factory=Counter)  # where files were refused
    slowest: float = 0.0  # seconds
    growth: int = 0  # bytes
    failures: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.n_files += other.n_files
        self.n_refused += other.n_refused
        self.n_consistent += other.n_consistent
        self.sections += other.sections
        self.slowest = max(self.slowest, other.slowest)
        self.growth = max(self.growth, other.growth)
        self.failures += other.failures


class Net(nn.Module):
    """A small network with everything a file can hold: dense, convolution, batch norm, tied tensors, several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(36, 6)
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5).bfloat16()
        self.twin = nn.Linear(4, 5, bias=False)
        self.twin.weight = self.embed.weight
        rng = np.random.default_rng(0)
        self.norm.running_mean = torch.from_numpy(rng.standard_normal(4).astype(np.float32))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("codes", torch.from_numpy(rng.integers(-300, 300, 50)))
        self.register_buffer("stats", torch.from_numpy(rng.standard_normal(50).astype(np.float32)))


def seeds() -> list[Seed]:
    """Valid files of both codecs, with and without names, sparse and dense, with and without a base; and empty ones."""
    base = open_base(Net())
    out = [Seed(codec.encode(QuantizedWeights((), {}, {}), c), c) for c in (EncodeConfig(), EncodeConfig(codec="han"))]
    for k, density in enumerate((0.0, 0.1, 0.5, 1.0)):
        model = Net()
        weights = _quantized(model, density, seed=k)
        for config in (
            EncodeConfig(),
            EncodeConfig(codec="han"),
            EncodeConfig(names="none", rest_dtype="float16"),
            EncodeConfig(codec="han", names="none", codebook_dtype="bfloat16"),
            EncodeConfig(codebook_dtype="float32", rest_dtype="bfloat16"),
        ):
            out.append(Seed(codec.encode(weights, config), config, model if config.names == "none" else None))
        compact = dataclasses.replace(weights, rest={}, order=tuple(t.name for t in weights.shared))
        # The codebook of another one is too large for an outline, and its tensors have the model of small ones.
        if density < 1 and adaptive.FAST_ABOVE != FAST_ABOVE:
            out.append(Seed(codec.encode(compact), EncodeConfig()))
            assert out[-1].data[5] == 11
        if 0 < density < 1:
            out += [Seed(codec.encode(_scaled(weights), c), c) for c in (EncodeConfig(), EncodeConfig(codec="han"))]
        if density:
            delta = _scaled(weights) if density == 0.5 else weights
            for c in (EncodeConfig(), EncodeConfig(codec="han", names="none")):
                delta = dataclasses.replace(delta, base=base.digest, alone=("fc.weight", "conv.bias"))
                out.append(Seed(codec.encode(delta, c), c, model if c.names == "none" else None, base))
        with _large_codes():
            for speed in ("balanced", "fastest"):
                config = EncodeConfig(speed=speed)
                out.append(Seed(codec.encode(_scaled(weights) if density == 0.5 else weights, config), config))
    return out


@contextlib.contextmanager
def _large_codes() -> Iterator[None]:
    """Let small tensors have the static code, in small chunks, and bands."""
    was = choice.STATIC_FROM, code.CHUNK, code.LANES, code.GPU_LANES, bands.FROM
    choice.STATIC_FROM, code.CHUNK, code.LANES, code.GPU_LANES, bands.FROM = 1, 64, 2, 1, 8
    try:
        yield
    finally:
        choice.STATIC_FROM, code.CHUNK, code.LANES, code.GPU_LANES, bands.FROM = was


def _scaled(weights: QuantizedWeights) -> QuantizedWeights:
    """The same indices, with scales for rows, for columns, or for both. Those of rows are all equal."""
    rng, shared = np.random.default_rng(0), []
    for k, t in enumerate(weights.shared):
        rows, columns = matrix_shape(t.shape)
        if len(t.shape) > 1 and k % 4 < 3:
            own = None if k % 4 == 1 else torch.full((rows,), -3, dtype=torch.int8)
            other = None if k % 4 == 0 else torch.from_numpy(rng.integers(-128, 128, columns).astype(np.int8))
            t = dataclasses.replace(t, row_scales=own, column_scales=other)
        shared.append(t)
    return dataclasses.replace(weights, shared=tuple(shared))


def _quantized(model: nn.Module, density: float, seed: int) -> QuantizedWeights:
    rng = np.random.default_rng(seed)
    books = [torch.tensor([0.0, 0.5]), torch.tensor([0.0, -0.1, 0.2, -0.3, 0.4, 0.5])]
    books += [torch.arange(300) / 64] if density == 1.0 else []  # where indices need more than a byte
    shared, rest = [], {}
    order = [name for name in model.state_dict() if name != "twin.weight"]
    for k, name in enumerate(order):
        tensor = model.state_dict()[name]
        if name.startswith(("norm", "mask", "codes", "stats")):
            rest[name] = tensor
            continue
        book = books[k % len(books)]
        indices = rng.integers(1, len(book), tensor.numel()) * (rng.random(tensor.numel()) < density)
        narrow = torch.from_numpy(indices).to(index_dtype(len(book)))
        shared.append(QuantizedTensor(name, tuple(tensor.shape), tensor.dtype, narrow, book))
    return QuantizedWeights(tuple(shared), rest, {"twin.weight": "embed.weight"}, tuple(order))


def mutate(data: bytes, others: list[Seed], in_place: bool, rng: np.random.Generator) -> bytes:
    """One to four changes. In place they keep the length, which more often gets past the header."""
    out = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(0, len(out) + 1))
        end = min(len(out), at + int(rng.integers(1, 1 << int(rng.integers(1, 7)))))
        match rng.integers(0, 3 if in_place else 8):
            case 0 | 1 if at < len(out):
                out[at] ^= 1 << int(rng.integers(0, 8))
            case 2 if at < len(out):
                out[at] = int(rng.choice([0, 1, 2, 127, 128, 255, int(rng.integers(0, 256))]))
            case 3:
                del out[at:]
            case 4:
                out[at:at] = rng.bytes(int(rng.integers(1, 9)))
            case 5:
                del out[at:end]
            case 6:
                out[at:at] = out[at:end]
            case 7:
                other = others[int(rng.integers(0, len(others)))].data
                start = int(rng.integers(0, len(other)))
                out[at:end] = other[start : start + int(rng.integers(1, 64))]
    return bytes(out)


def check(data: bytes, seed: Seed, valid: set[bytes], repaired: bool, report: Report, path: Path | None = None) -> None:
    """Read one file, and report what is not allowed. With a path, also read it from the disk."""
    start = time.perf_counter()
    try:
        problem = _read(data, seed, valid, repaired, report)
        if path is not None:
            _read_from_disk(data, seed, path)
    except Exception as error:  # this is what the fuzzer looks for
        problem = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - start
    report.n_files += 1
    report.slowest = max(report.slowest, seconds)
    if problem is None and seconds > MAX_SECONDS:
        problem = f"{seconds:.1f} s"
    if problem is not None:
        report.failures.append(f"{problem}: {data.hex()}")


def _read(data: bytes, seed: Seed, valid: set[bytes], repaired: bool, report: Report) -> str | None:
    with contextlib.suppress(FormatError):
        codec.inspect(data)
    try:
        weights = codec.decode(data, like=seed.like, max_bytes=MAX_BYTES)
    except FormatError as error:
        report.n_refused += 1
        report.sections[(error.section or "nowhere").split(" ")[0].rstrip(",")] += 1
        return "no section or no offset" if error.section is None or error.offset is None else None
    except (ConfigError, ModelError) as error:  # no network for a file without names, or one of another size
        return None if not data[5] & 2 and isinstance(error, ModelError) == (seed.like is not None) else str(error)
    report.n_consistent += 1
    if not repaired and data not in valid:
        return "success with a wrong checksum"
    return _inconsistency(data, weights, seed)


def _read_from_disk(data: bytes, seed: Seed, path: Path) -> None:
    """The other ways to read, which raise the same errors."""
    path.write_bytes(data)
    for names in (None, ["conv.bias"]):
        with contextlib.suppress(FormatError, ConfigError, ModelError):
            codec.load(path, names, like=seed.like, max_bytes=MAX_BYTES)
        with contextlib.suppress(FormatError, ConfigError, ModelError):
            codec.load(path, names, like=seed.like, base=seed.base, max_bytes=MAX_BYTES)
    with contextlib.suppress(FormatError, ConfigError, ModelError):
        for _ in codec.stream(path, base=seed.base, max_bytes=MAX_BYTES):
            pass
    for name in ("conv.weight", "fc.weight", "stats"):
        with contextlib.suppress(FormatError, ConfigError, ModelError):
            part = codec.load(io.BytesIO(data), [name], rows=range(1, 3), like=seed.like, max_bytes=MAX_BYTES)[name]
            assert len(part) == 2
    with contextlib.suppress(FormatError, ModelError):
        codec.load_into_(Net(), path, base=seed.base)


def _inconsistency(data: bytes, weights: QuantizedWeights, seed: Seed) -> str | None:
    state = _tensors(weights)
    if sum(t.nbytes for t in {id(t): t for t in state.values()}.values()) > MAX_BYTES:
        return "more than the limit"
    info = codec.inspect(data)
    if sum(t.n_bytes for t in info.tensors) + info.overhead_bytes != len(data):
        return "sizes that do not add up"
    nonzero = [t.n_nonzero for t in info.tensors if t.kind == "shared"]
    for t, n_nonzero in zip(weights.shared, nonzero, strict=True):
        if not (t.indices.numel() == t.dense().numel() and t.n_nonzero == n_nonzero and t.codebook.isfinite().all()):
            return f"{t.name}: not what its header says"
    config = EncodeConfig(codec=info.codec, codebook_dtype="float32")  # type: ignore[arg-type]
    written = codec.decode(codec.encode(weights, config))
    again = _tensors(written)
    same = list(again) == list(state) and all(_same(again[name], state[name]) for name in state)
    if not same or (written.base, written.alone) != (weights.base, weights.alone):
        return "another network after writing and reading again"
    return None


def _tensors(weights: QuantizedWeights) -> dict[str, Tensor]:
    """What the file holds. Differences stay differences."""
    return dataclasses.replace(weights, base=b"", alone=()).state_dict()


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether both are equal, NaNs included. A file stores float64 as float32."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    narrow = torch.float32 if a.dtype == torch.float64 else a.dtype
    a, b = a.to(narrow), b.to(narrow)
    return torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


@contextlib.contextmanager
def _fast_model(small: bool) -> Iterator[None]:
    """Let small tensors take the model of large ones."""
    was = adaptive.FAST_ABOVE
    adaptive.FAST_ABOVE = FAST_ABOVE if small else was
    try:
        yield
    finally:
        adaptive.FAST_ABOVE = was


def fuzz(n_files: int, seed: int) -> Report:
    """Mutate and read `n_files` files. The same seed gives the same files."""
    with _fast_model(small=seed % 2 == 1), tempfile.TemporaryDirectory() as folder:
        return _fuzz(n_files, seed, Path(folder) / "mutated.sws")


def _fuzz(n_files: int, seed: int, path: Path) -> Report:
    rng = np.random.default_rng(seed)
    corpus = seeds()
    valid = {s.data for s in corpus}
    report = Report()
    for s in corpus:  # all is compiled and allocated once before memory is measured
        check(s.data, s, valid, False, report, path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for k in range(n_files):
        s = corpus[int(rng.integers(0, len(corpus)))]
        repaired, in_place = k % 2 == 0, k % 4 == 0
        data = mutate(s.data, corpus, in_place, rng)
        if repaired:
            data = data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))
        check(data, s, valid, repaired, report, path if k % 32 == 0 else None)
    report.growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if report.growth > MAX_GROWTH:
        report.failures.append(f"memory grew by {report.growth >> 20} MiB")
    return report


def _worker(job: tuple[int, int]) -> Report:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(3600, exit=True)
    return fuzz(*job)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--log", type=Path, help="append the result to this file")
    options = parser.parse_args()
    start, report, batch = time.perf_counter(), Report(), 10_000
    jobs = [(min(batch, options.files - k), options.seed + k // batch) for k in range(0, options.files, batch)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for part in pool.imap_unordered(_worker, jobs):
            report.add(part)
            seconds = time.perf_counter() - start
            left = seconds / report.n_files * max(0, options.files - report.n_files)
            line = f"\r{report.n_files:,} files, {len(report.failures)} failures, {left:.0f} s left "
            sys.stderr.write(line)
    seconds = time.perf_counter() - start
    lines = [
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, seeds {jobs[0][1]} to {jobs[-1][1]}, {seconds:.0f} s, "
        f"Python {platform.python_version()}, torch {torch.__version__}",
        f"{report.n_files:,} files: {report.n_refused:,} refused, {report.n_consistent:,} read and consistent, "
        f"{len(report.failures)} failures; slowest {report.slowest:.3f} s, memory growth {report.growth >> 20} MiB",
        "refused in: " + ", ".join(f"{name} {n:,}" for name, n in report.sections.most_common()),
        *report.failures[:20],
    ]
    text = "\n".join(lines) + "\n\n"
    sys.stdout.write(f"\n{text}")
    if options.log:
        with options.log.open("a") as log:
            log.write(text)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
