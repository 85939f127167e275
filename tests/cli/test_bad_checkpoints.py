"""Checkpoints of every format that are cut, damaged or not finite: one clear line, and nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from onnx import helper, numpy_helper
from torch import Tensor

import gguf_files
import softshare as ss
from cli_runs import run


def weights() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {f"layers.{k}.weight": 0.1 * torch.randn(24, 20, generator=g) for k in range(3)} | {"norm": torch.ones(24)}


# Each writer returns what `quantize` is given, and the file with the weights.


def as_safetensors(folder: Path, state: dict[str, Tensor]) -> tuple[Path, Path]:
    safetensors.torch.save_file(state, folder / "a.safetensors")
    return folder / "a.safetensors", folder / "a.safetensors"


def as_shards(folder: Path, state: dict[str, Tensor]) -> tuple[Path, Path]:
    (net := folder / "net").mkdir()
    names = list(state)
    where = {name: f"model-0000{1 + k // 2}-of-00002.safetensors" for k, name in enumerate(names)}
    for file in sorted(set(where.values())):
        part = {name: state[name] for name in names if where[name] == file}
        safetensors.torch.save_file(part, net / file)
    (net / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (net / "config.json").write_text("{}")
    return net, net / "model-00001-of-00002.safetensors"


def as_gguf(folder: Path, state: dict[str, Tensor]) -> tuple[Path, Path]:
    return gguf_files.write(folder / "a.gguf", state), folder / "a.gguf"


def as_torch(folder: Path, state: dict[str, Tensor]) -> tuple[Path, Path]:
    torch.save({"model": state, "epoch": 3}, folder / "a.pt")
    return folder / "a.pt", folder / "a.pt"


def as_old_torch(folder: Path, state: dict[str, Tensor]) -> tuple[Path, Path]:
    torch.save(state, folder / "a.bin", _use_new_zipfile_serialization=False)
    return folder / "a.bin", folder / "a.bin"


def as_onnx(folder: Path, state: dict[str, Tensor]) -> tuple[Path, Path]:
    graph = helper.make_graph([], "g", [], [], [numpy_helper.from_array(t.numpy(), n) for n, t in state.items()])
    onnx.save(helper.make_model(graph), str(folder / "a.onnx"))
    return folder / "a.onnx", folder / "a.onnx"


def as_external_onnx(folder: Path, state: dict[str, Tensor]) -> tuple[Path, Path]:
    path, _ = as_onnx(folder, state)
    model = onnx.load(str(path))
    onnx.save(model, str(path), save_as_external_data=True, location="a.data", size_threshold=0)
    return path, folder / "a.data"


Writer = Callable[[Path, dict[str, Tensor]], tuple[Path, Path]]
FORMATS: list[Writer] = [as_safetensors, as_shards, as_gguf, as_torch, as_old_torch, as_onnx, as_external_onnx]
formats = pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__.removeprefix("as_"))


def require_refused(capsys: pytest.CaptureFixture[str], folder: Path, *args: object, message: str = "") -> str:
    """One line of error, and every file as it was."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert run("quantize", *args) == 2, args
    (text,) = capsys.readouterr().err.strip().splitlines()
    assert message in text
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return str(text)


@formats
def test_a_file_that_is_cut_anywhere_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Writer
) -> None:
    source, file = write(tmp_path, weights())
    whole, out = file.read_bytes(), tmp_path / "out.sws"
    lengths = {0, 1, 4, 8, 9, 30, 100, 300, *range(0, len(whole), 997), len(whole) - 8, len(whole) - 1}
    for length in sorted(length for length in lengths if length < len(whole)):
        file.write_bytes(whole[:length])
        require_refused(capsys, tmp_path, source, "--out", out, "--bits", 4, message=str(tmp_path))
    file.write_bytes(whole[: len(whole) // 2])
    require_refused(capsys, tmp_path, source, "--out", out, "--lossless", message=str(tmp_path))
    base = tmp_path / "good.sws"
    ss.quantize(weights(), bits=4).save(base)
    require_refused(capsys, tmp_path, base, "--base", source, "--out", out, message=str(tmp_path))
    file.write_bytes(whole)
    assert run("quantize", source, "--out", out, "--bits", 4) == 0  # it was the cut that was refused


@formats
@pytest.mark.parametrize(
    ("value", "how"), [("nan", ["--bits", 3]), ("inf", ["--weight-error", 0.1]), ("-inf", ["--max-bytes", 4000])]
)
def test_a_weight_that_is_not_finite_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Writer, value: str, how: list[object]
) -> None:
    state = weights()
    state["layers.1.weight"][5, 7] = float(value)
    source, _ = write(tmp_path, state)
    message = "tensor layers.1.weight: expected finite weights, but 1 of 480"
    require_refused(capsys, tmp_path, source, "--out", tmp_path / "out.sws", *how, message=message)
    ss.quantize(weights(), bits=4).save(tmp_path / "base.sws")
    require_refused(
        capsys, tmp_path, source, "--base", tmp_path / "base.sws", "--out", tmp_path / "out.sws", *how, message=message
    )


@pytest.mark.slow
@formats
def test_damaged_bytes_are_refused_or_give_a_sound_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Writer
) -> None:
    source, file = write(tmp_path, weights())
    whole, out, rng = file.read_bytes(), tmp_path / "out.sws", np.random.default_rng(0)
    n_refused = n_read = 0
    for k in range(40):
        data = bytearray(whole)
        for at in rng.integers(0, len(data) if k % 2 else min(300, len(data)), 4):
            data[at] = rng.integers(256)
        file.write_bytes(data)
        if run("quantize", source, "--out", out, "--weight-error", 0.1) == 0:
            n_read += 1
            ss.load(out)
            out.unlink()
            capsys.readouterr()
            continue
        (text,) = capsys.readouterr().err.strip().splitlines()
        assert "Traceback" not in text
        assert not out.exists()
        n_refused += 1
    assert n_refused + n_read == 40
    assert not list(tmp_path.rglob("*.sws*"))


@formats
def test_another_base_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Writer) -> None:
    """Whatever the container of the base is, when the delta is made and when it is read."""
    source, file = write(tmp_path, weights())
    tuned = {name: t + 0.001 if t.dim() > 1 else t for name, t in weights().items()}
    safetensors.torch.save_file(tuned, tmp_path / "tuned.safetensors")
    args = ["quantize", tmp_path / "tuned.safetensors", "--base", source, "--out", tmp_path / "delta.sws"]
    assert run(*args, "--weight-error", 0.01) == 0
    back = tmp_path / "back.safetensors"
    assert run("decompress", tmp_path / "delta.sws", back, "--base", source) == 0
    back.unlink()
    data = bytearray(file.read_bytes())
    at = bytes(data).index(weights()["layers.0.weight"].numpy().tobytes())
    data[at] ^= 1  # one bit of one weight
    file.write_bytes(data)
    capsys.readouterr()
    assert run("decompress", tmp_path / "delta.sws", back, "--base", source) == 2
    (text,) = capsys.readouterr().err.strip().splitlines()
    assert "expected the checkpoint that the file was made from" in text
    assert not back.exists()
    lacking = {name: t for name, t in tuned.items() if name != "layers.2.weight"}
    safetensors.torch.save_file(lacking, tmp_path / "lacking.safetensors")
    message = "it has tensors that the checkpoint lacks (layers.2.weight)"
    args = [tmp_path / "lacking.safetensors", "--base", source, "--out", tmp_path / "none.sws"]
    require_refused(capsys, tmp_path, *args, message=message)
