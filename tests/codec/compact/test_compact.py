"""The compact form of small files (docs/format.md 15)."""

from __future__ import annotations

import dataclasses
import io
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import primer
from paths import ROOT
from softshare import codec
from softshare.codec.adaptive.rangecoder import finish, start_decoding, start_encoding
from softshare.codec.compact import outline
from softshare.codec.compact.fields import COUNT, LETTER, SIGN, Fields, new_states
from softshare.codec.compact.primer import PRIMER
from softshare.codec.header_reading import read_header, read_prefix
from softshare.codec.wire import Reader, varint
from softshare.config import EncodeConfig
from softshare.errors import FormatError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights, index_dtype

PLAIN = EncodeConfig(compact=False)
COMPACT = b"\x02\x0b"  # version and flags


def tensor(name: str, shape: tuple[int, ...], values: list[float], density: float = 0.3) -> QuantizedTensor:
    rng = np.random.default_rng(len(name) + sum(shape))
    book = torch.tensor([0.0, *values])
    drawn = rng.integers(1, len(book), int(np.prod(shape))) * (rng.random(int(np.prod(shape))) < density)
    return QuantizedTensor(
        name, shape, torch.float32, torch.from_numpy(drawn.reshape(-1)).to(index_dtype(len(book))), book
    )


def network(**changes: QuantizedTensor) -> QuantizedWeights:
    tensors = {
        "conv1.weight": tensor("conv1.weight", (6, 1, 3, 3), [-0.25, 0.5]),
        "conv1.bias": tensor("conv1.bias", (6,), [-0.25, 0.5]),
        "fc.weight": tensor("fc.weight", (10, 54), [0.1, -0.1, 0.3]),
        "fc.bias": tensor("fc.bias", (10,), [0.1, -0.1, 0.3], 0.0),
        "other": tensor("other", (), [0.1, -0.1, 0.3], 1.0),
    } | changes
    return QuantizedWeights(tuple(tensors.values()), {}, {"twin.weight": "fc.weight"}, tuple(tensors))


def same(a: QuantizedWeights, b: QuantizedWeights) -> bool:
    """Names in their order, ties, dtypes and every bit of the decoded tensors."""
    one, other = a.state_dict(), b.state_dict()
    return list(one) == list(other) and all(
        one[n].dtype == other[n].dtype and torch.equal(one[n], other[n]) for n in one
    )


def sealed(code: bytes) -> bytes:
    body = b"\x89SWS" + COMPACT + code
    return body + struct.pack("<I", zlib.crc32(body))


def test_a_small_network_has_the_compact_form_and_decodes_to_the_same() -> None:
    weights = network()
    data, plain = codec.encode(weights), codec.encode(weights, PLAIN)
    assert (data[4:6], plain[4]) == (COMPACT, 1)
    assert len(data) < len(plain) - 30
    assert same(codec.decode(data), codec.decode(plain))
    assert codec.decode(data).tied == weights.tied
    assert codec.encode(codec.decode(data)) == data
    assert codec.encode(codec.decode(data), PLAIN) == plain


def test_inspect_tells_what_the_ordinary_form_tells() -> None:
    data, plain = (codec.inspect(codec.encode(network(), config)) for config in (EncodeConfig(), PLAIN))
    assert (data.version, data.codec) == (2, "adaptive")
    for ours, theirs in zip(data.tensors, plain.tensors, strict=True):
        assert dataclasses.replace(ours, n_bytes=0) == dataclasses.replace(theirs, n_bytes=0)
        assert ours.n_bytes <= theirs.n_bytes
    assert data.overhead_bytes > 10


@pytest.mark.parametrize("kind", ["path", "object"])
def test_some_tensors_and_some_rows(kind: str, tmp_path: Path) -> None:
    data = codec.encode(network())
    (tmp_path / "m.sws").write_bytes(data)
    source: Callable[[], Path | io.BytesIO] = (
        (lambda: tmp_path / "m.sws") if kind == "path" else (lambda: io.BytesIO(data))
    )
    whole = codec.load(source())
    some = codec.load(source(), ["twin.weight", "conv1.bias"])
    assert list(some) == ["twin.weight", "conv1.bias"]
    assert all(torch.equal(some[n], whole[n]) for n in some)
    part = codec.load(source(), ["fc.weight", "twin.weight"], rows=range(3, 7))
    assert torch.equal(part["twin.weight"], whole["fc.weight"][3:7])
    assert torch.equal(part["fc.weight"], whole["fc.weight"][3:7])
    assert sorted(name for name, _ in codec.stream(tmp_path / "m.sws")) == sorted(whole)


def test_it_loads_into_a_network() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    shared = [tensor(n, tuple(t.shape), [0.5, -0.5]) for n, t in net.state_dict().items()]
    data = codec.encode(QuantizedWeights(tuple(shared), {}, {}))
    assert data[4:6] == COMPACT
    codec.load_into_(net, io.BytesIO(data))
    assert all(torch.equal(net.state_dict()[t.name], t.dense()) for t in shared)


@pytest.mark.parametrize(
    "weights",
    [
        dataclasses.replace(network(), rest={"mean": torch.ones(4)}, order=()),
        network(big=tensor("big", (1 << 10, (1 << 10) + 1), [0.5], 0.0)),
        network(dense=tensor("dense", (300, 500), [k / 64 for k in range(1, 9)], 1.0)),
        network(**{"x" * 900: tensor("x" * 900, (3,), [0.5]), "y" * 900: tensor("y" * 900, (3,), [0.5])}),
    ],
    ids=["rest", "values", "bytes", "outline"],
)
def test_what_it_does_not_serve_is_written_as_before(weights: QuantizedWeights) -> None:
    assert codec.encode(weights)[5] != COMPACT[1]
    assert codec.encode(weights) == codec.encode(weights, PLAIN)


@pytest.mark.parametrize("config", [EncodeConfig(codec="han"), EncodeConfig(names="none")])
def test_other_settings_have_no_compact_form(config: EncodeConfig) -> None:
    assert codec.encode(network(), config)[4] == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_codebooks_keep_every_bit(dtype: str) -> None:
    """Also values that share zero bits, the largest, the smallest, equal ones of both signs."""
    half = [2.0**-14, 0.1, -0.1, 0.25, -3.0, 3.0, 65504.0]
    values = {"float32": [1e-40, 1.5e-40, 0.1, -7.25, 3e38], "float16": half, "bfloat16": [1e-38, 0.1, -0.1, 1e38]}
    books = [torch.tensor([0.0, *v]).to(getattr(torch, dtype)).float() for v in (values[dtype], [0.5, -0.75], [])]
    shared = [
        QuantizedTensor(f"t{k}", (9,), torch.float32, (torch.arange(9) % len(b)).to(torch.uint8), b)
        for k, b in enumerate(books)
    ]
    data = codec.encode(QuantizedWeights(tuple(shared), {}, {}), EncodeConfig(codebook_dtype=dtype))  # type: ignore[arg-type]
    assert data[4:6] == COMPACT
    for ours, theirs in zip(codec.decode(data).shared, shared, strict=True):
        assert torch.equal(ours.codebook.view(torch.int32), theirs.codebook.view(torch.int32))


def test_the_primer_is_the_header_of_the_made_up_network() -> None:
    assert primer.primer() == PRIMER
    data = np.frombuffer(PRIMER, np.uint8).copy()
    fields = Fields(new_states(), start_decoding(data), data)
    found = outline.code_outline(fields)
    reader = Reader(io.BytesIO(found), len(found))
    header = read_header(reader, read_prefix(reader))
    assert [e.name for e in header.entries] == [e.name for e in primer.header()[0].entries]
    assert [e.shape for e in header.entries] == [e.shape for e in primer.header()[0].entries]


@pytest.mark.parametrize("numbers", [[0], [1, 2, 3, 7, 8], [2**41 - 2, 0, 2**20, 12345678], list(range(200))])
def test_numbers_and_trees(numbers: list[int]) -> None:
    writer = Fields(new_states(), start_encoding(), np.zeros(100, np.uint8), Reader(io.BytesIO(), 0))
    for n in numbers:
        writer.number(COUNT, n)
        writer.bit(SIGN, n & 1)
        writer.tree(LETTER, 8, n & 255)
    data = np.frombuffer(finish(writer.coder, writer.data), np.uint8).copy()
    reader = Fields(new_states(), start_decoding(data), data)
    for n in numbers:
        assert reader.number(COUNT) == n
        assert reader.bit(SIGN) == n & 1
        assert reader.tree(LETTER, 8) == n & 255


def broken() -> Iterator[tuple[str, bytes, str]]:
    data = codec.encode(network())
    code = data[6:-4]
    yield "nothing", sealed(b""), "header"
    yield "ones", sealed(b"\xff" * 40), "header"
    yield "cut", sealed(code[: len(code) // 2]), "tensor"
    yield "longer", sealed(code + b"\x01"), "tensor 'other'"
    yield "a zero more", sealed(code + b"\0"), "tensor 'other'"
    yield "much longer", sealed(code + bytes(range(1, 50))), "tensor 'other'"


@pytest.mark.parametrize(("data", "section"), [pytest.param(d, s, id=i) for i, d, s in broken()])
def test_a_broken_code_is_refused_in_its_place(data: bytes, section: str) -> None:
    with pytest.raises(FormatError, match=r"expected .* got") as caught:
        codec.decode(data, max_bytes=1 << 20)
    assert caught.value.section is not None
    assert caught.value.section.startswith(section)
    assert caught.value.offset == 6


def test_too_many_values_of_the_outline_are_refused_before_anything_is_decoded() -> None:
    weights = network(big=tensor("big", (1 << 10, 1 << 9), [0.5], 0.0))
    data = codec.encode(weights)
    assert data[4:6] == COMPACT
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softshare.codec.compact.unpacking.MOST_VALUES", 1 << 19)
        with pytest.raises(FormatError, match="at most 524288 values in a compact file") as caught:
            codec.inspect(data)
    assert (caught.value.section, caught.value.offset) == ("header", 6)
    with pytest.raises(FormatError, match="bytes of decoded tensors"):
        codec.decode(data, max_bytes=1 << 20)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """It was read as a whole, so a file with a hole of 6 GB, which takes no space, needed 12 GB of memory."""
    (tmp_path / "m.sws").write_bytes(codec.encode(network()))
    os.truncate(tmp_path / "m.sws", 1 << 28)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="at most 67108864 bytes in a compact file"):
            codec.inspect(tmp_path / "m.sws")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("flags", [8, 9, 10, 15, 27])
def test_other_flags_beside_compact_are_refused(flags: int) -> None:
    body = b"\x89SWS\x02" + bytes([flags]) + codec.encode(network())[6:-4]
    with pytest.raises(FormatError, match="flags below 8") as caught:
        codec.decode(body + struct.pack("<I", zlib.crc32(body)))
    assert (caught.value.section, caught.value.offset) == ("header", 5)


@pytest.mark.parametrize("name", ["lenet-5-caffe/softshare-small", "lenet-300-100/softshare"])
def test_a_kept_file_is_smaller_than_in_version_1(name: str) -> None:
    data = (ROOT / "results" / name / "seed-0" / "model.sws").read_bytes()
    plain = codec.encode(codec.decode(data), PLAIN)
    assert (plain[4], data[4:6]) == (1, COMPACT)
    assert same(codec.decode(data), codec.decode(plain))
    assert codec.encode(codec.decode(plain)) == data
    assert len(data) < 0.99 * len(plain)


def test_varints_of_the_outline_are_minimal() -> None:
    fields = Fields(new_states(), start_encoding(), np.zeros(100, np.uint8), Reader(io.BytesIO(varint(300)), 2))
    assert fields.varint(COUNT) == 300
    assert bytes(fields.out) == varint(300)
