"""Scales of rows and columns: version 2 of the format, byte by byte, and what a reader refuses."""

from __future__ import annotations

import dataclasses
import io

import pytest
import torch
from torch import Tensor

from by_hand import F16, HAN_2X3, HAN_2X3_INDICES, book, entry, name, shared, sizes, sws, varint
from softshare import codec
from softshare.codec import shared_section
from softshare.codec.budget import _steps
from softshare.codec.header_reading import read_header, read_prefix
from softshare.codec.wire import Reader
from softshare.config import EncodeConfig
from softshare.errors import FormatError, ModelError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.quantization.scales import FACTORS, exponents, factors

BOOK = torch.tensor([0.0, -0.25, 0.5])


def int8(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int8)


def scaled(rows: Tensor | None, columns: Tensor | None) -> QuantizedTensor:
    indices = torch.tensor(HAN_2X3_INDICES, dtype=torch.uint8)
    return QuantizedTensor("a", (2, 3), torch.float32, indices, BOOK, rows, columns)


def one(
    scales: bytes, rows: bool, columns: bool, shape: tuple[int, ...] = (2, 3), version: int = 2, dtype: int = 0
) -> bytes:
    """A file with the tensor of 2 x 3 that the other tests have, and scales after its number of non-zeros."""
    section = HAN_2X3[:1] + scales + HAN_2X3[1:]
    kind = shared(dtype, 0, rows, columns)
    return sws([book(-0.25, 0.5)], [entry(len(section), kind, name("a"), sizes(*shape))], section, version=version)


def encode(t: QuantizedTensor, config: EncodeConfig | None = None) -> bytes:
    return codec.encode(QuantizedWeights((t,), {}, {}), config or EncodeConfig("han"))


def test_factors_are_powers_of_the_fourth_root_of_2() -> None:
    truth = torch.arange(-256, 255, dtype=torch.float64).div(4).exp2()
    assert ((FACTORS.double() - truth) / truth).abs().max() <= 2.0**-24
    assert torch.equal(FACTORS[4:], FACTORS[:-4] * 2)
    assert [float(FACTORS[256 + k]).hex() for k in range(4)] == [
        "0x1.0000000000000p+0", "0x1.306fe00000000p+0", "0x1.6a09e60000000p+0", "0x1.ae89fa0000000p+0",
    ]  # fmt: skip


def test_the_nearest_exponent() -> None:
    assert exponents(torch.tensor([1.0, 2.0, 0.5, 1.09, 1.1, 1e-30, 1e30])).tolist() == [0, 4, -4, 0, 1, -128, 127]


def test_factors_of_a_matrix() -> None:
    assert factors(int8(0, 4), int8(0, -4, 8), (2, 3)).tolist() == [[1, 0.5, 4], [2, 1, 8]]
    assert factors(None, int8(0, -4), (3, 2)).tolist() == [[1, 0.5]] * 3
    assert factors(int8(4), None, (1, 2)).tolist() == [[2, 2]]


def test_bytes_of_a_file() -> None:
    """Raw scales: fewer than a coder needs."""
    rows, columns = varint(2) + bytes([4, 252]), varint(3) + bytes([0, 8, 255])
    assert encode(scaled(int8(4, -4), int8(0, 8, -1))) == one(rows + columns, True, True)
    assert encode(scaled(int8(4, -4), None)) == one(rows, True, False)
    assert encode(scaled(None, int8(0, 8, -1))) == one(columns, False, True)
    assert encode(scaled(None, None))[4] == 1  # without scales, it is a file of version 1


def test_what_a_file_decodes_to() -> None:
    data = one(varint(2) + bytes([4, 252]) + varint(3) + bytes([0, 8, 255]), True, True)
    back = codec.decode(data).shared[0]
    assert back.row_scales is not None
    assert back.column_scales is not None
    assert (back.row_scales.tolist(), back.column_scales.tolist()) == ([4, -4], [0, 8, -1])
    quarter = float.fromhex("0x1.ae89fap-1")  # 2^(-1/4) as a float32
    assert back.dense().tolist() == [[0.0, 0.5 * 8, 0.5 * 2 * quarter], [0.0, 0.5 * 2, 0.0]]
    assert codec.inspect(data).version == 2


@pytest.mark.parametrize("codec_", ["han", "adaptive"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_scales_come_back(codec_: str, dtype: torch.dtype) -> None:
    """Smooth ones take less than a byte each; a convolution's columns are all of its other dimensions."""
    g = torch.Generator().manual_seed(0)
    rows = (torch.arange(200) // 20).to(torch.int8)
    columns = torch.randint(-9, 9, (27,), generator=g).to(torch.int8)
    indices = torch.randint(0, 3, (200 * 27,), generator=g, dtype=torch.uint8)
    t = QuantizedTensor("a", (200, 3, 3, 3), dtype, indices, BOOK, rows, columns)
    config = EncodeConfig(codec_)  # type: ignore[arg-type]
    data = encode(t, config)
    back = codec.decode(data)
    assert torch.equal(back.shared[0].row_scales, rows)  # type: ignore[arg-type]
    assert torch.equal(back.shared[0].column_scales, columns)  # type: ignore[arg-type]
    exact = BOOK[indices.int()].reshape(200, 27) * FACTORS[(rows.int()[:, None] + columns.int()[None] + 256)]
    assert torch.equal(back.shared[0].dense(), exact.to(dtype).reshape(t.shape))
    assert codec.encode(back, config) == data
    bare = len(encode(dataclasses.replace(t, row_scales=None, column_scales=None), config))
    assert len(data) - bare < 100 + 27


def test_a_tensor_of_zeros_has_no_scales() -> None:
    t = dataclasses.replace(scaled(int8(1, 2), None), indices=torch.zeros(6, dtype=torch.uint8))
    back = codec.decode(encode(t)).shared[0]
    assert back.row_scales is None
    assert back.dense().tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (one(varint(2) + b"\4\4", True, False, version=1), "expected a dtype below 4, got 16"),
        (one(b"", False, False, version=2), "expected version 1, whose features the file has, got 2"),
        (one(varint(3) + b"\4\4\4", True, False), "the scales of 2 rows or columns in at most 2 bytes, got 3"),
        (one(varint(1) + b"\1", True, False), "expected"),  # one constant, but no byte of it
        (one(varint(6) + b"\4" * 6, False, True, shape=(6,)), "a tensor of two or more dimensions, got 1"),
        (one(varint(2) + bytes([0, 100]), True, False, dtype=F16), "within the range of float16, got"),
        (one(varint(1 << 40), True, False), "in at most 2 bytes"),
    ],
)
def test_refuses(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError) as caught:
        codec.decode(data)
    assert problem in caught.value.problem
    assert caught.value.offset is not None


def test_every_file_cut_short_is_refused() -> None:
    data = one(varint(2) + bytes([4, 252]), True, False)
    for n in range(len(data)):
        with pytest.raises(FormatError):
            codec.decode(data[:n])


@pytest.mark.parametrize(
    ("t", "message"),
    [
        (scaled(int8(1, 2, 3), None), r"expected int8 scales of shape \(2,\)"),
        (scaled(None, torch.zeros(3)), r"expected int8 scales of shape \(3,\).* got torch.float32"),
        (dataclasses.replace(scaled(None, int8(*range(6))), shape=(6,)), "in two or more dimensions"),
        (dataclasses.replace(scaled(int8(127, 0), int8(127, 0, 0)), dtype=torch.float16), "within torch.float16"),
    ],
)
def test_refuses_to_write(t: QuantizedTensor, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        encode(t)


def test_scales_count_as_work() -> None:
    t = scaled(int8(4, -4), int8(0, 8, -1))
    for config in (EncodeConfig("han"), EncodeConfig(compact=False)):
        with_scales, without = (steps(encode(q, config)) for q in (t, scaled(None, None)))
        assert with_scales - without == 16 * (2 + 3)


def steps(data: bytes) -> int:
    reader = Reader(io.BytesIO(data), len(data) - 4)
    header = read_header(reader, read_prefix(reader))
    entry_ = header.entries[0]
    return _steps(header, entry_, entry_, data[entry_.offset :])


def test_the_section_is_read_where_it_says() -> None:
    t = scaled(int8(4, -4), None)
    assert shared_section.encode(t, EncodeConfig("han")).data[:4] == bytes([3, 2, 4, 252])
