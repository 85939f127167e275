"""What the Python package decodes, in the words of decoders/c/dump.c.

`c_decoder.py list` prints the files that `make test` compares: golden files, attacks, all kept results and networks.
`c_decoder.py seeds` writes small files for the fuzzer, and prints a list of them.
`c_decoder.py compare` decodes them and compares with what dump.c printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import fuzz
from golden.make import recipe
from paths import ROOT
from softshare import codec
from softshare.codec import choice
from softshare.codec import shared_section as shared
from softshare.codec.adaptive.bands import encode_bands
from softshare.codec.adaptive.rangecoder import Bytes as Octets
from softshare.codec.static import code as static_code
from softshare.codec.static.classes import Choice
from softshare.codec.symbols import matrix_shape
from softshare.codec.wire import varint
from softshare.config import EncodeConfig
from softshare.errors import FormatError
from softshare.network.weights import layout
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

MAX_BYTES = 1 << 32
ATTACK_BYTES = 1 << 20  # as in tests/codec/test_attacks.py


def kept_files() -> Iterator[str]:
    """Lines of the list: path, limit of bytes, shapes of a file without names."""
    shapes = _golden_shapes()
    for folder, limit in (
        ("tests/golden", MAX_BYTES), ("tests/attacks", ATTACK_BYTES), ("results", MAX_BYTES),
        ("docs/tuning", MAX_BYTES), ("benchmarks/networks", MAX_BYTES),
    ):  # fmt: skip
        for path in sorted((ROOT / folder).rglob("*.sws")):
            yield line(path, limit, shapes if path.name == "adaptive-none.sws" else None)


def line(path: Path, limit: int = MAX_BYTES, shapes: list[tuple[int, ...]] | None = None) -> str:
    fields = [str(path), str(limit)]
    if shapes is not None:
        fields.append("".join(",".join(map(str, shape)) + ";" for shape in shapes))
    return "\t".join(fields)


def mutated_seeds(folder: Path, few_are_many: bool) -> Iterator[str]:
    """Writes small valid files of every kind, from which the fuzzer starts. Small tensors may take the fast model."""
    folder.mkdir(parents=True, exist_ok=True)
    with fuzz._fast_model(small=few_are_many):
        corpus = fuzz.seeds()
    for k, seed in enumerate(corpus):
        path = folder / f"{k}.sws"
        path.write_bytes(seed.data)
        shapes = None if seed.like is None else [tuple(t.shape) for t in layout(seed.like)[0].values()]
        yield line(path, fuzz.MAX_BYTES, shapes)


def second_version(folder: Path) -> Iterator[str]:
    """Writes small files of version 2: static codes of all forms, bands, scales, static planes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2)
    for k in range(40):
        shape = [(7, 30), (40, 5), (3, 4, 9), (101,), (20, 64)][k % 5]
        rows, cols = matrix_shape(shape)
        n_values = int([2, 3, 17, 256][k % 4])
        values = np.sort(rng.random(n_values - 1).astype(np.float32)) * 4
        book = torch.from_numpy(np.concatenate([[0.0], values]).astype(np.float32))
        indices = np.minimum(n_values - 1, rng.geometric(0.3, rows * cols) - (k % 3 > 0)).astype(np.uint8)
        if not indices.any():
            indices[0] = 1
        scaled = len(shape) > 1 and k % 8 >= 4
        row_scales = torch.from_numpy(rng.integers(-9, 9, rows).astype(np.int8)) if scaled and k % 3 else None
        column_scales = torch.from_numpy(rng.integers(-9, 9, cols).astype(np.int8)) if scaled and k % 3 != 1 else None
        dtype = (torch.float32, torch.float16, torch.bfloat16, torch.float64)[k % 4]
        t = QuantizedTensor("a", shape, dtype, torch.from_numpy(indices), book, row_scales, column_scales)
        head = varint(t.n_nonzero) + b"".join(
            shared.packed_scales(s) for s in (row_scales, column_scales) if s is not None
        )
        if k % 5 == 4:
            coded = shared.Section(head + encode_bands(indices, shape, n_values, 1 + k % 3), bands=True)
        else:
            coded = shared.Section(head + _static(indices, rows, cols, n_values, k, rng), static=True)
        rest = {
            "b": torch.randn(rows, cols, generator=torch.Generator().manual_seed(k)) / 9,
            "c": torch.zeros(3).double(),
        }
        rest["d"] = torch.from_numpy(rng.geometric(0.4, (rows, cols)))
        rest["e"] = rest["b"].to((torch.bfloat16, torch.float16)[k % 2])
        weights = QuantizedWeights((t,), rest, {}, ("a", "b", "c", "d", "e"))
        config = EncodeConfig(speed=("fastest", "smallest")[k % 2], rest_dtype=("float32", "bfloat16")[k // 2 % 2])
        with mock.patch.object(choice, "STATIC_FROM", 1):
            data = codec.encode(weights, config, 1, {"a": coded})
        path = folder / f"{k}.sws"
        path.write_bytes(data)
        yield line(path, ATTACK_BYTES)
        if k < 10:
            path = folder / f"compact-{k}.sws"
            plain = QuantizedTensor("a", shape, dtype, t.indices % 3, book[:3])
            path.write_bytes(
                codec.encode(QuantizedWeights((plain, dataclasses.replace(plain, name="b.c")), {}, {"d": "a"}))
            )
            assert path.read_bytes()[5] == 11
            yield line(path, ATTACK_BYTES)


def _static(indices: Octets, rows: int, cols: int, n_values: int, k: int, rng: np.random.Generator) -> bytes:
    axis, n_tables = [(0, 1), (1, 2 + k % 7), (2, 2 + k % 7)][k % 3]
    classes = rng.integers(0, n_tables, (1, rows, cols)[axis]).astype(np.uint8)
    place = [np.zeros((rows, cols), int), np.arange(rows)[:, None], np.arange(cols)[None, :]][axis]
    of = np.broadcast_to(classes[place], (rows, cols)).reshape(-1)
    counts = np.zeros((n_tables, n_values), np.int64)
    np.add.at(counts, (of, indices), 1)
    counts[counts.sum(1) == 0, 0] = 1  # a class that no row has
    choice = Choice(axis, classes, counts)
    return static_code.encode(indices, rows, cols, n_values, 1 << k % 6, 1 << 6 + k % 3, choice)


def _golden_shapes() -> list[tuple[int, ...]]:
    return [tuple(t.shape) for t in recipe().tensors.values()]


class Shapes(nn.Module):
    """A network of these shapes, for a file without names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        for k, sizes in enumerate(text.split(";")[:-1]):
            shape = tuple(int(size) for size in sizes.split(",") if size)
            self.register_buffer(f"t{k}", torch.empty(shape, device="meta"))


def printed(text: str, brief: bool) -> Iterator[str]:
    """What the package decodes from a line of the list."""
    path, limit, *shapes = text.split("\t")
    return described(Path(path).read_bytes(), int(limit), Shapes(shapes[0]) if shapes else None, brief)


def described(data: bytes, max_bytes: int, like: nn.Module | None, brief: bool) -> Iterator[str]:
    try:
        info = codec.inspect(data)
        yield "inspect ok"
    except FormatError:
        yield "inspect refused"
    try:
        weights = codec.decode(data, like=like, max_bytes=max_bytes)
    except FormatError as error:
        yield f"refused in {error.section} at {error.offset}"
        return
    codecs = {"han": 0, "adaptive": 1}
    tied = {} if like is not None else weights.tied
    yield f"version {info.version} codec {codecs[info.codec]} tensors {len(weights.tensors)} tied {len(tied)}"
    if weights.base:
        yield f"base {weights.base.hex()}"
    for name, tensor in weights.tensors.items():
        yield " ".join(_words(name, tensor, like is None, brief))
    numbers = {name: k for k, name in enumerate(weights.tensors)}
    yield from (f"{name} tied to {numbers[stored]}" for name, stored in tied.items())


def _words(name: str, tensor: QuantizedTensor | Tensor, has_names: bool, brief: bool) -> Iterator[str]:
    yield name
    yield "shared" if isinstance(tensor, QuantizedTensor) else "rest"
    yield str(tensor.dtype).removeprefix("torch.")
    if has_names and len(tensor.shape):
        yield "x".join(map(str, tensor.shape))
    if isinstance(tensor, QuantizedTensor):
        yield f"nonzero {tensor.n_nonzero}"
    dense = tensor.dense() if isinstance(tensor, QuantizedTensor) else tensor
    yield f"own {crc(dense)}"
    if brief:
        return
    if dense.is_floating_point():
        yield f"float32 {crc(dense.float())}"
        yield f"float16 {crc(dense.half())}"
    if isinstance(tensor, QuantizedTensor):
        n = len(tensor.codebook)
        width = torch.uint8 if n <= 256 else torch.uint16 if n <= 65536 else torch.int32
        yield f"index {crc(tensor.indices.int().to(width))}"
        yield f"codebook {crc(tensor.codebook)}"
        for label, scales in (("rows", tensor.row_scales), ("columns", tensor.column_scales)):
            if scales is not None:
                yield f"{label} {crc(scales)}"


def crc(tensor: Tensor) -> str:
    flat = tensor.contiguous().reshape(math.prod(tensor.shape))
    return f"{zlib.crc32(flat.view(torch.uint8).numpy().tobytes()):08x}"


def in_words_of_python(lines: list[str]) -> list[str]:
    """The package decodes all tensors or none, and its errors have no number of a tensor."""
    refused = re.fullmatch(r"refused in tensor \d+ (.*) at (\d+)", lines[-1])
    if refused is None:
        return lines
    return [lines[0], f"refused in tensor {refused[1]!r} at {refused[2]}"]


def differences(files: list[str], dumped: str, brief: bool) -> list[str]:
    """Compares what `dump` printed for these files with what the package decodes."""
    problems = []
    blocks = [block.splitlines() for block in re.split(r"^# ", dumped, flags=re.MULTILINE)[1:]]
    if len(blocks) != len(files):
        problems.append(f"expected {len(files)} files, got {len(blocks)}")
    for text, (path, *got) in zip(files, blocks, strict=False):
        wanted = list(printed(text, brief))
        if path != text.split("\t")[0] or in_words_of_python(got) != wanted:
            problems.append(f"{path}: expected {wanted}, got {got}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "seeds", "second", "compare"])
    parser.add_argument("--files", type=Path, help="the list that dump read")
    parser.add_argument("--dumped", type=Path, help="what dump printed")
    parser.add_argument("--folder", type=Path, help="for the seeds")
    parser.add_argument("--fast", action="store_true", help="seeds whose tensors above 20 weights take the fast model")
    parser.add_argument("--brief", action="store_true", help="only the tensors' own dtypes")
    options = parser.parse_args()
    if options.what == "list":
        sys.stdout.write("".join(text + "\n" for text in kept_files()))
        return 0
    if options.what == "seeds":
        sys.stdout.write("".join(text + "\n" for text in mutated_seeds(options.folder, options.fast)))
        return 0
    if options.what == "second":
        sys.stdout.write("".join(text + "\n" for text in second_version(options.folder)))
        return 0
    files = options.files.read_text(encoding="utf-8").splitlines()
    problems = differences(files, options.dumped.read_text(encoding="utf-8"), options.brief)
    sys.stdout.write("".join(problem + "\n" for problem in problems))
    sys.stdout.write(f"{len(files)} files compared with the Python package, {len(problems)} differ\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
