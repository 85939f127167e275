"""Files on disk: saved whole or not at all, loaded in part, copied into a network, inspected, coded in threads."""

from __future__ import annotations

import builtins
import json
import os
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from by_hand import F32, HAN_2X3, book, entry, head, listed, name, rest, seal, sizes, sws
from samples import CODEBOOK, Net, net_weights
from samples import shared as random_shared
from softshare import codec
from softshare.codec import han, parallel, sections
from softshare.codec import shared_section as shared_module
from softshare.config import EncodeConfig
from softshare.config.settings import Codec
from softshare.errors import ConfigError, FormatError, ModelError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.zoo.models import LeNet5Caffe

HAN = EncodeConfig("han")
CODECS: list[Codec] = ["han", "adaptive"]


def plain(n: int = 12, size: int = 40) -> QuantizedWeights:
    """Many matrices and no other tensors."""
    tensors = tuple(random_shared(f"layers.{k}.weight", (k + 1, size), CODEBOOK, k) for k in range(n))
    return QuantizedWeights(tensors, {}, {})


def two_tensors(first: bytes = HAN_2X3, second: bytes = HAN_2X3) -> bytes:
    """`a` and `b`, of shape (2, 3), with `c` tied to `a`."""
    entries = [entry(len(s), None, name(n), sizes(2, 3)) for n, s in (("a", first), ("b", second))]
    return sws([book(-0.25, 0.5)], entries, first + second, [name("c") + b"\0"])


# Save


@pytest.mark.parametrize("codec_name", CODECS)
def test_save_and_load(codec_name: Codec, tmp_path: Path) -> None:
    path = tmp_path / "model.sws"
    weights, config = net_weights(), EncodeConfig(codec_name)
    assert codec.save(weights, path, config) == path.stat().st_size
    assert path.read_bytes() == codec.encode(weights, config)
    assert os.listdir(tmp_path) == ["model.sws"]
    state = codec.load(str(path))
    assert list(state) == [*weights.order, "head.weight"]
    assert state["head.weight"] is state["embed.weight"]
    assert state["norm.num_batches_tracked"].dtype == torch.int64
    assert state["norm.num_batches_tracked"] == (1 << 40) + 1
    assert state["scale"].dtype == torch.bfloat16
    for text, tensor in weights.state_dict().items():
        assert torch.equal(state[text], tensor)


def failing(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error(28, "No space left on device")

    return fail


@pytest.mark.parametrize(
    ("where", "error", "old"),
    [
        ("fsync", OSError, None),
        ("fsync", KeyboardInterrupt, b"old"),
        ("replace", OSError, b"old"),
        ("replace", MemoryError, None),
        ("encode", OSError, b"old"),
        ("encode", KeyboardInterrupt, None),
    ],
)
def test_a_failed_save_changes_nothing(
    where: str, error: type[BaseException], old: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails on writing, on renaming, and in the middle of the tensors."""
    path = tmp_path / "model.sws"
    if old is not None:
        path.write_bytes(old)
    if where == "encode":
        calls = []

        def encode_tensor(*args: Any) -> bytes:
            calls.append(args)
            if len(calls) == 3:
                raise error(28, "No space left on device")
            return b"code"

        monkeypatch.setattr(han, "encode_tensor", encode_tensor)
    else:
        monkeypatch.setattr(os, where, failing(error))
    expected = ConfigError if error is OSError else error
    with pytest.raises(expected, match=r"cannot write .*model\.sws: No space left" if error is OSError else None):
        codec.save(plain(), path, HAN)
    assert os.listdir(tmp_path) == ([] if old is None else ["model.sws"])
    assert old is None or path.read_bytes() == old


def test_what_cannot_be_encoded_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.sws"
    path.write_bytes(b"old")
    with pytest.raises(ModelError):
        codec.save(QuantizedWeights((random_shared("\n", (2,)),), {}, {}), path, HAN)
    assert (os.listdir(tmp_path), path.read_bytes()) == (["model.sws"], b"old")


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.sws"
    path.write_bytes(b"old")
    seen, replace = [], os.replace

    def look(source: str, target: str) -> None:
        seen.append((path.read_bytes(), Path(source).read_bytes(), Path(source).parent))
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    codec.save(plain(), path, HAN)
    assert seen == [(b"old", codec.encode(plain(), HAN), tmp_path)]


def test_paths_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "none" / "model.sws", tmp_path / "file" / "model.sws", tmp_path):
        with pytest.raises(ConfigError, match=r"cannot write .*: "):
            codec.save(plain(), path, HAN)
    assert os.listdir(tmp_path) == ["file"]
    reads: list[Callable[[Path], Any]] = [codec.load, codec.inspect, lambda path: codec.load_into_(Net(), path)]
    for read in reads:
        with pytest.raises(ConfigError, match=r"cannot read .*none\.sws: No such file"):
            read(tmp_path / "none.sws")
        with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
            read(tmp_path)
        with pytest.raises(FormatError) as caught:
            read(tmp_path / "file")
        assert (caught.value.path, caught.value.section) == (str(tmp_path / "file"), "prefix")
        assert str(caught.value).startswith(f"{tmp_path / 'file'}: prefix, byte 0: expected")


# Load by name


def test_load_decodes_what_is_asked_for_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, decoded, decode_tensor = tmp_path / "m.sws", [], han.decode_tensor
    codec.save(plain(), path, HAN)

    def count(data: bytes, shape: tuple[int, ...], n_values: int, n_nonzero: int) -> Any:
        decoded.append(shape)
        return decode_tensor(data, shape, n_values, n_nonzero)

    monkeypatch.setattr(han, "decode_tensor", count)
    state = codec.load(path, ["layers.7.weight", "layers.2.weight"])
    assert list(state) == ["layers.7.weight", "layers.2.weight"]
    assert sorted(decoded) == [(3, 40), (8, 40)]
    for text, tensor in state.items():
        assert torch.equal(tensor, plain().state_dict()[text])
    decoded.clear()
    assert codec.load(path, []) == {}
    assert decoded == []


@pytest.mark.parametrize("names", [["c"], ("c", "a"), {"a"}])
def test_load_does_not_see_what_is_wrong_elsewhere(names: Any, tmp_path: Path) -> None:
    """`b` has garbage for a code, under a right checksum. `c` is tied to `a`."""
    path = tmp_path / "m.sws"
    path.write_bytes(two_tensors(second=b"\x01garbage"))
    state = codec.load(path, names)
    assert list(state) == list(names)
    for tensor in state.values():
        assert tensor.tolist() == [[0.0, 0.5, 0.5], [0.0, 0.5, 0.0]]
    assert len({id(tensor) for tensor in state.values()}) == 1
    for wanted in (["b"], ["a", "b"], None):
        with pytest.raises(FormatError, match=r"m\.sws: tensor 'b', byte"):
            codec.load(path, wanted)


def test_load_checks_the_checksum_of_the_whole_file(tmp_path: Path) -> None:
    data = bytearray(two_tensors())
    data[-5] ^= 1  # of b
    (tmp_path / "m.sws").write_bytes(data)
    with pytest.raises(FormatError, match="checksum"):
        codec.load(tmp_path / "m.sws", ["a"])


def test_load_of_unknown_names(tmp_path: Path) -> None:
    (tmp_path / "m.sws").write_bytes(two_tensors())
    with pytest.raises(ConfigError, match=r"expected tensors of the file \(a, b, c\), got x, y"):
        codec.load(tmp_path / "m.sws", ["x", "a", "y"])


# Load into a network


@pytest.mark.parametrize("codec_name", CODECS)
def test_load_into_a_model(codec_name: Codec, tmp_path: Path) -> None:
    path = tmp_path / "model.sws"
    weights = net_weights()
    codec.save(weights, path, EncodeConfig(codec_name))
    model = Net()
    before = dict(model.named_parameters())
    codec.load_into_(model, path)
    assert all(before[text] is parameter for text, parameter in model.named_parameters())
    assert model.head.weight is model.embed.weight
    for text, tensor in weights.state_dict().items():
        assert torch.equal(model.state_dict()[text], tensor)


def test_load_into_takes_the_network_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a torch\.nn\.Module, then a file, got PosixPath first"):
        codec.load_into_(tmp_path / "m.sws", Net())  # type: ignore[arg-type]


def test_load_into_a_model_that_ties_nothing(tmp_path: Path) -> None:
    """Every name gets its tensor."""
    weights = net_weights()
    codec.save(weights, tmp_path / "m.sws", HAN)
    model = Net()
    model.head.weight = nn.Parameter(torch.zeros(5, 4))
    codec.load_into_(model, tmp_path / "m.sws")
    assert torch.equal(model.head.weight, weights.state_dict()["embed.weight"])
    assert torch.equal(model.embed.weight, weights.state_dict()["embed.weight"])


def test_load_into_another_precision_rounds(tmp_path: Path) -> None:
    (tmp_path / "m.sws").write_bytes(
        sws([], [entry(4, rest(F32), name("weight"), sizes(1, 1))], np.float32(0.1).tobytes())
    )
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    codec.load_into_(model, tmp_path / "m.sws")
    assert model.weight.item() == torch.tensor(0.1, dtype=torch.bfloat16).item()


def test_load_into_lists_every_mismatch_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header shows them all, so nothing is decoded."""
    path = tmp_path / "model.sws"
    weights = net_weights()
    others = {"norm.num_batches_tracked": torch.tensor(0.5), "extra": torch.zeros(2)}
    kept = {text: t for text, t in weights.rest.items() if text != "norm.weight"} | others
    tensors = (random_shared("conv.weight", (2, 9)), *weights.shared[1:])
    codec.save(QuantizedWeights(tensors, kept, weights.tied), path, HAN)
    model = Net()
    before = {text: t.clone() for text, t in model.state_dict().items()}
    monkeypatch.setattr(sections, "decode", failing(AssertionError))
    with pytest.raises(ModelError) as caught:
        codec.load_into_(model, path)
    assert str(caught.value).splitlines() == [
        f"{path} does not fit the model:",
        "  missing from the file: norm.weight",
        "  not in the model: extra",
        "  conv.weight: shape (2, 9) in the file, (2, 1, 3, 3) in the model",
        "  norm.num_batches_tracked: torch.float32 in the file, torch.int64 in the model",
    ]
    for text, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[text])


def test_load_into_refuses_a_model_without_memory(tmp_path: Path) -> None:
    codec.save(net_weights(), tmp_path / "m.sws", HAN)
    model = Net().to("meta")
    with pytest.raises(ModelError, match=r"conv.weight: on the meta device"):
        codec.load_into_(model, tmp_path / "m.sws")


def test_load_into_of_a_damaged_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.sws"
    codec.save(net_weights(), path, HAN)
    data = path.read_bytes()
    path.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    model = Net()
    before = {text: t.clone() for text, t in model.state_dict().items()}
    with pytest.raises(FormatError, match="checksum"):
        codec.load_into_(model, path)
    for text, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[text])


# Memory and threads


class Counting:
    """A codec that counts its decoded arrays while they live."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.alive = self.most = self.n = 0

    def decode_tensor(self, data: bytes, shape: tuple[int, ...], n_values: int, n_nonzero: int) -> np.ndarray:
        out = han.decode_tensor(data, shape, n_values, n_nonzero)
        with self.lock:
            self.n += 1
            self.alive += 1
            self.most = max(self.most, self.alive)
        weakref.finalize(out, self.done)
        return out

    def done(self) -> None:
        with self.lock:
            self.alive -= 1


class Layers(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(40, k + 1, bias=False) for k in range(n)])


@pytest.mark.parametrize("threads", [1, 4])
def test_load_into_holds_a_few_tensors_at_a_time(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one of 40 in each thread, the one that is copied, and the one before it."""
    codec.save(plain(40), tmp_path / "m.sws", HAN)
    counting = Counting()
    monkeypatch.setattr(shared_module, "coder", lambda _: counting)
    monkeypatch.setattr(parallel, "THREADS_FROM", 1)
    model = Layers(40)
    codec.load_into_(model, tmp_path / "m.sws", threads=threads)
    assert counting.n == 40
    assert counting.most <= threads + 2
    assert counting.alive == 0
    assert torch.equal(model.state_dict()["layers.39.weight"], plain(40).state_dict()["layers.39.weight"])


@pytest.mark.parametrize("threads", [1, 3])
def test_no_more_results_wait_than_there_are_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "THREADS_FROM", 1)
    taken = []

    def items() -> Any:
        for k in range(20):
            taken.append(k)
            yield k

    for used, result in enumerate(parallel.in_order(lambda k: -k, items(), 99, threads)):
        assert result == -used
        assert len(taken) - used <= threads  # this result and those that wait
    assert len(taken) == 20


def test_threads_are_used_only_for_many_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads_of(n_weights: int, threads: int | None) -> set[str]:
        names = parallel.in_order(lambda _: threading.current_thread().name, range(9), n_weights, threads)
        return set(names)

    main = {threading.current_thread().name}
    assert threads_of(parallel.THREADS_FROM - 1, 4) == main
    assert threads_of(parallel.THREADS_FROM, 1) == main
    assert main.isdisjoint(threads_of(parallel.THREADS_FROM, 4))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert threads_of(parallel.THREADS_FROM, None) == main
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert main.isdisjoint(threads_of(parallel.THREADS_FROM, None))


def test_an_error_in_a_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "THREADS_FROM", 1)
    with pytest.raises(FormatError) as caught:
        codec.decode(two_tensors(second=b"\x01garbage"), threads=2)
    assert caught.value.section == "tensor 'b'"
    wrong = QuantizedTensor("b", (1,), torch.float32, torch.tensor([9], dtype=torch.uint8), CODEBOOK)
    with pytest.raises(ModelError, match="'b'"):
        codec.encode(QuantizedWeights((*plain().shared, wrong), {}, {}), HAN, threads=2)


@pytest.mark.parametrize("codec_name", CODECS)
def test_threads_change_nothing(codec_name: Codec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = EncodeConfig(codec_name)
    weights = QuantizedWeights((*plain().shared, *net_weights().shared), net_weights().rest, {})
    expected = codec.encode(weights, config, threads=1)
    monkeypatch.setattr(parallel, "THREADS_FROM", 1)
    for threads in (1, 2, 4):
        assert codec.encode(weights, config, threads=threads) == expected
        codec.save(weights, tmp_path / "m.sws", config, threads=threads)
        assert (tmp_path / "m.sws").read_bytes() == expected
        state = codec.load(tmp_path / "m.sws", threads=threads)
        for text, tensor in codec.decode(expected, threads=threads).state_dict().items():
            assert torch.equal(tensor, weights.state_dict()[text])
            assert torch.equal(tensor, state[text])


# Inspect


def test_inspect_by_hand(tmp_path: Path) -> None:
    entries = [
        entry(len(HAN_2X3), None, name("a"), sizes(2, 3)),
        entry(0, None, name("e"), sizes(0, 3)),
        entry(12, rest(F32), name("b"), sizes(3)),
        entry(0, None, name("z"), sizes(7)),
    ]
    data = sws([book(-0.25, 0.5)], entries, HAN_2X3 + bytes(12))
    (tmp_path / "m.sws").write_bytes(data)
    info = codec.inspect(tmp_path / "m.sws")
    assert info == codec.inspect(data)
    assert (info.version, info.codec, info.file_bytes) == (1, "han", len(data))
    assert info.tensors == (
        codec.TensorInfo("a", "shared", (2, 3), 6, 3, 3, 6),
        codec.TensorInfo("e", "shared", (0, 3), 0, 0, 3, 0),
        codec.TensorInfo("b", "rest", (3,), 3, None, 0, 12),
        codec.TensorInfo("z", "shared", (7,), 7, 0, 3, 0),
    )
    assert info.overhead_bytes == len(data) - 6 - 12


@pytest.mark.parametrize(("codec_name", "names"), [("han", "keep"), ("adaptive", "none")])
def test_inspect_decodes_nothing_and_tells_the_truth(
    codec_name: Codec, names: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = net_weights()
    data = codec.encode(weights, EncodeConfig(codec_name, names=names))
    (tmp_path / "m.sws").write_bytes(data)
    refuse = types.SimpleNamespace(decode_tensor=failing(AssertionError))
    monkeypatch.setattr(shared_module, "coder", lambda _: refuse)
    monkeypatch.setattr("softshare.codec.planes.decode_planes", failing(AssertionError))
    monkeypatch.setattr("softshare.codec.rest_section.decode", failing(AssertionError))
    info = codec.inspect(tmp_path / "m.sws")
    assert (info.version, info.codec, info.file_bytes) == (1, codec_name, len(data))
    assert sum(t.n_bytes for t in info.tensors) + info.overhead_bytes == len(data)
    values = info.to_dict()
    assert sum(t["share"] for t in values["tensors"]) + info.overhead_bytes / len(data) == pytest.approx(1)
    assert json.loads(json.dumps(values))["tensors"][1]["n_nonzero"] == weights.shared[0].n_nonzero
    for got, (text, tensor) in zip(info.tensors, weights.tensors.items(), strict=True):
        shape = tuple(tensor.shape)
        known = (text, shape, int(np.prod(shape))) if names == "keep" else (None, None, None)
        assert (got.name, got.shape, got.n) == known
        if isinstance(tensor, QuantizedTensor):
            assert (got.kind, got.n_nonzero, got.n_components) == ("shared", tensor.n_nonzero, len(tensor.codebook))
        else:
            assert (got.kind, got.n_nonzero, got.n_components) == ("rest", None, 0)


def test_inspect_reads_little_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first bytes of a section. The file is sparse, and reading it whole would mean 8 GiB."""
    path, size = tmp_path / "m.sws", 1 << 33
    with path.open("wb") as file:
        file.write(head() + listed([book(0.5)]) + listed([entry(size, None, name("a"), sizes(1 << 36))]) + b"\0\x07")
        file.truncate(file.tell() - 1 + size + 4)
    n_read, real = 0, builtins.open

    def counting_open(*args: Any, **kwargs: Any) -> Any:
        opened = real(*args, **kwargs)
        read = opened.read

        class File:
            def __getattr__(self, attribute: str) -> Any:
                return getattr(opened, attribute)

            def __enter__(self) -> File:
                return self

            def __exit__(self, *_: object) -> None:
                opened.close()

            def read(self, n: int = -1) -> bytes:
                nonlocal n_read
                data: bytes = read(n)
                n_read += len(data)
                return data

        return File()

    monkeypatch.setattr(builtins, "open", counting_open)
    info = codec.inspect(path)
    monkeypatch.undo()
    assert (info.tensors[0].n_nonzero, info.tensors[0].n_bytes) == (7, size)
    assert 0 < n_read < 100


def test_inspect_does_not_check_the_checksum() -> None:
    data = two_tensors()
    assert codec.inspect(data[:-4] + b"????") == codec.inspect(data)


@pytest.mark.parametrize("section", [b"\0", b"\x80\x00", b"\xff" * 12])
def test_inspect_of_a_section_that_begins_wrong(section: bytes) -> None:
    data = two_tensors(second=section)
    with pytest.raises(FormatError) as caught:
        codec.inspect(data)
    assert (caught.value.section, caught.value.offset) == ("tensor 'b'", len(data) - 4 - len(section))


# Overhead


@pytest.mark.parametrize(("codec_name", "names", "most"), [("han", "keep", 150), ("adaptive", "none", 60)])
def test_overhead_of_lenet_5(codec_name: Codec, names: Any, most: int) -> None:
    """It includes a codebook of 17 values in 33 bytes."""
    state = LeNet5Caffe().state_dict()
    codebook = torch.cat([torch.zeros(1), torch.linspace(0.01, 0.5, 16)])
    tensors = tuple(
        random_shared(text, tuple(t.shape), codebook, k, density=0.05) for k, (text, t) in enumerate(state.items())
    )
    data = codec.encode(QuantizedWeights(tensors, {}, {}), EncodeConfig(codec_name, names=names))
    info = codec.inspect(data)
    assert len(info.tensors) == 8
    assert sum(t.n_nonzero or 0 for t in info.tensors) == sum(t.n_nonzero for t in tensors)
    assert info.overhead_bytes <= most


def test_a_file_that_ends_within_a_section_is_no_file(tmp_path: Path) -> None:
    """A copy was cut short, and then got a new checksum."""
    (tmp_path / "m.sws").write_bytes(seal(two_tensors()[:-6]))
    with pytest.raises(FormatError, match=r"m\.sws: header, byte \d+: expected sections that end at byte"):
        codec.load(tmp_path / "m.sws")
