"""Checkpoints of other programs: every format gives the tensors that were written, or one clear error."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

import gguf_files
from softshare.errors import ConfigError, FormatError, SoftShareError
from softshare.network.checkpoint import load_checkpoint, open_checkpoint
from softshare.network.readers.folder import beside, joined
from softshare.network.readers.gguf_blocks import QUANTIZED
from softshare.network.readers.source import open_tensors


def tensors() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    values = torch.randn(4, 6, generator=g)
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int16, torch.int32)
    return {f"{dtype}": (3 * values).to(dtype) for dtype in (*dtypes, torch.int64)} | {"scalar": torch.tensor(2.5)}


def require_equal(found: Any, wanted: dict[str, Tensor]) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


# GGUF


def test_gguf_holds_every_plain_type(tmp_path: Path) -> None:
    for version, alignment in ((3, 32), (2, 64)):
        path = gguf_files.write(tmp_path / "model", tensors(), version=version, alignment=alignment)
        require_equal(open_tensors(path), tensors())
        require_equal(load_checkpoint(path), tensors())


def by_definition(kind: int, block: bytes) -> list[float]:
    """The weights of a block of 32, one by one, as ggml defines them."""
    n_half = 1 if kind in (2, 6, 8) else 2
    d, m = (*np.frombuffer(block[: 2 * n_half], "<f2").astype(np.float32), np.float32(0))[:2]
    rest = block[2 * n_half :]
    if kind == 8:
        return [float(np.float32(x) * d) for x in np.frombuffer(rest, np.int8)]
    high = int.from_bytes(rest[:4], "little") if kind in (6, 7) else 0
    nibbles = rest[4:] if kind in (6, 7) else rest
    low = [b & 15 for b in nibbles] + [b >> 4 for b in nibbles]
    q = [x | (high >> k & 1) << 4 for k, x in enumerate(low)]
    offset = {2: 8, 6: 16}.get(kind, 0)
    return [float(d * np.float32(x - offset) + (m if n_half == 2 else np.float32(0))) for x in q]


@pytest.mark.parametrize("kind", [2, 3, 6, 7, 8])
def test_blocks_of_32_are_what_their_definition_says(kind: int) -> None:
    rng = np.random.default_rng(kind)
    blocks = rng.integers(0, 256, (20, QUANTIZED[kind].n_bytes), np.uint8)
    blocks[:, [1, 3]] &= 0x3B  # scales that are finite
    wanted = [by_definition(kind, bytes(block)) for block in blocks]
    assert np.array_equal(QUANTIZED[kind].decode(blocks), np.array(wanted, np.float32))


def k_by_definition(kind: int, b: bytes) -> list[float]:
    """The 256 weights of a K-quant, one by one, after the loops of ggml's own reference."""

    def half(at: int) -> np.float32:
        return np.float32(np.frombuffer(b[at : at + 2], "<f2")[0])

    y: list[Any] = []
    if kind == 10:
        d, m = half(80), half(82)
        for n in range(2):
            for j in range(4):
                for half_row in range(2):
                    s = b[8 * n + 2 * j + half_row]
                    for i in range(16):
                        q = b[16 + 32 * n + 16 * half_row + i] >> 2 * j & 3
                        y.append(d * np.float32(s & 15) * np.float32(q) - m * np.float32(s >> 4))
    if kind == 11:
        d, packed = half(108), b[96:108]
        for k in range(256):
            n, j, i = k // 128, k // 32 % 4, k % 32
            s = k // 16
            low = packed[s] & 15 if s < 8 else packed[s - 8] >> 4
            scale = (low | (packed[8 + s % 4] >> 2 * (s // 4) & 3) << 4) - 32
            q = (b[32 + 32 * n + i] >> 2 * j & 3) - (0 if b[i] >> (4 * n + j) & 1 else 4)
            y.append(d * np.float32(scale) * np.float32(q))
    if kind in (12, 13):
        d, m, packed = half(0), half(2), b[4:16]
        for k in range(256):
            j, i = k // 32, k % 32
            if j < 4:
                s, o = packed[j] & 63, packed[j + 4] & 63
            else:
                s = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4
                o = packed[j + 4] >> 4 | packed[j] >> 6 << 4
            low = b[(16 if kind == 12 else 48) + 32 * (j // 2) + i] >> 4 * (j % 2) & 15
            q = low | (0 if kind == 12 else (b[16 + i] >> j & 1) << 4)
            y.append(d * np.float32(s) * np.float32(q) - m * np.float32(o))
    if kind == 14:
        d, scales = half(208), np.frombuffer(b[192:208], np.int8)
        for k in range(256):
            n, j, i = k // 128, k // 32 % 4, k % 32
            low = b[64 * n + 32 * (j % 2) + i] >> 4 * (j // 2) & 15
            q = (low | (b[128 + 32 * n + i] >> 2 * j & 3) << 4) - 32
            y.append(d * np.float32(scales[k // 16]) * np.float32(q))
    return [float(x) for x in y]


@pytest.mark.parametrize("kind", [10, 11, 12, 13, 14])
def test_k_quants_are_what_their_definition_says(kind: int) -> None:
    rng = np.random.default_rng(kind)
    blocks = rng.integers(0, 256, (5, QUANTIZED[kind].n_bytes), np.uint8)
    scales = {10: (81, 83), 11: (109,), 12: (1, 3), 13: (1, 3), 14: (209,)}[kind]
    blocks[:, scales] &= 0x3B
    wanted = [k_by_definition(kind, bytes(block)) for block in blocks]
    assert np.array_equal(QUANTIZED[kind].decode(blocks), np.array(wanted, np.float32))


def test_quantized_gguf_keeps_shape_and_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    raw = {k: rng.integers(0, 60, (6, blocks.n_bytes), np.uint8) for k, blocks in QUANTIZED.items()}
    path = gguf_files.write(tmp_path / "m.gguf", {"plain": torch.ones(3)}, {f"q{k}": (k, 3, r) for k, r in raw.items()})
    found = open_checkpoint(path)
    for k, blocks in raw.items():
        assert found[f"q{k}"].dtype == torch.float32
        assert torch.equal(found[f"q{k}"], torch.from_numpy(QUANTIZED[k].decode(blocks)).reshape(3, -1))
    assert found.rest == ("plain",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "expected version 2 or 3"),
        ({"n_tensors": 1 << 60}, "expected at most 1048576 tensors"),
        ({"n_values": 1 << 60}, "bytes in all"),
        ({"text": 1 << 60}, "it is cut short or damaged"),
        ({"shape": (1 << 62, 1 << 62)}, "values together"),
        ({"shape": (1 << 30,)}, "it is cut short or damaged"),
        ({"kind": 16}, "expected a tensor of type F32"),
        ({"kind": 2}, "whole blocks of 32"),
        ({"alignment": 0}, "an alignment of 1"),
        ({"offset": 0}, "do not overlap"),
        ({"twice": True}, "each name once"),
    ],
)
def test_a_gguf_file_that_lies_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", {"a": torch.ones(4, 5), "b": torch.ones(3)}, **change)
    with pytest.raises(FormatError, match=message) as error:
        open_tensors(path)
    assert str(error.value).startswith(f"{path} is not a sound GGUF file")


# ONNX


def onnx_model(path: Path, external: bool = False) -> dict[str, Tensor]:
    """Initializers of every kind, packed and raw, a constant of a node, and a branch with weights of its own."""
    state = {name: t for name, t in tensors().items() if t.dtype != torch.bfloat16}
    initializers = [numpy_helper.from_array(t.numpy(), name) for name, t in state.items()]
    half = torch.tensor([[1.5, -2.0], [0.25, 60000.0]], dtype=torch.float16)
    bits = half.view(torch.int16).to(torch.int64) & 0xFFFF
    packed = {"packed": torch.tensor([[-1.5, 2.0]]), "ids": torch.tensor([[-7, 1 << 40]]), "half": half}
    initializers += [
        helper.make_tensor("packed", TensorProto.FLOAT, [1, 2], [-1.5, 2.0]),
        helper.make_tensor("ids", TensorProto.INT64, [1, 2], [-7, 1 << 40]),
        TensorProto(name="half", data_type=TensorProto.FLOAT16, dims=[2, 2], int32_data=bits.flatten().tolist()),
    ]
    inner = numpy_helper.from_array(np.full((2, 2), 3.0, np.float32), "packed")
    branch = helper.make_graph([], "then", [], [], [inner])
    constant = numpy_helper.from_array(np.full((2, 3), 7.0, np.float32), "")
    nodes = [
        helper.make_node("Constant", [], ["constant"], value=constant),
        helper.make_node("If", ["c"], ["d"], then_branch=branch, else_branch=helper.make_graph([], "e", [], [])),
    ]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [], initializers))
    onnx.save(model, str(path), save_as_external_data=external, location="weights.data", size_threshold=0)
    return state | packed | {"constant": torch.full((2, 3), 7.0), "packed.2": torch.full((2, 2), 3.0)}


@pytest.mark.parametrize("external", [False, True])
def test_onnx_gives_the_weights_of_all_graphs(tmp_path: Path, external: bool) -> None:
    wanted = onnx_model(tmp_path / "model.onnx", external)
    require_equal(open_tensors(tmp_path / "model.onnx"), wanted)
    renamed = (tmp_path / "model.onnx").rename(tmp_path / "model")
    require_equal(load_checkpoint(renamed), wanted)


def test_external_data_of_onnx_stays_in_the_folder(tmp_path: Path) -> None:
    onnx_model(tmp_path / "model.onnx", external=True)
    model = onnx.load(str(tmp_path / "model.onnx"), load_external_data=False)
    (tmp_path / "in").mkdir()
    for name in ("../weights.data", "/etc/passwd", "a/b", "..", ""):
        model.graph.initializer[0].external_data[0].value = name
        (tmp_path / "in" / "model.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(FormatError, match="in a file of the same folder"):
            open_tensors(tmp_path / "in" / "model.onnx")
    model.graph.initializer[0].external_data[0].value = "gone"
    (tmp_path / "in" / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match="which is not there"):
        open_tensors(tmp_path / "in" / "model.onnx")
    (tmp_path / "weights.data").write_bytes(b"short")
    with pytest.raises(FormatError, match="which has 5"):
        open_tensors(tmp_path / "model.onnx")


# Folders


def sharded(folder: Path) -> dict[str, Tensor]:
    folder.mkdir(exist_ok=True)
    state = tensors()
    names = [list(state)[:4], list(state)[4:]]
    files = [f"model-0000{k + 1}-of-00002.safetensors" for k in range(2)]
    for file, part in zip(files, names, strict=True):
        safetensors.torch.save_file({name: state[name] for name in part}, folder / file)
    where = {name: file for file, part in zip(files, names, strict=True) for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return state


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    state = sharded(tmp_path / "net")
    require_equal(open_tensors(tmp_path / "net"), state)
    require_equal(load_checkpoint(tmp_path / "net" / "model.safetensors.index.json"), state)
    torch.save(state, tmp_path / "net" / "pytorch_model.bin")  # beside it, as some folders have both
    require_equal(open_tensors(tmp_path / "net"), state)


def test_shards_of_torch_save(tmp_path: Path) -> None:
    state = {"a": torch.randn(3, 3), "b": torch.randn(2)}
    for name, tensor in state.items():
        torch.save({name: tensor}, tmp_path / f"pytorch_model-{name}.bin")
    where = {name: f"pytorch_model-{name}.bin" for name in state}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    require_equal(open_tensors(tmp_path), state)


def test_a_folder_with_one_checkpoint(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "code.py"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=r"expected a file of weights in it .* found code\.py, config\.json"):
        open_tensors(tmp_path)
    safetensors.torch.save_file(tensors(), tmp_path / "adapter_model.safetensors")
    require_equal(open_tensors(tmp_path), tensors())
    assert [path.name for path in beside(tmp_path)] == ["config.json", "tokenizer.json"]
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "a.safetensors")
    safetensors.torch.save_file(tensors(), tmp_path / "b.safetensors")
    with pytest.raises(ConfigError, match=r"several checkpoints: a\.safetensors, b\.safetensors"):
        open_tensors(tmp_path)


def test_a_shard_of_many_tensors_costs_a_bounded_time() -> None:
    """Each was looked for in a list of all: 100,000 tensors took 20 seconds, before the number was refused."""
    part = dict.fromkeys(map(str, range(60_000)), torch.ones(1, device="meta"))
    start = time.process_time()
    assert len(joined(Path("m"), {"one": part}, {"one": list(part)})) == 60_000
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not an index of shards"),
        ("[" * 100_000, "is not an index of shards"),
        ("[]", "expected a weight_map"),
        ('{"weight_map": {}}', "expected a weight_map"),
        ('{"weight_map": {"a": "../a"}}', "in a file of the same folder"),
        ('{"weight_map": {"a": "/a"}}', "in a file of the same folder"),
        ('{"weight_map": {"a": 3}}', "in a file of the same folder"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "cannot read"),
        ('{"weight_map": {"a": "one.safetensors"}}', "a is not in it"),
        ('{"weight_map": {"b": "one.safetensors"}}', "c is in it too"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, content: str, message: str) -> None:
    safetensors.torch.save_file({"b": torch.ones(2), "c": torch.ones(2)}, tmp_path / "one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(SoftShareError, match=message):
        open_tensors(tmp_path)


# All formats


@pytest.mark.parametrize("kind", ["gguf", "onnx", "safetensors", "pt"])
def test_damaged_files_are_refused_or_read_and_nothing_else(tmp_path: Path, kind: str) -> None:
    """Cut, or with some changed bytes: a clear error of one line that names the file, or tensors of some values."""
    path, rng = tmp_path / f"model.{kind}", np.random.default_rng(0)
    state = tensors()
    if kind == "gguf":
        blocks = rng.integers(0, 256, (2, 144), np.uint8)
        gguf_files.write(path, state, {"q": (12, 2, blocks)})
    elif kind == "onnx":
        onnx_model(path)
    elif kind == "pt":
        torch.save(state, path)
    else:
        safetensors.torch.save_file(state, path)
    whole, said = path.read_bytes(), list[str]()
    for k in range(150):
        data = bytearray(whole)
        if k % 3 == 0:
            del data[int(rng.integers(len(data))) :]
        else:
            for at in rng.integers(0, len(data) if k % 3 == 1 else min(400, len(data)), 3):
                data[at] = rng.integers(256)
        path.write_bytes(data)
        try:
            for tensor in open_tensors(path).values():
                assert tensor.numel() < 10_000
        except SoftShareError as error:
            said.append(str(error))
    assert len(said) > 30
    assert all(str(path) in text and "\n" not in text for text in said)
