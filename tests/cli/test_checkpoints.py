"""`softshare quantize`: a checkpoint in, a file out."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import softshare as ss
from cli_runs import run
from networks import Transformer


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    safetensors.torch.save_model(Transformer(), str(tmp_path / "model.safetensors"))
    return tmp_path / "model.safetensors"


def test_weights_to_a_file_and_back(weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, back = tmp_path / "small.sws", tmp_path / "back.safetensors"
    assert run("quantize", weights, "--out", file, "--bits", 6) == 0
    printed = capsys.readouterr().out
    n = sum(t.numel() for t in safetensors.torch.load_file(weights).values())
    assert 0.97 * 6 <= 8 * file.stat().st_size / n <= 6
    assert f"{file.stat().st_size:,}" in printed
    before = sum({t.data_ptr(): t.nbytes for t in safetensors.torch.load_file(weights).values()}.values())
    ratio = f"({before / file.stat().st_size:.1f} times smaller)"
    assert f"bytes    {before:,} -> {file.stat().st_size:,} {ratio}" in printed
    assert "weights  off by " in printed
    assert "non-zero" not in printed
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
    assert "already exists. Give --overwrite" in capsys.readouterr().err
    capsys.readouterr()
    assert run("quantize", weights, *options, "--overwrite", "--verbose") == 0
    printed = capsys.readouterr().out
    assert "Shared weights that are not 0: " in printed
    assert "The tensor with the largest error is " in printed


def test_with_no_goal_the_error_is_the_default(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("quantize", weights, "--out", tmp_path / "model.sws") == 0
    assert "The default error of 5% was used." in capsys.readouterr().out
    assert run("quantize", weights, "--out", tmp_path / "same.sws", "--weight-error", 0.05) == 0
    assert "The default" not in capsys.readouterr().out
    assert (tmp_path / "model.sws").read_bytes() == (tmp_path / "same.sws").read_bytes()


def test_refusals(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(weights.parent.iterdir())
    refused: list[tuple[list[object], str]] = [
        (["--bits", 3, "--weight-error", 0.1], "got bits and weight_error"),
        (["--bits", 3, "--names", "none"], "names='none'"),
        (["--bits", 3, "--rule", "keep:nothing"], "rule keep:nothing: no tensor matches"),
        (["--bits", 0.01], "bits a weight by themselves"),
    ]
    for args, message in refused:
        assert run("quantize", weights, *args) == 2
        (text,) = capsys.readouterr().err.strip().splitlines()
        assert message in text
    assert set(weights.parent.iterdir()) == before


def test_no_file_is_written_over_its_own_source(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, file = weights.read_bytes(), tmp_path / "small.sws"
    (tmp_path / "sub").mkdir()
    same = tmp_path / "sub" / ".." / weights.name
    assert run("quantize", weights, "--out", same, "--overwrite") == 2
    assert "it is the file to read, which would be lost" in capsys.readouterr().err
    assert weights.read_bytes() == before
    assert run("quantize", weights, "--out", file, "--bits", 6) == 0
    made = file.read_bytes()
    for args in (["decompress", file, file], ["export", file, "--sparse", file]):
        assert run(*args, "--overwrite") == 2
        assert "which would be lost" in capsys.readouterr().err
        assert file.read_bytes() == made
    assert run("quantize", file) == 2
    assert "is a .sws file already" in capsys.readouterr().err


def test_compress_without_a_task_names_the_command_for_it(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compress", "--weights", weights) == 2
    assert f"To compress a checkpoint without one, run: softshare quantize {weights}" in capsys.readouterr().err
    assert run("compress") == 2
    assert "expected a task: An experiment" in capsys.readouterr().err


def test_the_folder_of_the_file_is_made(weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the work. If the work fails, the folder is removed."""
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

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(
        "softshare.datafree.compress_weights.compress_weights", lambda *_, **__: pytest.fail("the work was begun")
    )
    args = ["quantize", weights, "--bits", 6, "--out"]
    for file in (tmp_path / "small.sws", tmp_path / "new" / "small.sws"):
        assert run(*args, file) == 2
        message = capsys.readouterr().err
        assert f"cannot write to the folder {file.parent}" in message
        assert "No space left" in message
    for more in ([], ["--overwrite"]):
        assert run(*args, tmp_path, *more) == 2
        assert f"--out: expected the name of a file, but {tmp_path} is a folder" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["model.safetensors"]


CALIBRATION = """
import torch
from torch import nn

def parts():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 9)), [torch.randn(32, 5) @ torch.randn(5, 40)]

def wrong():
    return nn.Linear(2, 2), []
"""


def test_calibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same file as in Python."""
    (tmp_path / "data.py").write_text(CALIBRATION)
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 9))
    weights, file = tmp_path / "model.safetensors", tmp_path / "model.sws"
    safetensors.torch.save_file(model.state_dict(), weights)
    spec = f"{tmp_path / 'data.py'}:parts"
    assert run("quantize", weights, "--bits", 4, "--calibrate", spec, "--verbose") == 0
    printed = capsys.readouterr().out
    assert "outputs  tensor" in printed
    torch.manual_seed(3)
    torch.nn.Linear(40, 64), torch.nn.Linear(64, 9)
    batches = [torch.randn(32, 5) @ torch.randn(5, 40)]
    assert file.read_bytes() == ss.quantize(model, bits=4, calibrate=batches).data
    refused: list[tuple[list[object], str]] = [
        (["--bits", 4, "--calibrate", "data.txt"], "need a checkpoint that is a folder of Hugging Face"),
        (["--bits", 4, "--calibrate", "nowhere.py:parts"], "--calibrate: there is no file nowhere.py"),
        (["--calibrate", spec], "calibrate: expected a network and bits, max_bytes or loss_increase, got no such"),
        (["--bits", 4, "--calibrate", spec.replace("parts", "wrong")], "cannot take the weights"),
    ]
    for options, message in refused:
        assert run("quantize", weights, "--overwrite", *options) == 2
        assert message in " ".join(capsys.readouterr().err.split())


LABELLED = """
import torch
def parts():
    g = torch.Generator().manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 9))
    batches = [(torch.randn(64, 40, generator=g), torch.randint(9, (64,), generator=g)) for _ in range(4)]
    return network, batches, torch.nn.functional.cross_entropy
"""


def test_a_limit_on_the_loss_training_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same file as in Python, and the page has its loss."""
    (tmp_path / "labelled.py").write_text(LABELLED)
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 9))
    weights, file, page = tmp_path / "model.safetensors", tmp_path / "model.sws", tmp_path / "page"
    safetensors.torch.save_file(model.state_dict(), weights)
    spec = f"{tmp_path / 'labelled.py'}:parts"
    assert run("quantize", weights, "--loss-increase", 0.01, "--calibrate", spec, "--refine", 10, "--report", page) == 0
    printed = capsys.readouterr().out
    space: dict[str, Any] = {}
    exec(LABELLED, space)
    _, batches, loss = space["parts"]()
    fitted = ss.quantize(model, loss_increase=0.01, calibrate=batches, loss=loss, refine=10)
    assert file.read_bytes() == fitted.data
    assert fitted.loss is not None
    assert f"{fitted.loss[0]:.4g} -> {fitted.loss[1]:.4g}" in printed
    assert f"{fitted.loss[0]:.4g} → {fitted.loss[1]:.4g}" in (page / "index.html").read_text()
    assert run("quantize", weights, "--overwrite", "--bits", 4, "--refine", 10) == 2
    assert "refine: expected batches to train on" in " ".join(capsys.readouterr().err.split())
