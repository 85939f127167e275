"""`softshare quantize`: a checkpoint in, a file out; and the commands that take a file further."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import onnxruntime
import pytest
import safetensors.torch
import torch

import softshare as ss
from networks import Transformer, make_task
from softshare.cli import main

AFFINE = ("weight", "bias")  # of batch norm; the rest of it are statistics
TASK = """
from networks import make_task

def task():
    return make_task({name!r})
"""


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    safetensors.torch.save_model(Transformer(), str(tmp_path / "model.safetensors"))
    return tmp_path / "model.safetensors"


@pytest.fixture
def batch_norm(tmp_path: Path) -> tuple[Path, str]:
    """A file of a trained network with batch norm, and its task."""
    model = make_task("batch-norm", epochs=3).model
    ss.compress_weights(model.state_dict(), weight_error=0.2).save(tmp_path / "bn.sws")
    (tmp_path / "net.py").write_text(TASK.format(name="batch-norm"))
    return tmp_path / "bn.sws", f"{tmp_path / 'net.py'}:task"


def test_weights_to_a_file_and_back(weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, back = tmp_path / "small.sws", tmp_path / "back.safetensors"
    assert run("quantize", weights, "--out", file, "--bits", 6) == 0
    printed = capsys.readouterr().out
    n = sum(t.numel() for t in safetensors.torch.load_file(weights).values())
    assert 0.97 * 6 <= 8 * file.stat().st_size / n <= 6
    assert f"{file.stat().st_size:,}" in printed
    assert "error of the weights, relative to each tensor" in printed
    assert run("inspect", file, "--json") == 0
    kinds = {t["name"]: t["kind"] for t in json.loads(capsys.readouterr().out)["tensors"]}
    assert kinds["block.linear1.weight"] == "shared"
    assert kinds["block.linear1.bias"] == kinds["norm.weight"] == "rest"
    assert run("decompress", file, back) == 0
    decoded = safetensors.torch.load_file(back)
    assert set(decoded) == set(Transformer().state_dict())
    assert torch.equal(decoded["head.weight"], decoded["embedding.weight"])


def test_an_error_on_the_weights_and_options_of_the_file(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--weight-error", 0.05, "--rule", "keep:position", "--rest-dtype", "float16", "--codec", "han"]
    assert run("quantize", weights, *options) == 0
    file = weights.with_suffix(".sws")
    before, after = safetensors.torch.load_file(weights), ss.load(file)
    for name, tensor in before.items():
        if tensor.dim() > 1:
            assert (after[name] - tensor).square().mean().sqrt() <= 0.05 * tensor.square().mean().sqrt()
    assert torch.equal(after["position"], before["position"].half().float())
    assert ss.inspect(file).codec == "han"
    assert run("quantize", weights, *options) == 2
    assert "exists already; give --overwrite" in capsys.readouterr().err
    assert run("quantize", weights, *options, "--overwrite") == 0


def test_with_no_goal_the_error_is_the_default(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("quantize", weights, "--out", tmp_path / "model.sws") == 0
    assert "An error of up to 5% was allowed, the default; --bits or" in capsys.readouterr().out.replace("\n", " ")
    assert run("quantize", weights, "--out", tmp_path / "same.sws", "--weight-error", 0.05) == 0
    assert "the default" not in capsys.readouterr().out
    assert (tmp_path / "model.sws").read_bytes() == (tmp_path / "same.sws").read_bytes()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--bits", 3, "--weight-error", 0.1], "got both"),
        (["--bits", 3, "--names", "none"], "names='none'"),
        (["--bits", 3, "--rule", "keep:nothing"], "rule keep:nothing: no tensor matches"),
        (["--bits", 0.01], "bits a weight by themselves"),
    ],
)
def test_refusals(weights: Path, args: list[object], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(weights.parent.iterdir())
    assert run("quantize", weights, *args) == 2
    (text,) = capsys.readouterr().err.strip().splitlines()
    assert re.search(message, text)
    assert set(weights.parent.iterdir()) == before


def test_compress_without_a_task_names_the_command_for_it(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compress", "--weights", weights) == 2
    assert f"to compress a checkpoint without one: softshare quantize {weights}" in capsys.readouterr().err
    assert run("compress") == 2
    assert "expected a task: An experiment" in capsys.readouterr().err


def test_the_folder_of_the_file_is_made(weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the work; where that fails, it is gone again."""
    file = tmp_path / "new" / "folder" / "small.sws"
    assert run("quantize", weights, "--out", file, "--bits", 0.01) == 2
    assert not (tmp_path / "new").exists()
    assert run("quantize", weights, "--out", file, "--bits", 6) == 0
    assert ss.inspect(file).codec == "adaptive"
    capsys.readouterr()
    assert run("quantize", weights, "--out", weights / "small.sws", "--bits", 0.01) == 2
    assert f"cannot write to the folder {weights}" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_found_out_at_once(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(
        "softshare.datafree.compress_weights.compress_weights", lambda *_, **__: pytest.fail("the work was begun")
    )
    args = ["quantize", weights, "--bits", 6, "--out"]
    for file in (tmp_path / "small.sws", tmp_path / "new" / "small.sws"):
        assert run(*args, file) == 2
        message = capsys.readouterr().err
        assert f"cannot write {file.parent}" in message
        assert "No space left" in message
    for more in ([], ["--overwrite"]):
        assert run(*args, tmp_path, *more) == 2
        assert f"{tmp_path} is a folder" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_export_to_onnx(batch_norm: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without batch-norm statistics re-estimated: each gives its own outputs."""
    file, task = batch_norm
    plain, anew = tmp_path / "plain.onnx", tmp_path / "anew.onnx"
    assert run("export", file, "--onnx", plain, "--task", task) == 0
    assert "onnxruntime's outputs are PyTorch's to within" in capsys.readouterr().out
    assert run("export", file, "--onnx", anew, "--task", task, "--batch-norm") == 0
    loaded = make_task("batch-norm")
    ss.load_into_(loaded.model, file)
    x = loaded.train[0][0]  # type: ignore[index]
    for path in (plain, anew):
        if path == anew:
            ss.reestimate_batch_norm_(loaded.model, loaded.train, loaded.loss)
        (found,) = onnxruntime.InferenceSession(path).run(None, {"input": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), loaded.model(x).detach(), rtol=1e-4, atol=1e-5)
    assert plain.read_bytes() != anew.read_bytes()


def test_export_sparse(weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, target = tmp_path / "model.sws", tmp_path / "model.pt"
    assert run("quantize", weights, "--weight-error", 0.8) == 0
    assert run("export", file, "--sparse", target) == 0
    state = torch.load(target, weights_only=True)
    n_sparse = sum(t.layout == torch.sparse_csr for name, t in state.items() if name != "head.weight")  # a tied one
    assert f"{n_sparse} sparse tensors written" in capsys.readouterr().out.replace("\n", " ")
    assert n_sparse > 0


def test_export_refusals(batch_norm: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, task = batch_norm
    target = tmp_path / "model.onnx"
    (tmp_path / "other.py").write_text(
        "import dataclasses\nfrom networks import make_task\n\n\ndef task():\n"
        "    return dataclasses.replace(make_task('batch-norm'), train=['words'])\n"
    )
    for args, message in [
        ([], "expected --onnx FILE or --sparse FILE"),
        (["--onnx", target], "give it by --task"),
        (["--onnx", file, "--task", task], "exists already"),
        (["--sparse", tmp_path / "a.pt", "--batch-norm"], "only for --onnx"),
        (["--sparse", tmp_path / "a.bin"], "expected a .pt or .pth file"),
        (["--onnx", target, "--task", "lenet-300-100"], "does not fit the model"),
        (["--onnx", target, "--task", f"{tmp_path / 'other.py'}:task"], "got str; in Python, softshare.export_onnx"),
    ]:
        assert run("export", file, *args) == 2
        assert message in capsys.readouterr().err
    assert not target.exists()


def test_decompress_with_batch_norm_anew(
    batch_norm: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The statistics are the data's, all else is what is in the file."""
    file, task = batch_norm
    target = tmp_path / "anew.safetensors"
    for args, message in [
        (["--batch-norm"], "give them by --task"),
        (["--data", str(tmp_path)], "only for --task"),
    ]:
        assert run("decompress", file, target, *args) == 2
        assert message in capsys.readouterr().err
    assert run("decompress", file, target, "--batch-norm", "--task", task) == 0
    loaded = make_task("batch-norm")
    ss.load_into_(loaded.model, file)
    before = {name: t.clone() for name, t in loaded.model.state_dict().items()}
    ss.reestimate_batch_norm_(loaded.model, loaded.train, loaded.loss)
    written = safetensors.torch.load_file(target)
    assert set(written) == set(ss.load(file))
    for name, tensor in loaded.model.state_dict().items():
        torch.testing.assert_close(written[name], tensor)
        assert torch.equal(written[name], before[name]) == (not name.startswith(("1.", "5.")) or name[2:] in AFFINE)


def test_evaluate_with_batch_norm_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is the error with the new statistics, and a difference is no failure."""
    (tmp_path / "net.py").write_text(TASK.format(name="batch-norm"))
    folder = tmp_path / "run"
    assert run("compress", f"{tmp_path / 'net.py'}:task", "--epochs", 1, "--out", folder) == 0
    loaded = make_task("batch-norm")
    ss.load_into_(loaded.model, folder / "model.sws")
    ss.reestimate_batch_norm_(loaded.model, loaded.train, loaded.loss)
    capsys.readouterr()
    assert run("evaluate", folder, "--batch-norm") == 0
    assert f"error {loaded.evaluate(loaded.model):.4f}%" in capsys.readouterr().out
