"""Files with the static code and with bands: which code a tensor gets, parts of tensors, and the GPU's decoder."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kernels import HAS_GPU, needs_gpu, needs_triton
from softshare import codec
from softshare.codec import choice, parallel, placing, reading, shared_section
from softshare.codec.adaptive import bands
from softshare.codec.header import Rest, Shared
from softshare.codec.header_reading import read_header, read_prefix
from softshare.codec.static import code, gpu
from softshare.codec.static import planes as static_planes
from softshare.codec.wire import Reader
from softshare.config import EncodeConfig
from softshare.config.settings import Speed
from softshare.errors import ConfigError, FormatError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

ALL = [torch.float32, torch.float16, torch.bfloat16]


def tensor(
    name: str, shape: tuple[int, ...], density: float = 0.8, dtype: torch.dtype = torch.float32, scaled: bool = False
) -> QuantizedTensor:
    rng = np.random.default_rng(len(name) + sum(shape))
    n = int(np.prod(shape))
    drawn = np.minimum(1 + np.abs(rng.standard_normal(n) * 2), 8) * (rng.random(n) < density)
    book = torch.tensor([0.0, *(k / 64 * (-1 if k % 2 else 1) for k in range(1, 9))])
    scales = tuple(
        torch.from_numpy(rng.integers(-9, 9, size).astype(np.int8)) if scaled else None
        for size in (shape[0], n // shape[0])
    )
    return QuantizedTensor(name, shape, dtype, torch.from_numpy(drawn.astype(np.uint8)), book, *scales)


def rest_tensors(shape: tuple[int, ...]) -> dict[str, Tensor]:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    kinds = {"f32": x, "f16": x.half(), "bf16": x.bfloat16(), "f64": x.double(), "i64": (x * 9).long()}
    kinds |= {"i8": (3 * x).to(torch.int8), "bool": x > 1, "ones": torch.ones(shape), "one": (x * 0 + 3).int()}
    return kinds


def weights(*tensors: QuantizedTensor, **rest: Tensor) -> QuantizedWeights:
    return QuantizedWeights(tensors, rest, {})


def kinds(data: bytes) -> dict[str, Shared | Rest]:
    reader = Reader(io.BytesIO(data), len(data) - 4)
    return {e.name: e.kind for e in read_header(reader, read_prefix(reader)).entries}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors have the codes of large ones, in small blocks."""
    monkeypatch.setattr(choice, "STATIC_FROM", 64)
    monkeypatch.setattr(bands, "FROM", 64)
    monkeypatch.setattr(code, "CHUNK", 256)
    monkeypatch.setattr(code, "GPU_LANES", 4)


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


# Which code


def test_small_files_stay_version_1() -> None:
    dense = weights(tensor("a", (200, 300)), b=torch.zeros(50_000))
    for speed in ("smallest", "balanced", "fastest"):
        data = codec.encode(dense, EncodeConfig(speed=speed))
        assert data == codec.encode(dense)
        assert data[4] == 1


def test_a_file_without_shared_tensors_is_static_unless_that_costs_much() -> None:
    few = torch.randn(4, generator=torch.Generator().manual_seed(0))
    state = {"a": torch.randn(64, 128), "few": few[torch.arange(8192) // 7 % 4], "tiny": torch.randn(4095)}
    found = kinds(data := codec.encode(weights(**state)))
    assert {name: kind.static for name, kind in found.items()} == {"a": True, "few": False, "tiny": False}
    assert all(same(t, state[name]) for name, t in codec.decode(data).rest.items())


def test_a_large_dense_tensor_is_static_and_a_sparse_one_is_not() -> None:
    both = weights(tensor("dense", (300, 300)), tensor("sparse", (300, 301), density=0.05))
    found = kinds(codec.encode(both))
    assert isinstance(found["dense"], Shared)
    assert found["dense"].static
    assert not found["sparse"].version > 1
    fastest = kinds(codec.encode(both, EncodeConfig(speed="fastest")))
    assert all(kind.static for kind in fastest.values())
    assert not any(kind.static for kind in kinds(codec.encode(both, EncodeConfig(codec="han"))).values())


def test_the_smallest_is_the_smallest() -> None:
    t = weights(tensor("a", (300, 300)))
    sizes = {s: len(codec.encode(t, EncodeConfig(speed=s))) for s in ("smallest", "balanced", "fastest")}
    assert sizes["smallest"] <= sizes["balanced"] <= sizes["fastest"]


def test_structure_keeps_a_dense_tensor_adaptive() -> None:
    """Most weights equal their neighbour on the left: the adaptive coder sees that."""
    rng = np.random.default_rng(0)
    fresh, drawn = rng.random(300 * 300) < 0.1, rng.integers(1, 9, 300 * 300)
    indices = drawn[np.maximum.accumulate(np.where(fresh, np.arange(300 * 300), 0))]
    book = torch.arange(9) / 8
    t = QuantizedTensor("a", (300, 300), torch.float32, torch.from_numpy(indices.astype(np.uint8)), book)
    assert not kinds(codec.encode(weights(t)))["a"].static


def test_more_values_than_a_byte_holds_are_not_static() -> None:
    indices = torch.randint(1, 300, (300 * 300,), generator=torch.Generator().manual_seed(0)).short()
    t = QuantizedTensor("a", (300, 300), torch.float32, indices, torch.arange(300.0))
    assert not kinds(codec.encode(weights(t), EncodeConfig(speed="fastest")))["a"].static


# All of a file


@pytest.mark.parametrize("speed", ["balanced", "fastest"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.usefixtures("small")
def test_files_come_back(speed: Speed, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "THREADS_FROM", 1)
    monkeypatch.setattr(code, "JOB", 256)
    shared = [tensor("a", (40, 33)), tensor("b", (16, 4, 3, 3), scaled=True), tensor("c", (700,), density=1.0)]
    shared += [tensor("d", (30, 40), density=0.1), tensor("e", (30, 20), density=0.0)]
    given = weights(*shared, **rest_tensors((37, 41)), scalar=torch.tensor(3.0), none=torch.zeros(0, 3))
    data = codec.encode(given, EncodeConfig(speed=speed), threads=threads)
    assert data[4] == 2
    back = codec.decode(data, threads=threads)
    state, expected = back.state_dict(), given.state_dict()
    assert all(same(state[name], expected[name]) for name in expected if name != "d")
    found = kinds(data)
    assert found["a"].static
    assert found["bf16"].static or speed == "balanced"
    assert isinstance(found["d"], Shared)
    assert found["d"].bands == (speed == "balanced")
    assert torch.equal(next(t for t in back.shared if t.name == "d").indices, shared[3].indices)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_exponents_are_what_is_gained(dtype: torch.dtype) -> None:
    """Normal numbers have exponents of about 2.5 bits. Nothing else of them is coded."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((512, 200)).astype(np.float32)).to(dtype)
    data = codec.encode(weights(x=x), EncodeConfig(speed="fastest"))
    assert kinds(data)["x"].static
    raw_bits = 8 * x.element_size()
    saved = raw_bits - 8 * len(data) / x.numel()
    assert 5.2 < saved < 5.7 if dtype != torch.float16 else 1.8 < saved < 2.6
    assert torch.equal(codec.decode(data).rest["x"], x)


def test_rotation_by_definition() -> None:
    octets = np.array([[0x01, 0x00, 0x80, 0x3F]], np.uint8)  # 0x3F800001
    turned = static_planes.rotated(octets, 1)
    assert turned.tolist() == [[0x02, 0x00, 0x00, 0x7F]]
    assert static_planes.rotated(turned, -1).tolist() == octets.tolist()


# Bands


def test_bands_are_the_fast_model_of_their_rows() -> None:
    """Each band is what a tensor of its own would be, past the threshold of the fast model."""
    from softshare.codec.adaptive.tensor import encode_tensor
    from softshare.codec.wire import varint

    t = tensor("a", (21, 50), density=0.2)
    matrix = t.indices.numpy().reshape(21, 50)
    data = bands.encode_bands(t.indices.numpy(), (21, 50), 9, 2)
    own = [matrix[k * 21 // 4 : (k + 1) * 21 // 4] for k in range(4)]
    codes = [encode_tensor(m.copy(), m.shape, 9, int(np.count_nonzero(m)), fast=True)[1:] for m in own]
    heads = [varint(int(np.count_nonzero(m))) + varint(len(c)) for m, c in zip(own, codes, strict=True)]
    assert data == bytes([2]) + b"".join(heads) + b"".join(codes)


def read(data: bytes, n_nonzero: int) -> None:
    found = bands.read_bands(Reader(io.BytesIO(data), len(data)), (4, 5), n_nonzero)
    bands.decode_bands(found, lambda at, n: data[at : at + n], 5, 3)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (bytes([0, 0, 0]), "bands of"),
        (bytes([3, *[0] * 16]), "bands of"),  # more than the rows
        (bytes([1, 11, 1, 0, 0, 9]), "at most 10 non-zeros"),
        (bytes([1, 0, 1, 1, 0, 9]), "no code"),
        (bytes([1, 1, 1, 1, 0, 9]), "of 3 non-zeros"),
        (bytes([1, 2, 1, 1, 1, 9]), "end at byte"),
        (bytes([1, 2, 1, 1, 0, 9, 9]), "end at byte"),
        (bytes([1, 2, 2, 1, 0, 9, 0]), "code"),
    ],
)  # fmt: skip
def test_bands_that_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        read(data, 3)


@pytest.mark.usefixtures("small")
def test_bands_belong_to_the_adaptive_codec() -> None:
    data = bytearray(codec.encode(weights(tensor("a", (40, 33), density=0.1))))
    assert kinds(bytes(data))["a"].version == 2
    data[5] &= ~1
    with pytest.raises(FormatError, match="bands"):
        codec.inspect(bytes(data))


# Parts of tensors


class Counted(io.BytesIO):
    """A file that is no file, and counts what is read."""

    n_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.n_read += len(data)
        return data


@pytest.mark.usefixtures("small")
def test_rows_are_those_of_the_whole(tmp_path: Path) -> None:
    shared = [tensor("a", (40, 33), scaled=True), tensor("b", (16, 4, 3, 3)), tensor("c", (700,), density=1.0)]
    shared += [tensor("d", (33, 40), density=0.1), tensor("e", (30, 20), density=0.0), tensor("f", (7, 9))]
    given = weights(*shared, **rest_tensors((37, 41)), v=torch.arange(99.0), none=torch.zeros(5, 0))
    path = tmp_path / "a.sws"
    codec.save(given, path)
    whole = codec.load(path)
    for name, full in whole.items():
        n = len(full)
        for rows in (range(n), range(n // 3, n // 2), range(n - 1, n), range(2, 2)):
            for source in (path, Counted(path.read_bytes())):
                part = codec.load(source, [name], rows=rows)
                assert list(part) == [name]
                assert same(part[name], full[rows.start : rows.stop]), (name, rows)


def test_only_the_blocks_that_are_needed_are_read() -> None:
    big, small = tensor("a", (3000, 400)), tensor("b", (10, 10))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((2000, 200)).astype(np.float32))
    data = codec.encode(weights(big, small, x=x.bfloat16()), EncodeConfig(speed="fastest"))
    for names, rows in ((["a"], range(1500, 1510)), (["b"], None), (["x"], range(5, 6))):
        file = Counted(data)
        part = codec.load(file, names, rows=rows)
        dense = {"a": big.dense(), "b": small.dense(), "x": x.bfloat16()}[names[0]]
        assert torch.equal(part[names[0]], dense if rows is None else dense[rows.start : rows.stop])
        assert file.n_read < 0.5 * len(data)
    file = Counted(data)
    assert torch.equal(codec.load(file)["a"], big.dense())
    assert not file.closed


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("config", "version", "share"),
    [
        (EncodeConfig(speed="smallest"), 1, 1.0),
        (EncodeConfig(codec="han"), 1, 1.0),
        (EncodeConfig(speed="balanced"), 2, 0.125),
        (EncodeConfig(speed="fastest"), 2, 0.025),
    ],
)
def test_a_name_reads_its_section_and_rows_their_blocks(
    config: EncodeConfig, version: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`share` is the part of a section that 4 rows need: all of it in version 1, a band, or a few chunks."""
    monkeypatch.setattr(reading, "BLOCK", 64)
    if version == 1:
        monkeypatch.setattr(choice, "STATIC_FROM", 1 << 30)
    density = 0.1 if config.speed == "balanced" else 0.8
    drawn = [tensor(name, (256, 160), density) for name in "abcdef"]
    data = codec.encode(weights(*drawn), config)
    assert data[4] == version
    sections = {t.name: t.n_bytes for t in codec.inspect(data).tensors}
    head, slack = len(data) - sum(sections.values()), 16 * reading.BLOCK
    for t in drawn:
        assert sections[t.name] > 3 * slack
        file = Counted(data)
        assert torch.equal(codec.load(file, [t.name])[t.name], t.dense())
        assert file.n_read <= head + sections[t.name] + slack
        for start in (0, 101, 252):
            file = Counted(data)
            part = codec.load(file, [t.name], rows=range(start, start + 4))[t.name]
            assert torch.equal(part, t.dense()[start : start + 4])
            assert file.n_read <= head + 1.3 * share * sections[t.name] + slack


def test_damage_in_a_block_is_seen_without_the_checksum() -> None:
    data = bytearray(codec.encode(weights(tensor("a", (300, 300)))))
    data[-5] ^= 1
    with pytest.raises(FormatError, match="chunk 2"):
        codec.load(Counted(bytes(data)), ["a"])
    assert codec.load(Counted(bytes(data)), ["a"], rows=range(10))["a"].shape == (10, 300)


def test_rows_that_are_not_there() -> None:
    file = Counted(codec.encode(weights(tensor("a", (30, 30)), s=torch.tensor(1.0))))
    for names, rows in ((["a"], range(20, 31)), (["a"], range(0, 9, 2)), (["s"], range(1)), (None, range(1))):
        with pytest.raises(ConfigError, match="rows"):
            codec.load(file, names, rows=rows)


def test_a_part_counts_as_a_part() -> None:
    data = codec.encode(weights(tensor("a", (300, 300))))
    assert codec.load(Counted(data), ["a"], rows=range(3), max_bytes=3600)["a"].shape == (3, 300)
    with pytest.raises(FormatError, match="max_bytes"):
        codec.load(Counted(data), ["a"], rows=range(3), max_bytes=3599)


# On the GPU


def decoded_there(data: bytes, device: torch.device) -> dict[str, Tensor]:
    """Every tensor with the static code, by the GPU's decoder. Without a GPU, Triton interprets it."""
    file = io.BytesIO(data)
    reader = Reader(file, len(data) - 4)
    header = read_header(reader, read_prefix(reader))
    pending, out = gpu.Pending(device), {}
    for e in header.entries:
        if not e.kind.static or (isinstance(e.kind, Rest) and e.kind.stored != e.kind.dtype):
            continue
        book = header.codebooks[e.kind.codebook] if isinstance(e.kind, Shared) else None
        dtype = getattr(torch, e.kind.dtype)
        out[e.name] = torch.empty(e.shape, dtype=dtype, device=device)
        gpu.decode_into(data[e.offset : e.offset + e.n_bytes], e, book, out[e.name], pending)
    pending.check()
    return {name: t.cpu() for name, t in out.items()}


DEVICE = torch.device("cuda" if HAS_GPU else "cpu")


@needs_triton
@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("lanes", [2, 4, 32])
@pytest.mark.usefixtures("small")
def test_the_gpu_decodes_to_the_same_bits(dtype: torch.dtype, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "CHUNK", 64)
    monkeypatch.setattr(code, "GPU_LANES", lanes)
    shared = [tensor("a", (9, 37), dtype=dtype), tensor("b", (60, 5), dtype=dtype, scaled=True)]
    data = codec.encode(weights(*shared), EncodeConfig(speed="fastest"))
    found = decoded_there(data, DEVICE)
    assert all(same(found[t.name], t.dense()) for t in shared_as_stored(data))
    assert len(found) == 2


def shared_as_stored(data: bytes) -> tuple[QuantizedTensor, ...]:
    return codec.decode(data).shared


@needs_triton
@pytest.mark.usefixtures("small")
def test_the_gpu_decodes_byte_planes() -> None:
    data = codec.encode(weights(**rest_tensors((11, 29))), EncodeConfig(speed="fastest"))
    found, expected = decoded_there(data, DEVICE), codec.decode(data).rest
    assert {"f32", "bf16", "i64"} <= found.keys()
    assert all(same(t, expected[name]) for name, t in found.items())


@needs_triton
@pytest.mark.usefixtures("small")
def test_the_gpu_sees_damage() -> None:
    good = shared_section.encode(tensor("a", (9, 37)), EncodeConfig(speed="fastest"))
    whole = codec.encode(weights(tensor("a", (9, 37))), EncodeConfig(speed="fastest"))
    assert good.data in whole
    for at in (-5, -6, -7):
        damaged = bytearray(whole)
        damaged[at] ^= 4
        with pytest.raises(FormatError, match="bad lanes"):
            decoded_there(bytes(damaged), DEVICE)


@needs_triton
@pytest.mark.usefixtures("small")
def test_tables_by_row_and_by_column_on_the_gpu() -> None:
    rng = np.random.default_rng(0)
    for widths in (np.exp(rng.standard_normal((40, 1))), np.exp(rng.standard_normal((1, 40)))):
        indices = np.minimum(np.abs(rng.standard_normal((40, 40)) * widths * 3), 8).astype(np.uint8)
        t = dataclasses.replace(tensor("a", (40, 40)), indices=torch.from_numpy(indices.reshape(-1)))
        data = codec.encode(weights(t), EncodeConfig(speed="fastest"))
        assert same(decoded_there(data, DEVICE)["a"], shared_as_stored(data)[0].dense())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(40, 33))
        self.b = nn.Parameter(torch.zeros(20, 30, dtype=torch.bfloat16))
        self.register_buffer("x", torch.zeros(37, 41))


def net_file(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    given = weights(tensor("a", (40, 33)), tensor("b", (20, 30), dtype=torch.bfloat16), x=rest_tensors((37, 41))["f32"])
    codec.save(given, tmp_path / "net.sws", EncodeConfig(speed="fastest"))
    return tmp_path / "net.sws", codec.load(tmp_path / "net.sws")


@needs_triton
@pytest.mark.skipif(HAS_GPU, reason="stands in for a GPU by the interpreter")
@pytest.mark.usefixtures("small")
def test_loading_takes_the_gpus_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path through `load`, with the CPU in the place of the GPU."""
    path, expected = net_file(tmp_path)
    seen: list[str] = []
    original = gpu.decode_into

    def counted(data: bytes, entry: Any, *others: Any) -> None:
        seen.append(entry.name)
        original(data, entry, *others)

    monkeypatch.setattr(gpu, "decode_into", counted)
    monkeypatch.setattr(placing, "_on_gpu", lambda entry, where: entry.kind.static)
    monkeypatch.setattr(placing, "NO_GPU", "none")
    state = codec.load(path)
    assert seen == ["a", "b", "x"]
    assert all(same(state[name], expected[name]) for name in expected)


@needs_gpu
@pytest.mark.usefixtures("small")
def test_on_a_real_gpu(tmp_path: Path) -> None:
    path, expected = net_file(tmp_path)
    state = codec.load(path, device="cuda")
    assert all(t.is_cuda and same(t.cpu(), expected[name]) for name, t in state.items())
    net = Net().cuda()
    places = {name: t.data_ptr() for name, t in net.state_dict().items()}
    codec.load_into_(net, path)
    assert all(same(t.cpu(), expected[name]) for name, t in net.state_dict().items())
    assert places == {name: t.data_ptr() for name, t in net.state_dict().items()}
