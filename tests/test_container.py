from __future__ import annotations

import json
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from softshare import codec
from softshare.codec import header as header_module
from softshare.config import EncodeConfig
from softshare.errors import ConfigError, FormatError, ModelError
from softshare.quantize import QuantizedTensor, QuantizedWeights

ALL_DTYPES = list(header_module.DTYPES.values())


def shared(
    name: str, shape: tuple[int, ...], codebook: Tensor, seed: int = 0, dtype: torch.dtype = torch.float32
) -> QuantizedTensor:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(len(codebook), (math.prod(shape),), generator=generator)
    return QuantizedTensor(name, shape, dtype, indices, codebook, is_conv=len(shape) == 4)


def rest_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    values = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(seed))
    return (values / 7 if dtype.is_floating_point else values).to(dtype)


CODEBOOK = torch.tensor([0.0, -0.25, 0.5])


class Net(nn.Module):
    """A convolution, a batch norm with its int64 counter, and a head tied to an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.bfloat16))


def net_weights() -> QuantizedWeights:
    model = Net()
    rest = {name: t for name, t in model.state_dict().items() if name.startswith(("norm", "scale"))}
    rest |= {"norm.running_mean": torch.tensor([0.1, -0.3]), "norm.num_batches_tracked": torch.tensor((1 << 40) + 1)}
    tensors = (
        shared("conv.weight", (2, 1, 3, 3), CODEBOOK, 1),
        shared("conv.bias", (2,), CODEBOOK, 2),
        shared("embed.weight", (5, 4), torch.tensor([0.0, 0.1, -0.2, 0.3]), 3),
        shared("head.bias", (5,), CODEBOOK, 4),
    )
    return QuantizedWeights(tensors, rest, {"head.weight": "embed.weight"})


def tiny() -> QuantizedWeights:
    tensors = (shared("a", (3, 4), CODEBOOK),)
    return QuantizedWeights(tensors, {"n": torch.tensor(7), "b": torch.tensor([0.5, 2.0])}, {"c": "a"})


def assert_same(a: QuantizedWeights, b: QuantizedWeights) -> None:
    for x, y in zip(a.shared, b.shared, strict=True):
        assert (x.name, x.shape, x.dtype, x.is_conv) == (y.name, y.shape, y.dtype, y.is_conv)
        assert torch.equal(x.indices, y.indices)
        assert x.codebook.numpy().tobytes() == y.codebook.numpy().tobytes()
    assert list(a.rest) == list(b.rest)
    for name, tensor in a.rest.items():
        assert tensor.dtype == b.rest[name].dtype
        torch.testing.assert_close(b.rest[name], tensor, rtol=0, atol=0, equal_nan=True)
    assert a.tied == b.tied


def build(header: Any, sections: bytes = b"", text: bytes | None = None, packed: bytes | None = None) -> bytes:
    """A file with a right checksum, from parts that may be wrong."""
    packed = packed or zlib.compress(json.dumps(header).encode() if text is None else text)
    body = struct.pack("<4sBI", b"\x89SWS", 0, len(packed)) + packed + sections
    return body + struct.pack("<I", zlib.crc32(body))


def header(**changes: Any) -> dict[str, Any]:
    """The header of two tensors, one all zero, over the sections `SECTIONS`."""
    values: dict[str, Any] = {
        "codec": "han",
        "codebooks": [1],
        "shared": [["a", [2, 3], "float32", 0, False, 1]],
        "rest": [["b", [2], "float64", "float16", 4]],
        "tied": {"c": "a"},
    }
    return values | changes


SECTIONS = struct.pack("<f", 0.0) + b"\x00" + struct.pack("<ee", 1.0, -2.5)


# Round trips


def test_bytes_of_a_file() -> None:
    weights = codec.decode(build(header(), SECTIONS))
    zeros = QuantizedTensor("a", (2, 3), torch.float32, torch.zeros(6, dtype=torch.int64), torch.zeros(1))
    expected = QuantizedWeights((zeros,), {"b": torch.tensor([1, -2.5], dtype=torch.float64)}, {"c": "a"})
    assert_same(expected, weights)
    data = codec.encode(expected, EncodeConfig(rest_dtype="float16"))
    length = struct.unpack_from("<4sBI", data)[2]
    assert data[:5] == b"\x89SWS\x00"
    assert json.loads(zlib.decompress(data[9 : 9 + length])) == header()
    assert data[9 + length : -4] == SECTIONS
    assert data[-4:] == struct.pack("<I", zlib.crc32(data[:-4]))


def test_round_trip_of_a_network() -> None:
    weights = net_weights()
    assert_same(weights, codec.decode(codec.encode(weights)))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 6), max_size=4), st.integers(1, 9), st.integers(0, 99)), max_size=4),
    st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(ALL_DTYPES)), max_size=4),
    st.text(max_size=3),
)
def test_round_trip(
    shareds: list[tuple[list[int], int, int]], rests: list[tuple[list[int], torch.dtype]], prefix: str
) -> None:
    floats = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
    tensors = tuple(
        shared(f"{prefix}{k}", tuple(shape), torch.arange(n, dtype=torch.float32), seed, floats[seed % 4])
        for k, (shape, n, seed) in enumerate(shareds)
    )
    rest = {f"r{prefix}{k}": rest_tensor(dtype, tuple(shape), k) for k, (shape, dtype) in enumerate(rests)}
    rest = {name: t.float().to(t.dtype) if t.is_floating_point() else t for name, t in rest.items()}
    weights = QuantizedWeights(tensors, rest, {f"t{name}": name for name in rest})
    assert_same(weights, codec.decode(codec.encode(weights)))


def test_nothing_at_all() -> None:
    weights = codec.decode(codec.encode(QuantizedWeights((), {}, {})))
    assert (weights.shared, weights.rest, weights.tied) == ((), {}, {})


def test_same_input_same_bytes() -> None:
    assert codec.encode(tiny()) == codec.encode(tiny())


def test_a_codebook_is_stored_once() -> None:
    other = CODEBOOK.clone()
    weights = QuantizedWeights((shared("a", (4,), CODEBOOK), shared("b", (4,), other)), {}, {})
    one, two = codec.decode(codec.encode(weights)).shared
    assert one.codebook is two.codebook
    signed = torch.tensor([-0.0, -0.25, 0.5])  # equal by ==, not bit by bit
    weights = QuantizedWeights((shared("a", (4,), CODEBOOK), shared("b", (4,), signed)), {}, {})
    assert_same(weights, codec.decode(codec.encode(weights)))


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("rest_dtype", ["float32", "float16", "bfloat16"])
def test_rest_is_stored_no_wider_than_asked(dtype: torch.dtype, rest_dtype: Any) -> None:
    tensor = rest_tensor(dtype, (3, 5))
    data = codec.encode(QuantizedWeights((), {"r": tensor}, {}), EncodeConfig(rest_dtype=rest_dtype))
    back = codec.decode(data).rest["r"]
    narrow = getattr(torch, rest_dtype)
    shrinks = dtype.is_floating_point and narrow.itemsize < dtype.itemsize
    assert codec.inspect(data).tensors[0].n_bytes == 15 * (narrow if shrinks else dtype).itemsize
    assert back.dtype == dtype
    assert torch.equal(back, tensor.to(narrow).to(dtype) if shrinks else tensor)


def test_rest_keeps_special_values_and_odd_layouts() -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-40])
    turned = torch.arange(12.0).reshape(3, 4).T
    weights = QuantizedWeights((), {"special": special, "turned": nn.Parameter(turned)}, {})
    back = codec.decode(codec.encode(weights)).rest
    assert back["special"].numpy().tobytes() == special.numpy().tobytes()
    assert torch.equal(back["turned"], turned)
    assert not back["turned"].requires_grad


# What cannot be encoded


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (QuantizedWeights((), {"z": torch.zeros(2, dtype=torch.complex64)}, {}), "'z': cannot store torch.complex64"),
        (QuantizedWeights((shared("a", (2,), CODEBOOK, 0, torch.int64),), {}, {}), "'a': expected one of float64"),
        (QuantizedWeights((shared("a", (2,), CODEBOOK),), {"a": torch.zeros(1)}, {}), r"every name once, got \['a'\]"),
        (QuantizedWeights((), {"a": torch.zeros(1)}, {"b": "c"}), "stored tensors, got {'b': 'c'}"),
        (QuantizedWeights((), {"a": torch.zeros(1)}, {"a": "a"}), "every name once"),
        (QuantizedWeights((shared("a", (2,), torch.tensor([0.5])),), {}, {}), "'a': .* begins with 0.0"),
        (QuantizedWeights((shared("a", (2,), torch.zeros(1).double()),), {}, {}), "'a': expected a float32 codebook"),
        (QuantizedWeights((), {"a": torch.tensor([1e300], dtype=torch.float64)}, {}), "'a' holds values beyond"),
    ],
)
def test_refuses_to_encode(weights: QuantizedWeights, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        codec.encode(weights)


@pytest.mark.parametrize("indices", [torch.tensor([0, 3]), torch.tensor([-1, 0]), torch.tensor([0]), torch.zeros(2)])
def test_refuses_indices_that_do_not_fit(indices: Tensor) -> None:
    with pytest.raises(ModelError, match=r"'a': expected .*indices"):
        codec.encode(QuantizedWeights((QuantizedTensor("a", (2,), torch.float32, indices, CODEBOOK),), {}, {}))


def test_refuses_a_network_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    data = codec.encode(tiny())
    monkeypatch.setattr(header_module, "MAX_VALUES", 14)
    with pytest.raises(ModelError, match="at most 14 values"):
        codec.encode(tiny())
    with pytest.raises(FormatError, match="at most 14 values"):
        codec.decode(data)


# Damage


def test_truncation_at_every_byte() -> None:
    data = codec.encode(tiny())
    assert codec.decode(data).n_shared == 12
    for length in range(len(data)):
        with pytest.raises(FormatError, match="not an .sws file" if length < 4 else "truncated"):
            codec.decode(data[:length])


def test_every_flipped_bit_is_noticed() -> None:
    data = codec.encode(tiny())
    for k in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[k] ^= 1 << bit
            with pytest.raises(FormatError):
                codec.decode(bytes(damaged))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an .sws file"),
        (b"PK\x03\x04 and so on", "not an .sws file"),
        (b"\x89SWS\x07" + bytes(20), "unsupported version: expected 0, got 7"),
        (b"\x89SWS\x00\xff\xff\xff\xff" + bytes(20), "truncated: expected at least 4294967308 bytes, got 29"),
        (build(header(), SECTIONS)[:-1] + b"x", "altered or damaged"),
        (build(header(), SECTIONS) + b"x", "altered or damaged"),
        (build(header(), SECTIONS[:-1]), "sections to end at byte"),
        (build(header(), SECTIONS + b"x"), "sections to end at byte"),
    ],
)
def test_what_is_wrong_is_said_in_order(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        codec.decode(data)


HUGE = 1 << 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codec": "zip"}, "codec: expected one of han, adaptive, got 'zip'"),
        ({"codec": ["han"]}, "codec"),
        ({"more": 1}, "header: expected an object of codec, codebooks"),
        ({"codebooks": [0]}, "codebooks"),
        ({"codebooks": [True]}, "codebooks"),
        ({"codebooks": [1 << 62]}, "sections to end at byte"),
        ({"codebooks": {}}, "codebooks"),
        ({"codebooks": []}, "'a': expected a codebook below 0, got 0"),
        ({"tied": {"c": "nowhere"}}, "tied: expected names of stored tensors, got {'c': 'nowhere'}"),
        ({"tied": {"c": "d", "d": "a"}}, "tied"),
        ({"tied": {"a": "b"}}, r"every name once, got \['a'\]"),
        ({"tied": {"c": 1}}, "tied"),
        ({"tied": []}, "tied"),
        ({"shared": {}}, "shared: expected a list"),
        ({"shared": ["abcdef"]}, r"shared\[0\]: expected a list of name, shape"),
        ({"shared": [["a", [2, 3], "float32", 0, False]]}, r"shared\[0\]: expected a list of name, shape"),
        ({"shared": [[3, [2, 3], "float32", 0, False, 1]]}, r"shared\[0\] \(3\) name: expected a string, got 3"),
        ({"shared": [["a", [2, -3], "float32", 0, False, 1]]}, r"shared\[0\] \('a'\) shape"),
        ({"shared": [["a", [2.0], "float32", 0, False, 1]]}, "shape"),
        ({"shared": [["a", 6, "float32", 0, False, 1]]}, "shape"),
        ({"shared": [["a", [HUGE], "float32", 0, False, 1]]}, "shape"),
        ({"shared": [["a", [0, HUGE], "float32", 0, False, 1]]}, "shape"),
        ({"shared": [["a", [1] * 65, "float32", 0, False, 1]]}, "shape"),
        ({"shared": [["a", [1 << 17, 1 << 17], "float32", 0, False, 1]]}, "shape"),
        ({"shared": [[name, [1 << 33], "float32", 0, False, 1] for name in "ad"]}, "values over all tensors"),
        ({"shared": [["a", [2, 3], "float8", 0, False, 1]]}, "dtype: expected one of float64"),
        ({"shared": [["a", [2, 3], [], 0, False, 1]]}, "dtype"),
        ({"shared": [["a", [2, 3], "int64", 0, False, 1]]}, "'a': expected one of float64"),
        ({"shared": [["a", [2, 3], "float32", 1, False, 1]]}, "'a': expected a codebook below 1, got 1"),
        ({"shared": [["a", [2, 3], "float32", -1, False, 1]]}, "codebook"),
        ({"shared": [["a", [2, 3], "float32", 0, 0, 1]]}, "is_conv: expected true or false, got 0"),
        ({"shared": [["a", [2, 3], "float32", 0, False, 2]]}, "sections to end at byte"),
        ({"shared": [["a", [2, 3], "float32", 0, False, True]]}, "n_bytes"),
        ({"shared": [["a", [2, 3], "float32", 0, False, 1 << 64]]}, "n_bytes"),
        ({"shared": [["b", [2, 3], "float32", 0, False, 1]]}, r"every name once, got \['b'\]"),
        ({"rest": [["b", [2], "float64", "int16", 4]]}, "'b': expected what decodes to float64, got 'int16'"),
        ({"rest": [["b", [2], "int64", "int16", 4]]}, "'b': expected what decodes to int64"),
        ({"rest": [["b", [3], "float64", "float16", 4]]}, "'b': expected 6 bytes, got 4"),
        ({"rest": [["b", [4], "bool", "bool", 4]]}, "'b': expected bools of 0 or 1, got 193"),
        ({"rest": [["b", [2], "float64", "complex64", 4]]}, "stored"),
    ],
)
def test_refuses_a_malformed_header(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        codec.decode(build(header(**changes), SECTIONS))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "expected JSON"),
        (b"\xff", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"9" * 10_000, "expected JSON"),
        (b"[]", "expected an object"),
        (b'{"tied":{"a":"b","a":"c"}}', "every key once"),
    ],
)
def test_refuses_what_is_no_header(text: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        codec.decode(build(None, text=text))


def test_refuses_a_header_that_is_not_one_bounded_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zlib.compress(json.dumps(header()).encode())
    for wrong in (b"not zlib", packed + b"x", packed[:-1], zlib.compress(bytes(header_module.MAX_HEADER_BYTES + 1))):
        with pytest.raises(FormatError, match=r"header: expected (zlib data|one whole zlib stream)"):
            codec.decode(build(None, SECTIONS, packed=wrong))
    monkeypatch.setattr(header_module, "MAX_HEADER_BYTES", 50)
    with pytest.raises(ModelError, match="header: expected at most 50 bytes"):
        codec.encode(tiny())


def test_refuses_a_codebook_without_its_zero() -> None:
    with pytest.raises(FormatError, match=r"codebook 0 to begin with 0.0, got 1.0"):
        codec.decode(build(header(), struct.pack("<f", 1.0) + SECTIONS[4:]))


def test_refuses_a_bad_tensor_by_name() -> None:
    with pytest.raises(FormatError, match="tensor 'a': "):
        codec.decode(build(header(), SECTIONS[:4] + b"\xff" + SECTIONS[5:]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.integers(HUGE) | st.text(max_size=3) | st.just("float32"),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["codec", "codebooks", "shared", "rest", "tied"]), JSON, st.integers(0, 5), st.booleans())
def test_any_json_gives_a_format_error_or_weights(key: str, value: Any, column: int, whole: bool) -> None:
    values = header()
    if whole or key not in ("shared", "rest"):
        values[key] = value
    else:
        values[key][0][column % len(values[key][0])] = value
    try:
        weights = codec.decode(build(values, SECTIONS))
    except FormatError:
        return
    assert weights.n_nonzero == 0


# Files


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "model.sws"
    weights = net_weights()
    assert codec.save(weights, path) == path.stat().st_size == len(codec.encode(weights))
    assert os.listdir(tmp_path) == ["model.sws"]
    state = codec.load(str(path))
    assert state["head.weight"] is state["embed.weight"]
    assert state["norm.num_batches_tracked"].dtype == torch.int64
    assert state["norm.num_batches_tracked"] == (1 << 40) + 1
    assert state["scale"].dtype == torch.bfloat16
    expected = weights.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor)


def test_a_failed_save_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.sws"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"cannot write .*model\.sws: No space left on device"):
        codec.save(tiny(), path)
    assert os.listdir(tmp_path) == ["model.sws"]
    assert path.read_bytes() == b"old"


def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        codec.save(tiny(), tmp_path / "model.sws")
    assert os.listdir(tmp_path) == []


def test_paths_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "none" / "model.sws", tmp_path / "file" / "model.sws", tmp_path):
        with pytest.raises(ConfigError, match=r"cannot write .*: "):
            codec.save(tiny(), path)
    assert os.listdir(tmp_path) == ["file"]
    for read in (codec.load, codec.inspect):
        with pytest.raises(ConfigError, match=r"cannot read .*none\.sws: No such file"):
            read(tmp_path / "none.sws")
        with pytest.raises(FormatError, match=r"file: not an \.sws file"):
            read(tmp_path / "file")


def test_load_into_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.sws"
    weights = net_weights()
    codec.save(weights, path)
    model = Net()
    before = dict(model.named_parameters())
    codec.load_into_(model, path)
    assert all(before[name] is parameter for name, parameter in model.named_parameters())
    assert model.head.weight is model.embed.weight
    for name, tensor in weights.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_load_into_another_precision_rounds(tmp_path: Path) -> None:
    codec.save(QuantizedWeights((), {"weight": torch.full((1, 1), 0.1)}, {}), tmp_path / "m.sws")
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    codec.load_into_(model, tmp_path / "m.sws")
    assert model.weight.item() == torch.tensor(0.1, dtype=torch.bfloat16).item()


def test_load_into_lists_every_mismatch_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.sws"
    weights = net_weights()
    others = {"norm.num_batches_tracked": torch.tensor(0.5), "extra": torch.zeros(2)}
    rest = {name: t for name, t in weights.rest.items() if name != "norm.weight"} | others
    tensors = (shared("conv.weight", (2, 9), CODEBOOK), *weights.shared[1:])
    codec.save(QuantizedWeights(tensors, rest, weights.tied), path)
    model = Net()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(ModelError) as caught:
        codec.load_into_(model, path)
    assert str(caught.value).splitlines() == [
        f"{path} does not fit the model:",
        "  missing from the file: norm.weight",
        "  not in the model: extra",
        "  conv.weight: shape (2, 9) in the file, (2, 1, 3, 3) in the model",
        "  norm.num_batches_tracked: torch.float32 in the file, torch.int64 in the model",
    ]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_load_into_refuses_a_model_without_memory(tmp_path: Path) -> None:
    codec.save(net_weights(), tmp_path / "m.sws")
    with torch.device("meta"):
        model = Net()
    with pytest.raises(ModelError, match=r"conv.weight: on the meta device"):
        codec.load_into_(model, tmp_path / "m.sws")


# Inspect


def test_inspect(tmp_path: Path) -> None:
    indices = torch.tensor([0, 2, 2, 0, 2, 0])
    tensors = (QuantizedTensor("a", (2, 3), torch.float32, indices, CODEBOOK), shared("e", (0, 3), CODEBOOK))
    weights = QuantizedWeights(tensors, {"b": torch.tensor([0.0, 1.0, 2.0])}, {})
    size = codec.save(weights, tmp_path / "m.sws")
    info = codec.inspect(tmp_path / "m.sws")
    assert info == codec.inspect(codec.encode(weights))
    assert (info.version, info.codec, info.file_bytes) == (0, "han", size)
    # a: rows 0 2 2 and 0 2 0. 3 entries: 6 + 2 * 2 bits.
    # IC 1,0,1: 5 + 3 + 2 + 3 bits. A 2,2,2: 2 + 3 + 3 + 3 bits. 34 bits.
    assert info.tensors == (
        codec.TensorInfo("a", "shared", (2, 3), 6, 3, 2, 5),
        codec.TensorInfo("e", "shared", (0, 3), 0, 0, 0, 1),
        codec.TensorInfo("b", "rest", (3,), 3, 2, 0, 12),
    )
    assert info.overhead_bytes == size - 5 - 1 - 12
    assert [t.bits_per_weight for t in info.tensors] == [40 / 6, 0.0, 32.0]
