"""`softshare quantize` and `decompress` on folders, other formats, deltas and adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def weights(seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    state = {f"layers.{k}.weight": 0.1 * torch.randn(48, 40, generator=g) for k in range(5)}
    return state | {"norm.weight": torch.ones(40), "embed": torch.randn(60, 40, generator=g).bfloat16()}


def folder_of(path: Path, state: dict[str, Tensor]) -> Path:
    """A folder as of Hugging Face, in two shards."""
    path.mkdir()
    names = list(state)
    where = {name: f"model-0000{1 + (k > 2)}-of-00002.safetensors" for k, name in enumerate(names)}
    for file in set(where.values()):
        part = {name: state[name] for name in names if where[name] == file}
        safetensors.torch.save_file(part, path / file, {"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (path / "config.json").write_text(
        json.dumps({"model_type": "made-up", "quantization_config": {"quant_method": "x"}})
    )
    (path / "tokenizer.json").write_text("{}")
    (path / "modeling.py").write_text("raise SystemExit")
    return path


def test_a_folder_of_hugging_face_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder_of(tmp_path / "net", weights())
    assert run("quantize", source, "--bits", 5) == 0
    small = tmp_path / "net-sws"
    assert sorted(path.name for path in small.iterdir()) == ["config.json", "model.sws", "tokenizer.json"]
    config = json.loads((small / "config.json").read_text())
    n = sum(t.numel() for t in weights().values())
    bits = 8 * (small / "model.sws").stat().st_size / n
    described = {"quant_method": "softshare", "weights": "model.sws", "bits_per_weight": round(bits, 3)}
    assert config == {"model_type": "made-up", "quantization_config": described}
    assert run("quantize", source, "--bits", 5) == 2
    (back := tmp_path / "back").mkdir()
    assert run("decompress", small / "model.sws", back, "--dtype", "bfloat16", "--shards", "12KB") == 0
    assert "Wrote 7 tensors to 3 files" in capsys.readouterr().out
    assert json.loads((back / "config.json").read_text()) == {"model_type": "made-up"}
    index = json.loads((back / "model.safetensors.index.json").read_text())
    wanted = ss.load(small / "model.sws")
    assert set(index["weight_map"]) == set(wanted)
    assert index["metadata"]["total_size"] == 2 * n
    found: dict[str, Tensor] = {}
    for file in set(index["weight_map"].values()):
        part = safetensors.torch.load_file(back / file)
        assert sum(t.nbytes for t in part.values()) <= 12_000
        found |= part
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor.bfloat16()), name
    assert run("decompress", small / "model.sws", back, "--shards", "12KB") == 2
    assert "already exists" in capsys.readouterr().err


def test_weights_and_configuration_are_replaced_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A configuration that cannot be written leaves the earlier weights too."""
    source = folder_of(tmp_path / "net", weights())
    assert run("quantize", source, "--bits", 5) == 0
    small = tmp_path / "net-sws"
    before = {path.name: path.read_bytes() for path in small.iterdir()}
    (source / "config.json").write_text("[")
    assert run("quantize", source, "--bits", 3, "--overwrite") == 2
    assert "not a configuration in JSON" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in small.iterdir()} == before


def test_shards_replace_one_file_and_never_the_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder_of(tmp_path / "net", weights())
    assert run("quantize", source, "--bits", 5, "--out", tmp_path / "a.sws") == 0
    (back := tmp_path / "back").mkdir()
    assert run("decompress", tmp_path / "a.sws", back) == 0
    assert run("decompress", tmp_path / "a.sws", back, "--shards", "12KB") == 2
    assert run("decompress", tmp_path / "a.sws", back, "--shards", "12KB", "--overwrite") == 0
    assert not (back / "model.safetensors").exists()  # which would be read in place of the shards
    assert run("decompress", tmp_path / "a.sws", back) == 2
    assert run("quantize", source, "--base", back, "--bits", 5, "--out", tmp_path / "delta" / "a.sws") == 0
    capsys.readouterr()
    assert run("decompress", tmp_path / "delta" / "a.sws", back, "--base", back, "--overwrite") == 2
    assert "it is the file to read, which would be lost" in capsys.readouterr().err


def test_all_formats_of_the_same_weights_give_the_same_file(tmp_path: Path) -> None:
    state = {name: tensor.float() for name, tensor in weights().items()}
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    torch.save(state, tmp_path / "b.pt")
    gguf_files.write(tmp_path / "c.gguf", state)
    graph = helper.make_graph([], "g", [], [], [numpy_helper.from_array(t.numpy(), n) for n, t in state.items()])
    onnx.save(helper.make_model(graph), str(tmp_path / "d.onnx"))
    folder_of(tmp_path / "e", state)
    found = set()
    for name in ("a.safetensors", "b.pt", "c.gguf", "d.onnx", "e"):
        assert run("quantize", tmp_path / name, "--weight-error", 0.1, "--out", tmp_path / f"{name}.sws") == 0
        loaded = ss.load(tmp_path / f"{name}.sws")
        found.add(tuple(np.concatenate([loaded[k].numpy().ravel() for k in sorted(state)])))
    assert len(found) == 1


def test_a_limit_in_bytes(tmp_path: Path) -> None:
    safetensors.torch.save_file(weights(), tmp_path / "a.safetensors")
    assert run("quantize", tmp_path / "a.safetensors", "--max-bytes", 5000) == 0
    assert 4850 <= (tmp_path / "a.sws").stat().st_size <= 5000


def test_lossless_keeps_every_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = weights() | {"odd": torch.tensor([float("nan"), -0.0, float("inf"), 1e-40]), "n": torch.tensor(7)}
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    assert run("quantize", tmp_path / "a.safetensors", "--lossless") == 0
    assert "as they were" in capsys.readouterr().out
    assert run("decompress", tmp_path / "a.sws", tmp_path / "back.safetensors") == 0
    found = safetensors.torch.load_file(tmp_path / "back.safetensors")
    assert {name: t.reshape(-1).view(torch.uint8).tolist() for name, t in found.items()} == {
        name: t.reshape(-1).view(torch.uint8).tolist() for name, t in state.items()
    }
    assert (tmp_path / "a.sws").stat().st_size < (tmp_path / "a.safetensors").stat().st_size
    for args in (["--bits", 3], ["--rule", "keep:*"], ["--rest-dtype", "float16"]):
        assert run("quantize", tmp_path / "a.safetensors", "--lossless", "--overwrite", *args) == 2


def test_a_delta_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, tuned = weights(), weights()
    tuned["layers.2.weight"] = base["layers.2.weight"] + 0.01 * weights(1)["layers.2.weight"]
    for name, state in (("base", base), ("tuned", tuned), ("other", weights(2))):
        safetensors.torch.save_file(state, tmp_path / f"{name}.safetensors")
    delta, back = tmp_path / "delta" / "a.sws", tmp_path / "back.safetensors"
    args = ["quantize", tmp_path / "tuned.safetensors", "--base", tmp_path / "base.safetensors", "--out", delta]
    assert run(*args, "--weight-error", 0.002) == 0
    assert run("inspect", delta) == 0
    assert "Differences from the checkpoint with the SHA-256 " in capsys.readouterr().out
    assert delta.stat().st_size < 0.1 * (tmp_path / "base.safetensors").stat().st_size
    for more, message in (
        ([], "--base"),
        (["--base", tmp_path / "other.safetensors"], "expected the checkpoint that the file was made from"),
    ):
        assert run("decompress", delta, back, *more) == 2
        assert message in capsys.readouterr().err
        assert not back.exists()
    assert run("decompress", delta, back, "--base", tmp_path / "base.safetensors") == 0
    found = safetensors.torch.load_file(back)
    assert torch.equal(found["layers.1.weight"], base["layers.1.weight"])
    error = (found["layers.2.weight"] - tuned["layers.2.weight"]).norm() / tuned["layers.2.weight"].norm()
    assert error <= 0.002


def adapter(path: Path) -> dict[str, Tensor]:
    """A LoRA of two layers, in the layout of PEFT."""
    path.mkdir()
    g = torch.Generator().manual_seed(0)
    stem = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    state = {stem.format(k, "A"): torch.randn(8, 64, generator=g) / 8 for k in range(2)}
    state |= {stem.format(k, "B"): 0.02 * torch.randn(256, 8, generator=g) for k in range(2)}
    safetensors.torch.save_file(state, path / "adapter_model.safetensors", {"format": "pt"})
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    return state


def test_an_adapter_keeps_the_layout_of_peft(tmp_path: Path) -> None:
    state = adapter(tmp_path / "lora")
    assert run("quantize", tmp_path / "lora", "--bits", 5) == 0
    small, back = tmp_path / "lora-sws", tmp_path / "back"
    assert sorted(path.name for path in small.iterdir()) == ["adapter_config.json", "adapter_model.sws"]
    back.mkdir()
    assert run("decompress", small / "adapter_model.sws", back) == 0
    assert sorted(path.name for path in back.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    config = (tmp_path / "lora" / "adapter_config.json").read_bytes()
    assert (back / "adapter_config.json").read_bytes() == config
    found = safetensors.torch.load_file(back / "adapter_model.safetensors")
    assert {name: (t.shape, t.dtype) for name, t in found.items()} == {n: (t.shape, t.dtype) for n, t in state.items()}
    errors = {name: float((found[name] - t).norm() / t.norm()) for name, t in state.items()}
    a, b = (max(error for name, error in errors.items() if f"lora_{x}" in name) for x in "AB")
    assert a < b < 0.2  # B is four times as large, so it has fewer bits a weight


def test_what_cannot_be_done_says_so_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = weights()
    bad["layers.1.weight"][3, 3] = float("inf")
    safetensors.torch.save_file(bad, tmp_path / "bad.safetensors")
    safetensors.torch.save_file(weights(), tmp_path / "good.safetensors")
    ss.quantize(tmp_path / "good.safetensors", bits=4).save(tmp_path / "good.sws")
    (tmp_path / "empty").mkdir()
    gguf_files.write(tmp_path / "bad.gguf", bad)
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "bad.gguf").read_bytes()[:-4000])
    folder_of(tmp_path / "half", weights())
    (tmp_path / "half" / "model-00002-of-00002.safetensors").unlink()
    before = set(tmp_path.rglob("*"))
    good, out = tmp_path / "good.safetensors", tmp_path / "out.sws"
    refused: list[tuple[list[object], str]] = [
        (["quantize", tmp_path / "bad.safetensors", "--out", out], "layers.1.weight: expected finite weights"),
        (["quantize", tmp_path / "bad.gguf", "--out", out], "layers.1.weight: expected finite weights"),
        (["quantize", tmp_path / "cut.gguf", "--out", out], "cut short or damaged"),
        (["quantize", tmp_path / "empty"], "expected a file of weights"),
        (["quantize", tmp_path / "half"], "cannot read"),
        (["quantize", tmp_path / "gone"], "there is no file or folder"),
        (["quantize", good, "--base", tmp_path / "gone", "--out", out], "cannot read"),
        (["quantize", good, "--base", tmp_path / "cut.gguf", "--out", out], "cut short or damaged"),
        (["quantize", good, "--max-bytes", 10, "--out", out], "by themselves"),
        (["quantize", good, "--max-bytes", 0, "--out", out], "max_bytes: expected a number above 0"),
        (["decompress", tmp_path / "good.sws", out, "--shards", "two"], "--shards: expected a size such as 2GB"),
        (["decompress", tmp_path / "good.sws", out, "--shards", "0"], "--shards: expected a size such as 2GB"),
        (["decompress", tmp_path / "good.sws", out, "--base", good], "the file stands alone"),
    ]
    for args, message in refused:
        assert run(*args) == 2, args
        (text,) = capsys.readouterr().err.strip().splitlines()
        assert message in text
        assert set(tmp_path.rglob("*")) == before


def test_a_value_beyond_the_precision_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ss.quantize({"a": torch.full((4, 4), 1e6), "b": torch.ones(3)}, lossless=True).save(tmp_path / "a.sws")
    for more in ([], ["--shards", "1MB"]):
        assert run("decompress", tmp_path / "a.sws", tmp_path / "o.safetensors", "--dtype", "float16", *more) == 2
        assert "too large for float16" in capsys.readouterr().err
        assert not (tmp_path / "o.safetensors").exists()


@pytest.mark.slow
def test_an_adapter_is_loaded_by_peft(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    def base() -> Any:
        torch.manual_seed(0)
        size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        return LlamaForCausalLM(LlamaConfig(vocab_size=50, **size))

    tuned = peft.get_peft_model(base(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for name, weights in tuned.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weights, std=0.1)
    tuned.save_pretrained(tmp_path / "lora")
    assert run("quantize", tmp_path / "lora", "--bits", 9) == 0
    (tmp_path / "back").mkdir()
    assert run("decompress", tmp_path / "lora-sws" / "adapter_model.sws", tmp_path / "back") == 0
    again, tokens = peft.PeftModel.from_pretrained(base(), tmp_path / "back"), torch.arange(12)[None]
    with torch.no_grad():
        plain, wanted, got = (m.eval()(tokens).logits for m in (base(), tuned, again))
    assert (got - wanted).square().mean() < 0.05 * (plain - wanted).square().mean()
