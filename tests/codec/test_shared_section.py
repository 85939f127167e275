"""Shared tensors: their section, its errors, and the rounding of their codebook."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from by_hand import (
    ADAPTIVE,
    BF16,
    F16,
    F32,
    F64,
    HAN,
    HAN_2X3,
    HAN_2X3_INDICES,
    bits,
    book,
    entry,
    name,
    shared,
    sizes,
    sws,
    varint,
)
from softshare import codec
from softshare.codec import shared_section as module
from softshare.codec.header import Codebook, Entry, Shared
from softshare.config import EncodeConfig
from softshare.config.settings import Codec
from softshare.errors import FormatError, ModelError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

BOOK = torch.tensor([0.0, -0.25, 0.5])


def tensor(
    indices: list[int] | Tensor,
    shape: tuple[int, ...],
    codebook: Tensor = BOOK,
    dtype: torch.dtype = torch.float32,
) -> QuantizedTensor:
    return QuantizedTensor("a", shape, dtype, torch.as_tensor(indices, dtype=torch.uint8), codebook)


def only(t: QuantizedTensor) -> QuantizedWeights:
    return QuantizedWeights((t,), {}, {})


def one(section: bytes, shape: tuple[int, ...] = (2, 3), values: bytes = book(-0.25, 0.5), codec: int = HAN) -> bytes:
    """A file with one shared tensor."""
    return sws([values], [entry(len(section), None, name("a"), sizes(*shape))], section, codec=codec)


def round_to(config_dtype: Any, codebook: Tensor) -> Codebook:
    indices = torch.zeros(1, dtype=torch.uint8)
    return module.rounded_codebook(
        QuantizedTensor("a", (1,), torch.float32, indices, codebook), EncodeConfig(codebook_dtype=config_dtype)
    )


# Sections


def test_bytes_of_a_section() -> None:
    t = tensor(HAN_2X3_INDICES, (2, 3))
    assert module.encode(t, EncodeConfig("han")).data == HAN_2X3
    back = codec.decode(one(HAN_2X3)).shared[0]
    assert (back.name, back.shape, back.dtype, back.indices.dtype) == ("a", (2, 3), torch.float32, torch.uint8)
    assert back.indices.tolist() == HAN_2X3_INDICES
    assert back.codebook.tolist() == [0.0, -0.25, 0.5]
    assert back.dense().tolist() == [[0.0, 0.5, 0.5], [0.0, 0.5, 0.0]]


@pytest.mark.parametrize("name_", ["han", "adaptive"])
def test_zeros_take_no_byte(name_: Codec) -> None:
    shapes: list[tuple[int, ...]] = [(2, 3), (), (0,), (0, 5), (4, 0, 2), (9,)]
    for shape in shapes:
        n = int(np.prod(shape))
        assert module.encode(tensor([0] * n, shape), EncodeConfig(name_)).data == b""
        entry_ = Entry("a", shape, kind := Shared("float16", 0), 0)
        back = module.decode(b"", entry_, kind, Codebook(np.zeros(1, np.float32), "float16"), name_)
        assert back.dense().shape == shape
        assert back.dtype == torch.float16
        assert back.indices.tolist() == [0] * n


@pytest.mark.parametrize(
    ("n_values", "dtype"), [(256, torch.uint8), (257, torch.int16), (32_768, torch.int16), (32_769, torch.int32)]
)
def test_indices_come_back_narrow(n_values: int, dtype: torch.dtype) -> None:
    indices = torch.tensor([0, n_values - 1, 0, n_values - 2], dtype=dtype)
    codebook = torch.arange(n_values, dtype=torch.float32)
    t = QuantizedTensor("a", (4,), torch.float32, indices, codebook)
    data = module.encode(t, EncodeConfig("han")).data
    entry_ = Entry("a", (4,), kind := Shared("float32", 0), len(data))
    for section in (data, b""):
        back = module.decode(section, entry_, kind, Codebook(codebook.numpy(), "float32"), "han")
        assert back.indices.dtype == dtype
        assert torch.equal(back.indices, indices if section else torch.zeros_like(indices))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_weights_are_the_codebooks_values_rounded(dtype: torch.dtype) -> None:
    number = [torch.float32, torch.float16, torch.bfloat16, torch.float64].index(dtype)
    values = torch.tensor([0.1, -0.3])
    kind = shared(number)
    data = sws(
        [book(*values.tolist(), dtype=F32)], [entry(len(HAN_2X3), kind, name("a"), sizes(2, 3))], HAN_2X3, codec=HAN
    )
    dense = codec.decode(data).shared[0].dense()
    assert dense.dtype == dtype
    assert torch.equal(dense.reshape(-1), torch.tensor(HAN_2X3_INDICES).eq(2) * values[1].to(dtype))


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", (0, 0)), (b"\x05", (5, 1)), (b"\x80\x01rest", (128, 2)), (varint((1 << 63) - 1), None)]
)
def test_number_of_nonzeros(data: bytes, expected: tuple[int, int] | None) -> None:
    assert module.read_n_nonzero(data) == (expected or ((1 << 63) - 1, 9))


TOO_MANY = "non-zero weights, got"
SECTION_ERRORS = {
    "zero of a tensor": (b"\0" + HAN_2X3[1:], "expected an empty section for a tensor of zeros, got 0"),
    "zero alone": (b"\0", "expected an empty section for a tensor of zeros, got 0"),
    "not minimal": (b"\x83\x00" + HAN_2X3[1:], "as few bytes as it needs"),
    "endless": (b"\xff" * 20, "an integer below 2^63"),
    "cut in the number": (b"\xff", "expected 1 more bytes, got 0"),
    "more than there are": (b"\x07" + HAN_2X3[1:], f"expected at most 6 {TOO_MANY} 7"),
    "far more": (varint((1 << 63) - 1) + HAN_2X3[1:], f"expected at most 6 {TOO_MANY} {(1 << 63) - 1}"),
    "in nothing": (HAN_2X3, f"expected at most 0 {TOO_MANY} 3"),
    "with an empty codebook": (HAN_2X3, f"expected at most 0 {TOO_MANY} 3"),
    "too few": (b"\x02" + HAN_2X3[1:], "expected 2 non-zero indices below 3, got 3 up to 2"),
    "too many": (b"\x04" + HAN_2X3[1:], "expected 4 non-zero indices below 3, got 3 up to 2"),
    "no code": (b"\x03", "ends too early"),
    "code cut": (HAN_2X3[:-1], "ends too early"),
    "code too long": (HAN_2X3 + b"\0", "expected the data to end at bit 34, got 14 bits more"),
    "bits after the code": (HAN_2X3[:-1] + bytes([HAN_2X3[-1] | 1]), "expected zeros in the unused bits"),
    "width 0": (b"\x01" + bits("000000"), "expected row starts of 1 to 3 bits for 6 weights, got 0"),
    "width 63": (b"\x01" + bits("111111"), "expected row starts of 1 to 3 bits for 6 weights, got 63"),
    "rows that fall": (b"\x01" + bits("000011 010 001"), "that do not fall"),
    "no entry": (b"\x01" + bits("000011 000 000"), "expected 1 to 6 entries, got 0"),
    "entries beyond the weights": (b"\x01" + bits("000011 000 111"), "expected 1 to 6 entries, got 7"),
    # One entry in row 0, of gap 3 in a row of 3.
    "outside its row": (
        b"\x01" + bits("000001 1 1  00011 001 0001 0  01 001 01 0"), "expected columns below 3 in row 0, got 3",
    ),
    "index beyond the codebook": (
        b"\x01" + bits("000001 1 1  00000 001 1 0  11 001 0001 0"), "expected symbols below 3",
    ),
    # Both codes of length 1, and a third symbol of length 1: a Kraft sum of 1.5.
    "lengths of no code": (b"\x03" + bits("000010 10 11  00010 001 111 000"), "Kraft sum of 1, got 1.5"),
    "lengths all 0": (b"\x03" + bits("000010 10 11  00010 001 000 000"), "Kraft sum of 1, got 0"),
    "lengths of 0 bits": (b"\x03" + bits("000010 10 11  00010 000 111"), "lengths of 1 to 5 bits, got 0"),
    "lengths of 6 bits": (b"\x03" + bits("000010 10 11  00000 110 000001 000"), "lengths of 1 to 5 bits, got 6"),
    "a lone symbol with ones": (
        b"\x03" + bits("000010 10 11  00001 001 1 1 1 0 1  10 001 0 0 1 0 1 0"), "only zeros for a Huffman code",
    ),
    # The gaps say that all three entries are zeros that bridge: no weight is left.
    "bridges only": (
        b"\x03" + bits("000010 10 11  00001 001 1 1 1 0 1  00 001 1 000"),
        "expected 3 non-zero indices below 3, got 0 up to 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SECTION_ERRORS)
def test_refuses_a_section(case: str) -> None:
    section, problem = SECTION_ERRORS[case]
    shape = (0, 3) if case == "in nothing" else (2, 3)
    data = one(section, shape, book() if case == "with an empty codebook" else book(-0.25, 0.5))
    with pytest.raises(FormatError) as caught:
        codec.decode(data)
    assert problem in caught.value.problem
    assert (caught.value.section, caught.value.offset) == ("tensor 'a'", len(data) - 4 - len(section))


@pytest.mark.parametrize(
    ("codec_", "indices", "problem"),
    [
        (HAN, [0, 2, 2, 0, 3, 0], "expected 3 non-zero indices below 3, got 3 up to 3"),
        (ADAPTIVE, [0, 2, 2, 0, 0, 0], "expected 3 non-zero indices below 3, got 2 up to 2"),
        (HAN, [1, 2, 2, 0, 2, 0], "expected 3 non-zero indices below 3, got 4 up to 2"),
    ],
)
def test_what_any_codec_decodes_is_checked(
    codec_: int, indices: list[int], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode_tensor(data: bytes, shape: tuple[int, ...], n_values: int, n_nonzero: int) -> np.ndarray:
        assert (data, shape, n_values, n_nonzero) == (b"code", (2, 3), 3, 3)
        return np.array(indices, np.uint8)

    fake = types.SimpleNamespace(decode_tensor=decode_tensor)
    monkeypatch.setattr(module, "coder", lambda _: fake)
    with pytest.raises(FormatError) as caught:
        codec.decode(one(b"\x03code", codec=codec_))
    assert (caught.value.problem, caught.value.section, caught.value.offset) == (problem, "tensor 'a'", 21)


def test_any_file_that_passes_decodes_to_finite_weights() -> None:
    """A value of the codebook may be finite in float32 but not in the tensor's dtype (docs/format.md 11)."""
    kind = entry(len(HAN_2X3), shared(F16), name("a"), sizes(2, 3))
    data = sws([book(1.0, 1e6, dtype=F32)], [kind], HAN_2X3)
    with pytest.raises(FormatError, match=r"expected .*float16.* got"):
        codec.decode(data)


def test_refuses_to_write_weights_that_would_be_infinite() -> None:
    t = tensor([0, 1], (2,), torch.tensor([0.0, 1e6]), torch.float16)
    with pytest.raises(ModelError, match="'a'"):
        codec.encode(only(t), EncodeConfig("han"))


# The codebook


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@settings(max_examples=20)
@given(st.lists(st.floats(2.0**-14, 60_000, width=32), max_size=20))
def test_a_codebook_is_rounded_as_torch_does(dtype: str, magnitudes: list[float]) -> None:
    codebook = torch.tensor([0.0, *(v * (-1) ** k for k, v in enumerate(sorted(magnitudes)))])
    out = round_to(dtype, codebook)
    assert out.dtype == dtype
    assert out.values.dtype == np.float32
    assert out.values.tolist() == codebook.to(getattr(torch, dtype)).float().tolist()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([], "float16"),
        ([0.1, -1.0], "float16"),
        ([2.0**-14, 65504.0], "float16"),
        ([2.0**-14 * 0.999, 1.0], "float32"),
        ([1e-5], "float32"),
        ([1.0, -65505.0], "float32"),
        ([1.0, 1e38], "float32"),
    ],
)
def test_auto_is_float16_within_its_normal_range(values: list[float], dtype: str) -> None:
    codebook = torch.tensor([0.0, *values])
    out = round_to("auto", codebook)
    assert out.dtype == dtype
    assert out.values.tolist() == codebook.to(getattr(torch, dtype)).float().tolist()


def test_float16_rounds_by_at_most_1_in_2048() -> None:
    generator = torch.Generator().manual_seed(0)
    codebook = torch.cat([torch.zeros(1), torch.rand(255, generator=generator).mul(20).sub(13.9).exp2().sort().values])
    out = round_to("auto", codebook)
    assert out.dtype == "float16"
    error = (torch.from_numpy(out.values) - codebook).abs()[1:] / codebook[1:]
    assert 0 < float(error.max()) <= 1 / 2048


@pytest.mark.parametrize(
    ("dtype", "values", "lost"),
    [
        ("float16", [1.0, 65520.0], "65520"),  # the first that rounds to infinity
        ("float16", [2.0**-25, 1.0], "2.98023e-08"),  # half of the smallest: it rounds to even, 0
        ("float16", [-1e-10, 1.0], "-1e-10"),
        ("bfloat16", [1.0, 3.4e38], "3.4e+38"),
        ("bfloat16", [1e-45, 1.0], "1.4013e-45"),
    ],
)
def test_refuses_to_lose_a_value(dtype: str, values: list[float], lost: str) -> None:
    with pytest.raises(ModelError) as caught:
        round_to(dtype, torch.tensor([0.0, *values]))
    assert f"'a': expected a codebook that {dtype} can hold, got {lost}. Set" in str(caught.value)
    assert round_to("auto", torch.tensor([0.0, *values])).dtype == "float32"


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16", "bfloat16"])
def test_the_file_has_the_rounded_codebook(dtype: Any) -> None:
    codebook = torch.tensor([0.0, 0.1, -0.30005])
    stored = {"auto": F16, "float32": F32, "float16": F16, "bfloat16": BF16}[dtype]
    rounded = codebook.to(torch.float16 if dtype == "auto" else getattr(torch, dtype)).float()
    data = codec.encode(only(tensor(HAN_2X3_INDICES, (2, 3), codebook)), EncodeConfig("han", dtype))
    assert data == one(HAN_2X3, values=book(*rounded[1:].tolist(), dtype=stored))
    back = codec.decode(data).shared[0]
    assert back.codebook.tolist() == rounded.tolist()


def test_values_that_round_to_one_stay_two() -> None:
    codebook = torch.tensor([0.0, 1.0, 1.00001])
    data = codec.encode(only(tensor([1, 2, 0], (3,), codebook)), EncodeConfig("han", "float16"))
    back = codec.decode(data).shared[0]
    assert back.codebook.tolist() == [0.0, 1.0, 1.0]
    assert back.indices.tolist() == [1, 2, 0]


# Broken promises of a QuantizedTensor


@pytest.mark.parametrize(
    ("t", "message"),
    [
        (tensor([0], (1,), torch.tensor([0.5])), "float32 codebook that begins with 0.0"),
        (tensor([0], (1,), torch.zeros(0)), "float32 codebook that begins with 0.0"),
        (tensor([0], (1,), torch.zeros(1, 1)), "float32 codebook that begins with 0.0"),
        (tensor([0], (1,), torch.zeros(1).double()), "float32 codebook that begins with 0.0"),
        (tensor([0], (1,), torch.tensor([0.0, torch.nan])), "codebook: expected finite values"),
        (tensor([0], (1,), torch.tensor([0.0, torch.inf])), "codebook: expected finite values"),
        (tensor([0], (1,), torch.tensor([0.0, 0.0])), "codebook: expected finite values other than 0"),
        (tensor([0], (1,), torch.tensor([0.0, 2.0, -1.0])), "ordered by magnitude"),
        (tensor([0], (1,), BOOK, torch.int64), "expected a floating-point dtype, got torch.int64"),
        (tensor([0, 1], (1,)), r"expected torch.uint8 indices of shape \(1,\), got torch.uint8 of shape \(2,\)"),
        (tensor([[0, 1]], (1, 2)), r"indices of shape \(2,\), got torch.uint8 of shape \(1, 2\)"),  # type: ignore[list-item]
        (tensor([0, 3], (2,)), "expected indices from 0 to 2, got 0 to 3"),
        (
            QuantizedTensor("a", (1,), torch.float32, torch.zeros(1, dtype=torch.int64), BOOK),
            "expected torch.uint8 indices .* got torch.int64",
        ),
        (
            QuantizedTensor("a", (1,), torch.float32, torch.tensor([-1], dtype=torch.int16), torch.arange(300.0)),
            "expected indices from 0 to 299, got -1 to -1",
        ),
    ],
)
def test_refuses_to_encode(t: QuantizedTensor, message: str) -> None:
    with pytest.raises(ModelError, match=f"shared tensor 'a'.*{message}"):
        codec.encode(only(t), EncodeConfig("han"))


def test_shared_float64_dtype_round_trips() -> None:
    t = tensor([2, 0, 1], (3,), BOOK, torch.float64)
    data = codec.encode(only(t), EncodeConfig("han"))
    assert codec.decode(data).shared[0].dense().tolist() == [0.5, 0.0, -0.25]
    assert codec.decode(data).shared[0].dtype == torch.float64
    section = module.encode(t, EncodeConfig("han")).data
    assert data == sws([book(-0.25, 0.5)], [entry(len(section), shared(F64), name("a"), sizes(3))], section)
