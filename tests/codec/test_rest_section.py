"""Tensors that are not shared: raw or by byte plane, narrowed or not, bit for bit."""

from __future__ import annotations

import math
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import softshare.codec
from by_hand import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, entry, name, rest, sizes, sws
from samples import octets
from softshare import codec
from softshare.codec import rest_section as module
from softshare.config import EncodeConfig
from softshare.errors import FormatError, ModelError
from softshare.quantization.quantized import QuantizedWeights

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
DTYPES = [*FLOATS, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool]  # by their numbers
SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple) | st.sampled_from([(), (300,), (0, 5), (17, 9)])


def one(section: bytes, kind: bytes, shape: tuple[int, ...]) -> bytes:
    """A file with one tensor."""
    return sws([], [entry(len(section), kind, name("r"), sizes(*shape))], section)


def encoded(tensor: Tensor, rest_dtype: Any = "float32") -> bytes:
    return codec.encode(QuantizedWeights((), {"r": tensor}, {}), EncodeConfig("han", rest_dtype=rest_dtype))


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Random bits. For a float they are also NaNs of all kinds, infinities and subnormal numbers."""
    rng = np.random.default_rng(seed)
    n = math.prod(shape)
    if dtype == torch.bool:
        return torch.from_numpy(rng.random(n) < 0.5).reshape(shape)
    raw = rng.integers(0, 256, n * dtype.itemsize, dtype=np.uint8)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape) if n else torch.empty(shape, dtype=dtype)


def use_planes(
    monkeypatch: pytest.MonkeyPatch,
    encode: Callable[[np.ndarray], bytes] | None = None,
    decode: Callable[[bytes, int, int], np.ndarray] | None = None,
) -> None:
    """Another coder of byte planes."""
    fake: Any = types.ModuleType("softshare.codec.planes")
    fake.encode_planes, fake.decode_planes = encode, decode
    monkeypatch.setitem(sys.modules, "softshare.codec.planes", fake)
    monkeypatch.setattr(softshare.codec, "planes", fake, raising=False)


@pytest.fixture
def no_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coder that gains nothing, so that every byte of a file is known."""
    use_planes(monkeypatch, encode=lambda octets: bytes(octets.size))


# Raw, byte by byte

RAW = [
    (F32, torch.tensor([1.0, -2.5, math.inf]), "0000803f 000020c0 0000807f"),
    (F16, torch.tensor([1.0, -2.5], dtype=torch.float16), "003c 00c1"),
    (BF16, torch.tensor([1.0, -2.5], dtype=torch.bfloat16), "803f 20c0"),
    (F64, torch.tensor([1.0], dtype=torch.float64), "000000000000f03f"),
    (I8, torch.tensor([1, -2], dtype=torch.int8), "01 fe"),
    (I16, torch.tensor([1, -2], dtype=torch.int16), "0100 feff"),
    (I32, torch.tensor([1, -2], dtype=torch.int32), "01000000 feffffff"),
    (I64, torch.tensor([(1 << 40) + 1, -2]), "0100000000010000 feffffffffffffff"),
    (U8, torch.tensor([1, 254], dtype=torch.uint8), "01 fe"),
    (BOOL, torch.tensor([True, False]), "01 00"),
]


@pytest.mark.parametrize(("number", "tensor", "data"), RAW)
def test_raw_bytes(number: int, tensor: Tensor, data: str, no_planes: None) -> None:
    narrowed = {F64: (F32, struct.pack("<f", 1.0))}
    expected = one(bytes.fromhex(data), rest(number), tuple(tensor.shape))
    back = codec.decode(expected).rest["r"]
    assert back.dtype == tensor.dtype == DTYPES[number]
    assert torch.equal(back, tensor)
    if number in narrowed:
        stored, section = narrowed[number]
        expected = one(section, rest(number, stored), tuple(tensor.shape))
    assert encoded(tensor) == expected


@pytest.mark.parametrize(
    ("dtype", "stored", "data", "value"),
    [
        (F64, F16, struct.pack("<e", 0.1), struct.unpack("<e", struct.pack("<e", 0.1))[0]),
        (F64, BF16, b"\xcd\x3d", 0.10009765625),
        (F32, F16, struct.pack("<e", 0.1), struct.unpack("<e", struct.pack("<e", 0.1))[0]),
        (F32, BF16, b"\xcd\x3d", 0.10009765625),
    ],
)
def test_narrowed_bytes(dtype: int, stored: int, data: bytes, value: float, no_planes: None) -> None:
    file = one(data, rest(dtype, stored), ())
    back = codec.decode(file).rest["r"]
    assert (back.dtype, back.item(), back.shape) == (DTYPES[dtype], value, ())
    rest_dtype = str(DTYPES[stored]).removeprefix("torch.")
    assert encoded(torch.tensor(0.1, dtype=DTYPES[dtype]), rest_dtype) == file


def test_by_default_a_float64_is_narrowed_only_if_that_loses_nothing(no_planes: None) -> None:
    rounded = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    file = one(struct.pack("<f", 0.1), rest(F64, F32), ())
    assert codec.decode(file).rest["r"].item() == rounded
    assert encoded(torch.tensor(rounded, dtype=torch.float64)) == file
    for value in (0.1, 1e300, 5e-324):
        tensor = torch.tensor([1.0, value], dtype=torch.float64)
        assert encoded(tensor) == one(struct.pack("<2d", 1.0, value), rest(F64), (2,))
        assert torch.equal(codec.decode(encoded(tensor)).rest["r"], tensor)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)])
def test_nothing_takes_no_byte(shape: tuple[int, ...], no_planes: None) -> None:
    for number, dtype in enumerate(DTYPES):
        tensor = torch.zeros(shape, dtype=dtype)
        assert encoded(tensor) == one(b"", rest(number, F32 if number == F64 else None), shape)
        back = codec.decode(encoded(tensor)).rest["r"]
        assert (back.dtype, back.shape) == (dtype, shape)


def test_the_smaller_of_raw_and_planes_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planes are stored only if they are shorter, not if they are equally long."""
    length = 7
    use_planes(monkeypatch, encode=lambda _: b"p" * length)
    tensor = torch.tensor([1, 2, 3, 4], dtype=torch.int16)
    assert encoded(tensor) == one(b"p" * 7, rest(I16, planes=True), (4,))
    length = 8
    assert encoded(tensor) == one(b"\1\0\2\0\3\0\4\0", rest(I16), (4,))


def test_planes_get_the_bytes_of_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []

    def encode(octets: np.ndarray) -> bytes:
        seen.append(octets)
        return b"pp"

    def decode(data: bytes, n: int, itemsize: int) -> np.ndarray:
        assert (data, n, itemsize) == (b"pp", 2, 4)
        return seen[0]

    use_planes(monkeypatch, encode, decode)
    data = encoded(torch.tensor([[258, -1]], dtype=torch.int32))
    assert [array.tolist() for array in seen] == [[[2, 1, 0, 0], [255, 255, 255, 255]]]  # the lowest byte first
    assert codec.decode(data).rest["r"].tolist() == [[258, -1]]


# Errors

RAW_4 = struct.pack("<4f", 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("section", "kind", "shape", "problem"),
    [
        (RAW_4[:-1], rest(F32), (4,), "expected 16 bytes, got 15"),
        (RAW_4 + b"x", rest(F32), (4,), "expected 16 bytes, got 17"),
        (b"", rest(F32), (), "expected 4 bytes, got 0"),
        (RAW_4, rest(F64, F32), (3,), "expected 12 bytes, got 16"),
        (RAW_4, rest(F32, F16), (4,), "expected 8 bytes, got 16"),
        (RAW_4, rest(F32), (0, 4), "expected 0 bytes, got 16"),
        (RAW_4, rest(I64), (1 << 40,), f"expected {1 << 43} bytes, got 16"),
        (b"\0\1\2", rest(BOOL), (3,), "expected bools of 0 or 1, got 2"),
        (b"\xff", rest(BOOL), (), "expected bools of 0 or 1, got 255"),
        (RAW_4, rest(F32, planes=True), (4,), "expected fewer than 16 bytes by byte plane, got 16"),
        (RAW_4 + b"x", rest(F32, planes=True), (4,), "expected fewer than 16 bytes by byte plane, got 17"),
        (b"", rest(F32, planes=True), (0,), "expected fewer than 0 bytes by byte plane, got 0"),
        (RAW_4[:8], rest(F32, F16, planes=True), (4,), "expected fewer than 8 bytes by byte plane, got 8"),
    ],
)
def test_refuses_a_section(section: bytes, kind: bytes, shape: tuple[int, ...], problem: str) -> None:
    data = one(section, kind, shape)
    with pytest.raises(FormatError) as caught:
        codec.decode(data, max_bytes=1 << 50)
    assert caught.value.problem == problem
    assert (caught.value.section, caught.value.offset) == ("tensor 'r'", len(data) - 4 - len(section))


def test_bools_by_plane_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    use_planes(monkeypatch, decode=lambda data, n, itemsize: np.array([[0], [3], [1]], np.uint8))
    with pytest.raises(FormatError, match="tensor 'r', byte 16: expected bools of 0 or 1, got 3"):
        codec.decode(one(b"pp", rest(BOOL, planes=True), (3,)))


@pytest.mark.parametrize("planes", [False, True])
def test_a_short_section_of_a_huge_tensor_costs_nothing(planes: bool) -> None:
    data = one(b"x", rest(U8, planes=planes), (1 << 39,))
    with pytest.raises(
        FormatError, match="expected at most 4,294,967,296 bytes of decoded tensors, got 549,755,813,888"
    ):
        codec.decode(data)


@pytest.mark.parametrize(
    ("tensor", "rest_dtype"),
    [
        (torch.tensor([1e300], dtype=torch.float64), "float16"),
        (torch.tensor([1.0, 65520.0]), "float16"),
        (torch.tensor([-3.4e38]), "bfloat16"),
    ],
)
def test_refuses_values_beyond_the_stored_dtype(tensor: Tensor, rest_dtype: str) -> None:
    with pytest.raises(ModelError, match=f"'r': expected values within the range of {rest_dtype}, its rest_dtype"):
        encoded(tensor, rest_dtype)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16, torch.float8_e5m2])
def test_refuses_a_dtype_without_a_number(dtype: torch.dtype) -> None:
    with pytest.raises(ModelError, match=rf"tensor 'r': cannot store {dtype}; expected one of float32, float16"):
        encoded(torch.zeros(2, dtype=dtype))


# Round trips, with the real coder


@given(st.sampled_from(DTYPES), SHAPES, st.integers(0, 2**32 - 1))
def test_every_bit_comes_back(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> None:
    tensor = random_tensor(dtype, shape, seed)
    data = encoded(tensor)
    back = codec.decode(data).rest["r"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert octets(back) == octets(tensor)
    assert codec.inspect(data).tensors[0].n_bytes <= len(octets(tensor))
    assert len(data) <= len(octets(tensor)) + 40


@pytest.mark.parametrize("rest_dtype", ["float32", "float16", "bfloat16"])
def test_narrowed_or_unchanged(rest_dtype: str) -> None:
    values = torch.randint(-100, 100, (3, 50), generator=torch.Generator().manual_seed(1))
    narrow = getattr(torch, rest_dtype)
    for dtype in DTYPES:
        tensor = (values.double() / 7 if dtype.is_floating_point else values).to(dtype)
        shrinks = dtype.is_floating_point and narrow.itemsize < min(4, dtype.itemsize)  # float32 loses nothing
        back = codec.decode(encoded(tensor, rest_dtype)).rest["r"]
        assert back.dtype == dtype
        assert torch.equal(back, tensor.to(narrow).to(dtype) if shrinks else tensor)
        assert torch.equal(back, tensor) != shrinks


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_come_back(dtype: torch.dtype) -> None:
    tensor = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0], dtype=dtype)
    for rest_dtype in ("float32", "float16", "bfloat16"):
        back = codec.decode(encoded(tensor, rest_dtype)).rest["r"]
        assert back.isnan().tolist() == [True] + 5 * [False]
        assert back[1:].tolist() == [math.inf, -math.inf, 0.0, 0.0, 1.0]
        assert back.signbit()[1:].tolist() == [False, True, True, False, False]


def test_odd_layouts_and_parameters() -> None:
    turned = torch.arange(12.0).reshape(3, 4).T
    assert not turned.is_contiguous()
    back = codec.decode(encoded(nn.Parameter(turned))).rest["r"]
    assert torch.equal(back, turned)
    assert not back.requires_grad
    expanded = torch.tensor(3).expand(5, 2)
    assert codec.decode(encoded(expanded)).rest["r"].tolist() == [[3, 3]] * 5


def test_what_is_decoded_can_be_written_to() -> None:
    back = codec.decode(one(RAW_4, rest(F32), (4,))).rest["r"]
    back.add_(1)
    assert back.tolist() == [2.0, 3.0, 4.0, 5.0]


def test_planes_save_bytes() -> None:
    generator = torch.Generator().manual_seed(0)
    means = 0.9 + 0.2 * torch.rand(512, generator=generator)  # like the scales of a normalization
    assert codec.inspect(encoded(means)).tensors[0].n_bytes < 0.9 * 4 * 512
    assert codec.inspect(encoded(torch.zeros(512))).tensors[0].n_bytes < 40


def test_kind_without_planes() -> None:
    config = EncodeConfig(rest_dtype="bfloat16")
    kind = module.kind("r", torch.zeros(2, dtype=torch.float64), config)
    assert (kind.dtype, kind.stored, kind.planes) == ("float64", "bfloat16", False)
    kind = module.kind("r", torch.zeros(2, dtype=torch.int64), config)
    assert (kind.dtype, kind.stored) == ("int64", "int64")


@pytest.mark.parametrize("rest_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_value_that_would_become_zero_is_kept(rest_dtype: Any, dtype: torch.dtype) -> None:
    """The smallest of float16 is 6e-8, and float64 has 1e-300. A tensor with such a value keeps its own dtype."""
    tiny = 1e-300 if dtype == torch.float64 else 1e-45
    state = {"tiny": torch.tensor([1.0, tiny], dtype=dtype), "usual": torch.tensor([1.0, 0.0], dtype=dtype)}
    config = EncodeConfig(rest_dtype=rest_dtype)
    back = codec.decode(codec.encode(QuantizedWeights((), state, {}), config)).rest
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    assert module.kind("usual", state["usual"], config).stored == rest_dtype
    assert module.kind("tiny", state["tiny"], config).stored == str(dtype).removeprefix("torch.")
