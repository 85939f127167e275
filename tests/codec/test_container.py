"""Whole files: their bytes, round trips, and what the reader and the writer refuse."""

from __future__ import annotations

import dataclasses
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from by_hand import (
    ADAPTIVE,
    BF16,
    BIAS,
    F16,
    F32,
    F64,
    HAN,
    HAN_2X3,
    HAN_2X3_INDICES,
    I64,
    VECTOR,
    WEIGHT,
    bits,
    book,
    entry,
    head,
    name,
    rest,
    seal,
    shared,
    sizes,
    sws,
    varint,
)
from samples import CODEBOOK, Net, assert_same, net_weights
from samples import shared as random_shared
from softshare import codec
from softshare.codec import header_checks
from softshare.config import EncodeConfig
from softshare.config.settings import Codec
from softshare.errors import ConfigError, FormatError, ModelError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights, index_dtype

HAN_CONFIG = EncodeConfig("han")
CODECS: list[Codec] = ["han", "adaptive"]
FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
DTYPES = [*FLOATS, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool]


def quantized(
    name: str, indices: Any, shape: tuple[int, ...], codebook: Tensor = CODEBOOK, dtype: torch.dtype = torch.float32
) -> QuantizedTensor:
    narrow = torch.as_tensor(indices).to(index_dtype(len(codebook)))
    return QuantizedTensor(name, shape, dtype, narrow, codebook)


def tiny() -> QuantizedWeights:
    """Three tensors and a tied name, in slightly more than a hundred bytes."""
    tensors = (random_shared("a", (3, 4)), random_shared("a.bias", (4,), torch.tensor([0.0, 3.0]), 1))
    return QuantizedWeights(tensors, {"n": torch.tensor([7, 300])}, {"c": "a"}, ("a", "n", "a.bias"))


def tiny_shared() -> QuantizedWeights:
    return QuantizedWeights(tiny().shared, {}, {"c": "a"})


# Whole files, byte by byte

# A row of 3 whose last weight is 1 of a codebook of 2: one entry in 1 row, w = 1. Gap 2 alone: last symbol 2 in 5 bits,
# lengths 0 0 1, code 0. Index 1 alone: last symbol 1 in 1 bit, lengths 0 1, code 0.
ROW = varint(1) + bits("000001 1  00010 001 001 0  1 001 01 0")


def han_file(*books: bytes, t_bias: bytes) -> bytes:
    entries = [
        entry(len(HAN_2X3), None, name("layers.0", WEIGHT), sizes(2, 3)),
        entry(0, None, name("", BIAS, prefix=8), VECTOR),
        entry(len(ROW), shared(F32, 1), name("1", WEIGHT, prefix=7), sizes(1, 3)),
        entry(len(ROW), None, name("", BIAS, prefix=8), sizes(3)),
        entry(len(HAN_2X3), shared(BF16, 0), name("out"), sizes(2, 3)),
        entry(len(ROW), shared(F64, 2), name("s"), sizes(3)),
    ]
    return sws(books, entries, HAN_2X3 + ROW + ROW + HAN_2X3 + ROW, [name("tied", WEIGHT) + b"\0", t_bias + b"\5"])


HAN_FILE = han_file(book(-0.25, 0.5), book(0.1, dtype=F32), book(-2.0, dtype=BF16), t_bias=name("t", BIAS))


def han_weights() -> QuantizedWeights:
    """What the file holds. It stores the codebook of -2.0 in bfloat16; our writer stores it in float16."""
    fine, coarse = torch.tensor([0.0, 0.1]), torch.tensor([0.0, -2.0])
    tensors = (
        quantized("layers.0.weight", HAN_2X3_INDICES, (2, 3)),
        quantized("layers.0.bias", [0, 0], (2,)),
        quantized("layers.1.weight", [0, 0, 1], (1, 3), fine),
        quantized("layers.1.bias", [0, 0, 1], (3,), fine),
        quantized("out", HAN_2X3_INDICES, (2, 3), dtype=torch.bfloat16),
        quantized("s", [0, 0, 1], (3,), coarse, torch.float64),
    )
    return QuantizedWeights(tensors, {}, {"tied.weight": "layers.0.weight", "t.bias": "s"})


def test_a_file_made_by_hand_decodes() -> None:
    assert_same(codec.decode(HAN_FILE), han_weights())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bytes_of_a_file(dtype: Any) -> None:
    """`codebook_dtype` is the dtype of all codebooks; 0.1 rounds to it."""
    number = {"float32": F32, "float16": F16, "bfloat16": BF16}[dtype]
    tenth = float(torch.tensor(0.1).to(getattr(torch, dtype)))
    books = (book(-0.25, 0.5, dtype=number), book(tenth, dtype=number), book(-2.0, dtype=number))
    expected = han_file(*books, t_bias=name("", BIAS, prefix=1))
    data = codec.encode(han_weights(), EncodeConfig("han", dtype))
    assert data == expected
    assert [t.codebook.tolist()[1:] for t in codec.decode(data).shared[2:4]] == [[tenth], [tenth]]


def test_bytes_of_a_file_without_names() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    weights = QuantizedWeights(
        (quantized("0.weight", HAN_2X3_INDICES, (2, 3)), quantized("0.bias", [0, 0], (2,))), {}, {}
    )
    data = codec.encode(weights, EncodeConfig("han", names="none"))
    assert data == seal(head(HAN) + b"\1" + book(-0.25, 0.5) + b"\2" + entry(len(HAN_2X3)) + entry(0) + HAN_2X3)
    assert len(data) == 6 + 1 + 5 + 1 + 2 + len(HAN_2X3) + 4
    assert_same(codec.decode(data, like=model), weights)


@pytest.mark.parametrize("name_", CODECS)
def test_bytes_of_nothing(name_: Codec) -> None:
    flag = ADAPTIVE if name_ == "adaptive" else HAN
    nothing = QuantizedWeights((), {}, {})
    assert (
        codec.encode(nothing, EncodeConfig(name_, compact=False))
        == b"\x89SWS\x01" + seal(head(2 | flag) + b"\0\0\0")[5:]
    )
    assert codec.encode(nothing, EncodeConfig(name_, names="none")) == seal(head(flag) + b"\0\0")
    back = codec.decode(codec.encode(nothing, EncodeConfig(name_)))
    assert (back.shared, back.rest, back.tied) == ((), {}, {})
    assert back.state_dict() == {}


@pytest.mark.parametrize("name_", CODECS)
def test_bytes_of_zeros(name_: Codec) -> None:
    """A tensor of zeros is its header alone, whatever the codec."""
    zeros = QuantizedWeights((quantized("w", [0] * 6, (2, 3), torch.zeros(1)),), {}, {})
    flag = ADAPTIVE if name_ == "adaptive" else HAN
    expected = sws([book()], [entry(0, None, name("w"), sizes(2, 3))], codec=flag)
    assert codec.encode(zeros, EncodeConfig(name_, compact=False)) == expected
    assert_same(codec.decode(expected), zeros)


def test_a_raw_rest_made_by_hand_decodes() -> None:
    section = struct.pack("<2e", 1.0, -2.5) + struct.pack("<q", -7) + struct.pack("<2e", 0.5, 4)
    entries = [
        entry(4, rest(F64, F16), name("b"), sizes(2)),
        entry(8, rest(I64), name("n"), sizes()),
        entry(4, rest(F16), name("h"), sizes(1, 2)),
    ]
    back = codec.decode(sws([], entries, section, [name("x") + b"\1"], ADAPTIVE))
    expected = {
        "b": torch.tensor([1.0, -2.5], dtype=torch.float64),
        "n": torch.tensor(-7),
        "h": torch.tensor([[0.5, 4.0]], dtype=torch.float16),
    }
    assert_same(back, QuantizedWeights((), expected, {"x": "n"}))


# Round trips


@st.composite
def weights(draw: st.DrawFn) -> QuantizedWeights:
    shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple) | st.sampled_from([(60,), (8, 9), (3, 2, 3, 3), (0, 4)])
    tensors, kept = [], {}
    names = draw(st.lists(st.text("ab.wß", min_size=1, max_size=8), max_size=6, unique=True))
    for text in names:
        shape, seed = draw(shapes), draw(st.integers(0, 999))
        if draw(st.booleans()):
            n_values, density = draw(st.sampled_from([1, 2, 3, 17, 257])), draw(st.sampled_from([0.0, 0.1, 0.6, 1.0]))
            codebook = torch.arange(n_values, dtype=torch.float32) / 8  # float16 holds them
            dtype = draw(st.sampled_from(FLOATS))
            tensors.append(random_shared(text, shape, codebook, seed, dtype, density))
        else:
            dtype = draw(st.sampled_from(DTYPES))
            values = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed))
            kept[text] = values.to(dtype)
    order = draw(st.permutations(names))
    tied = (
        {f"{text}!{k}": text for k, text in enumerate(draw(st.lists(st.sampled_from(names), max_size=3)))}
        if names
        else {}
    )
    inner = {t.name: t for t in tensors}
    return QuantizedWeights(
        tuple(inner[n] for n in order if n in inner), {n: kept[n] for n in order if n in kept}, tied, tuple(order)
    )


@pytest.mark.parametrize("name_", CODECS)
@settings(max_examples=30)
@given(weights())
def test_round_trip(name_: Codec, value: QuantizedWeights) -> None:
    data = codec.encode(value, EncodeConfig(name_))
    assert_same(codec.decode(data), value)
    info = codec.inspect(data)
    assert [t.name for t in info.tensors] == list(value.tensors)
    assert sum(t.n_bytes for t in info.tensors) + info.overhead_bytes == len(data)


SPECIAL: dict[str, Callable[[], QuantizedTensor]] = {
    "one weight": lambda: quantized("w", [1], ()),
    "huge gaps in a convolution": lambda: quantized("w", torch.arange(90_000) % 29_989 == 0, (3, 10, 50, 60)),
    "65,536 values": lambda: quantized("w", torch.randperm(1 << 16, generator=torch.Generator().manual_seed(0)),
                                       (256, 256), torch.arange(1 << 16, dtype=torch.float32)),
    "64 dimensions": lambda: random_shared("w", (2, 3, *[1] * 60, 2, 5), torch.arange(4.0), 5),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name_", "case"),
    [
        ("han", "one weight"),
        ("adaptive", "huge gaps in a convolution"),
        ("han", "65,536 values"),
        ("adaptive", "64 dimensions"),
    ],
)
def test_round_trip_of_special_tensors(name_: Codec, case: str) -> None:
    value = QuantizedWeights((SPECIAL[case](),), {}, {})
    config = EncodeConfig(name_, codebook_dtype="float32")
    data = codec.encode(value, config)
    assert_same(codec.decode(data), value)
    assert data == codec.encode(value, config)


@pytest.mark.parametrize("name_", CODECS)
def test_round_trip_of_a_network(name_: Codec) -> None:
    value = net_weights()
    back = codec.decode(codec.encode(value, EncodeConfig(name_)))
    assert_same(back, value)
    assert list(back.state_dict()) == [*value.order, "head.weight"]


def test_tensors_keep_their_order() -> None:
    """Shared and rest stay in the network's order. Without an order, the shared ones come first."""
    value = tiny()
    assert list(codec.decode(codec.encode(value)).tensors) == ["a", "n", "a.bias"]
    unordered = dataclasses.replace(value, order=())
    back = codec.decode(codec.encode(unordered))
    assert list(back.tensors) == ["a", "a.bias", "n"]
    assert back.order == ("a", "a.bias", "n")


def test_the_default_codec_is_adaptive() -> None:
    assert codec.inspect(codec.encode(tiny_shared())).codec == "adaptive"
    assert codec.encode(tiny_shared()) != codec.encode(tiny_shared(), HAN_CONFIG)


def test_a_codebook_is_stored_once() -> None:
    other = CODEBOOK.clone()
    value = QuantizedWeights((random_shared("a", (4,)), random_shared("b", (4,), other)), {}, {})
    data = codec.encode(value, HAN_CONFIG)
    assert data[6:7] == b"\1"
    one, two = codec.decode(data).shared
    assert one.codebook.data_ptr() == two.codebook.data_ptr()
    third = random_shared("c", (4,), torch.tensor([0.0, 0.25, 0.5]))  # another value
    data = codec.encode(dataclasses.replace(value, shared=(*value.shared, third)), HAN_CONFIG)
    assert data[6:7] == b"\2"
    assert codec.decode(data).shared[2].codebook.tolist() == [0.0, 0.25, 0.5]


def test_codebooks_that_round_to_one_are_stored_once() -> None:
    near = CODEBOOK * (1 + 1e-6)
    value = QuantizedWeights((random_shared("a", (4,)), random_shared("b", (4,), near)), {}, {})
    assert codec.encode(value, HAN_CONFIG)[6:7] == b"\1"
    assert codec.encode(value, EncodeConfig("han", "float32"))[6:7] == b"\2"


# Without names


@pytest.mark.parametrize("name_", CODECS)
def test_without_names(name_: Codec, tmp_path: Path) -> None:
    value = net_weights()
    config = EncodeConfig(name_, names="none")
    data = codec.encode(value, config)
    assert len(data) < len(codec.encode(value, EncodeConfig(name_))) - 60
    for word in (b"conv", b"norm", b"embed", b"head", b"scale"):
        assert word not in data
    assert_same(codec.decode(data, like=Net()), value)
    codec.save(value, tmp_path / "m.sws", config)
    state = codec.load(tmp_path / "m.sws", like=Net())
    assert state["head.weight"] is state["embed.weight"]
    assert list(codec.load(tmp_path / "m.sws", ["head.weight"], like=Net())) == ["head.weight"]
    model = Net()
    codec.load_into_(model, tmp_path / "m.sws")
    for text, tensor in value.state_dict().items():
        assert torch.equal(state[text], tensor)
        assert torch.equal(model.state_dict()[text], tensor)


def test_without_names_or_a_network(tmp_path: Path) -> None:
    data = codec.encode(net_weights(), EncodeConfig("han", names="none"))
    (tmp_path / "m.sws").write_bytes(data)
    message = r"no names and shapes \(names='none'\): .* load_into_\(model, path\) or load\(path, like=model\)"
    with pytest.raises(ConfigError, match=message):
        codec.decode(data)
    with pytest.raises(ConfigError, match=message):
        codec.load(tmp_path / "m.sws")
    info = codec.inspect(data)
    assert [(t.name, t.shape, t.n) for t in info.tensors] == [(None, None, None)] * 10
    assert [t.kind for t in info.tensors] == ["rest", "shared", "shared", *["rest"] * 5, "shared", "shared"]
    value = net_weights()
    counts = {t.name: t.n_nonzero for t in value.shared}
    assert [t.n_nonzero for t in info.tensors] == [counts.get(text) for text in value.order]


def test_a_network_does_not_matter_to_a_file_with_names() -> None:
    data = codec.encode(net_weights(), HAN_CONFIG)
    assert_same(codec.decode(data, like=nn.Linear(1, 1)), net_weights())


def test_without_names_the_number_of_tensors_must_be_the_networks(tmp_path: Path) -> None:
    """The given network is wrong, so the error is a ModelError (docs/format.md 10)."""
    path = tmp_path / "m.sws"
    codec.save(net_weights(), path, EncodeConfig("han", names="none"))
    with pytest.raises(ModelError, match="10"):
        codec.load(path, like=nn.Linear(3, 2))
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    with pytest.raises(ModelError, match="10"):
        codec.load_into_(model, path)
    assert torch.equal(model.weight, before)


# What cannot be encoded


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            QuantizedWeights((random_shared("a", (2,)),), {"a": torch.zeros(1)}, {}),
            r"each name once.*got \['a', 'a'\]",
        ),
        (QuantizedWeights((random_shared("a", (2,)), random_shared("a", (2,))), {}, {}), "each name once"),
        (QuantizedWeights((random_shared("a", (2,)),), {}, {"b": "c"}), r"names of stored tensors, got \['c'\]"),
        (QuantizedWeights((random_shared("a", (2,)),), {}, {"a": "a"}), r"each name once, got \['a'\] more than once"),
        (QuantizedWeights((random_shared("a", (2,)),), {}, {}, ("b",)), "an order of exactly these names"),
        (QuantizedWeights((random_shared("a", (2,)),), {}, {}, ("a", "a")), "an order of exactly these names"),
        (QuantizedWeights((random_shared("a\n", (2,)),), {}, {}), "without control characters"),
        (QuantizedWeights((random_shared("", (2,)),), {}, {}), "a name of 1 to 4096 bytes, got 0"),
        (QuantizedWeights((random_shared("a", (2,)),), {}, {"\ud800": "a"}), "a name in UTF-8"),
        (QuantizedWeights((random_shared("a", (1,) * 65),), {}, {}), "at most 64 sizes"),
    ],
)
def test_refuses_to_encode(value: QuantizedWeights, message: str) -> None:
    """With or without names in the file."""
    for config in (EncodeConfig("han"), EncodeConfig("han", names="none")):
        with pytest.raises(ModelError, match=message):
            codec.encode(value, config)


def test_a_network_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 + 4 weights."""
    data = codec.encode(tiny_shared(), HAN_CONFIG)
    monkeypatch.setattr(header_checks, "MAX_VALUES", 16)
    assert codec.encode(tiny_shared(), HAN_CONFIG) == data
    monkeypatch.setattr(header_checks, "MAX_VALUES", 15)
    with pytest.raises(ModelError, match="at most 15 values over all tensors, got 16"):
        codec.encode(tiny_shared(), HAN_CONFIG)
    with pytest.raises(FormatError, match="at most 15 values over all tensors, got 16"):
        codec.decode(data)


# Prefix and checksum


@pytest.mark.parametrize(
    ("data", "section", "offset", "problem"),
    [
        (b"", "prefix", 0, r"expected a file that begins with b'\x89SWS', as every .sws file does, got b''"),
        (b"PK\x03\x04 and so on", "prefix", 0, r"got b'PK\x03\x04'"),
        (b"\x89SWS", "prefix", 0, "got b''"),  # four bytes are the checksum's
        (b"\x89SWS" + bytes(4), "prefix", 4, "expected 1 more bytes, got 0"),
        (seal(head(version=0) + b"\0\0\0"), "prefix", 4, "expected version 1 or 2, got 0"),
        (seal(head(version=3) + b"\0\0\0"), "prefix", 4, "expected version 1 or 2, got 3. Another version of"),
        (head(version=3) + b"whatever comes", "prefix", 4, "expected version 1 or 2, got 3"),  # before the checksum
        (seal(head(magic=b"\x89sws") + b"\0\0\0"), "prefix", 0, r"got b'\x89sws'"),
        (seal(head() + b"\0\0\0") + b"x", "checksum", 10, ": the file is damaged or cut short"),
        (seal(head() + b"\0\0\0")[:-1], "checksum", 8, ": the file is damaged or cut short"),
        (head(255) + b"\0\0\0" + bytes(4), "checksum", 9, "got 00000000"),  # before the flags
    ],
)
def test_prefix_and_checksum(data: bytes, section: str, offset: int, problem: str) -> None:
    with pytest.raises(FormatError) as caught:
        codec.decode(data)
    assert problem in caught.value.problem
    assert (caught.value.section, caught.value.offset) == (section, offset)
    if section == "prefix":
        with pytest.raises(FormatError) as again:
            codec.inspect(data)
        assert str(again.value) == str(caught.value)


def test_the_checksum_says_both() -> None:
    data = seal(head() + b"\0\0\0")
    with pytest.raises(FormatError) as caught:
        codec.decode(data[:-4] + b"\1\2\3\4")
    assert caught.value.problem == f"expected {data[-4:].hex()}, got 01020304: the file is damaged or cut short"


# Damage


@pytest.mark.parametrize("name_", CODECS)
def test_truncation_at_every_byte(name_: Codec) -> None:
    data = codec.encode(tiny(), EncodeConfig(name_))
    assert codec.decode(data).n_shared == 16
    for length in range(len(data)):
        with pytest.raises(FormatError) as caught:
            codec.decode(data[:length])
        assert caught.value.section == ("prefix" if length < 9 else "checksum")


@pytest.mark.parametrize("name_", CODECS)
def test_every_changed_byte_is_noticed(name_: Codec) -> None:
    data = codec.encode(tiny(), EncodeConfig(name_))
    for k in range(len(data)):
        for change in (1, 0x80, 0xFF):
            damaged = data[:k] + bytes([data[k] ^ change]) + data[k + 1 :]
            with pytest.raises(FormatError) as caught:
                codec.decode(damaged)
            assert (caught.value.section, caught.value.offset) == (
                ("prefix", 0 if k < 4 else 4) if k < 5 else ("checksum", len(data) - 4)
            )


def outcome(data: bytes) -> QuantizedWeights | FormatError:
    """One of these two and nothing else."""
    try:
        return codec.decode(data, max_bytes=1 << 20)
    except FormatError as error:
        return error


def check_consistent(data: bytes) -> bool:
    """Whether it decodes. It must decode to what its header says, or raise an error with a place."""
    back = outcome(data)
    if isinstance(back, FormatError):
        assert back.section is not None
        assert back.offset is not None
        assert 0 <= back.offset <= len(data)
        assert "expected" in back.problem
        assert "got" in back.problem
        return False
    info = {t.name: t for t in codec.inspect(data).tensors}
    for t in back.shared:
        assert t.shape == info[t.name].shape
        assert t.indices.numel() == math.prod(t.shape)
        assert t.n_nonzero == info[t.name].n_nonzero
        assert not t.indices.numel() or 0 <= int(t.indices.min()) <= int(t.indices.max()) < len(t.codebook)
        assert bool(t.codebook.isfinite().all())
        assert bool((t.codebook[1:] != 0).all())
    for text, tensor in back.rest.items():
        assert tuple(tensor.shape) == info[text].shape
    assert set(back.tied.values()) <= set(info)
    return True


@pytest.mark.parametrize("name_", CODECS)
def test_any_changed_byte_under_a_right_checksum(name_: Codec) -> None:
    """The checksum does not protect the caller here, only the reader does: every byte, with telling values."""
    body = codec.encode(tiny(), EncodeConfig(name_))[:-4]
    outcomes = []
    for k in range(len(body)):
        for value in {0, 1, 0x7F, 0x80, 0xFF, body[k] ^ 1, body[k] ^ 0x10, body[k] + 1 & 0xFF} - {body[k]}:
            outcomes.append(check_consistent(seal(body[:k] + bytes([value]) + body[k + 1 :])))
    assert outcomes.count(False) > len(outcomes) / 4
    assert outcomes.count(True) > 0


@pytest.mark.parametrize("name_", CODECS)
def test_any_cut_or_doubled_byte_under_a_right_checksum(name_: Codec) -> None:
    body = codec.encode(tiny(), EncodeConfig(name_))[:-4]
    for k in range(len(body)):
        check_consistent(seal(body[:k] + body[k + 1 :]))
        check_consistent(seal(body[: k + 1] + body[k:]))
        assert not check_consistent(seal(body[:k]))


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_under_a_right_checksum(tail: bytes, adaptive: bool) -> None:
    check_consistent(seal(head(2 | adaptive) + tail))


# Limits


@pytest.mark.parametrize(("flag", "kind"), [(HAN, None), (ADAPTIVE, shared(F16)), (HAN, rest(I64, planes=True))])
def test_a_small_file_of_half_a_trillion_weights(flag: int, kind: bytes | None, tmp_path: Path) -> None:
    data = sws([book(0.5)], [entry(0, kind, name("weight"), sizes(1 << 39))], codec=flag)
    assert len(data) < 100
    (tmp_path / "m.sws").write_bytes(data)
    size = (1 << 39) * {None: 4, shared(F16): 2}.get(kind, 8)
    for read in (lambda: codec.decode(data), lambda: codec.load(tmp_path / "m.sws")):
        with pytest.raises(FormatError) as caught:
            read()
        assert f"expected at most 4,294,967,296 bytes of decoded tensors, got {size:,}" in caught.value.problem
        assert caught.value.section == "header"
    model = nn.Linear(3, 1, bias=False)
    with pytest.raises(ModelError, match=rf"weight: shape \({1 << 39},\) in the file, \(1, 3\) in the model"):
        codec.load_into_(model, tmp_path / "m.sws")
    assert codec.inspect(data).tensors[0].n == 1 << 39


def test_max_bytes_is_what_the_caller_says(tmp_path: Path) -> None:
    """48 + 16 bytes of float32, 16 of int64, and 48 again under a tied name."""
    data = codec.encode(tiny(), HAN_CONFIG)
    codec.save(tiny(), tmp_path / "m.sws", HAN_CONFIG)
    assert codec.decode(data, max_bytes=128).n_shared == 16
    assert len(codec.load(tmp_path / "m.sws", max_bytes=128)) == 4
    with pytest.raises(FormatError, match="expected at most 127 bytes of decoded tensors, got 128, each tied name"):
        codec.decode(data, max_bytes=127)
    with pytest.raises(FormatError, match=r"m\.sws: header, byte 0: expected at most 127 bytes"):
        codec.load(tmp_path / "m.sws", max_bytes=127)
    assert list(codec.load(tmp_path / "m.sws", ["n"], max_bytes=16)) == ["n"]
    with pytest.raises(FormatError, match="expected at most 15 bytes of decoded tensors, got 16"):
        codec.load(tmp_path / "m.sws", ["n"], max_bytes=15)


def test_empty_tensors_beside_large_sizes_cost_nothing() -> None:
    data = sws(
        [book(0.5)], [entry(0, None, name("a"), sizes(0, 1 << 39)), entry(0, None, name("b"), sizes(1 << 38, 0))]
    )
    back = codec.decode(data, max_bytes=0)
    assert [t.dense().shape for t in back.shared] == [(0, 1 << 39), (1 << 38, 0)]


@pytest.mark.slow
def test_many_tensors(tmp_path: Path) -> None:
    path, n = tmp_path / "m.sws", 1 << 11
    path.write_bytes(sws([book(0.5)], [entry(0, None, name(f"{k}"), sizes()) for k in range(n)]))
    assert list(codec.load(path)) == [f"{k}" for k in range(n)]
    model = nn.ParameterList([torch.ones(()) for _ in range(n)])
    codec.load_into_(model, path)
    assert all(float(p.detach()) == 0 for p in model)


def test_crc_is_zlibs() -> None:
    data = codec.encode(tiny_shared(), HAN_CONFIG)
    assert struct.unpack("<I", data[-4:])[0] == zlib.crc32(data[:-4])


def test_check_finds_what_no_file_can_hold_and_codes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for target in ("softshare.codec.shared_section.encode", "softshare.codec.rest_section.encode"):
        monkeypatch.setattr(target, None)
    codec.check(tiny())
    large = QuantizedWeights((), {"b": torch.tensor([1e6])}, {})
    codec.check(large)
    with pytest.raises(ModelError, match="'b': expected values within the range of float16"):
        codec.check(large, EncodeConfig(rest_dtype="float16"))
    with pytest.raises(ModelError, match="control characters"):
        codec.check(QuantizedWeights((), {"b\n": torch.tensor([1.0])}, {}))


def test_no_limit() -> None:
    data = codec.encode(tiny(), HAN_CONFIG)
    assert codec.decode(data, max_bytes=None).n_shared == codec.decode(data).n_shared
