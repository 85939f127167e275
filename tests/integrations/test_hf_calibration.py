"""Texts and pictures that calibrate a folder of Hugging Face: the model gets what its own tools make of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import softshare as ss
from softshare.cli.app import app
from softshare.errors import ConfigError
from softshare.integrations.hf_calibration import MOST_WINDOWS, calibration

pytestmark = pytest.mark.slow  # transformers takes seconds to import


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    folder = tmp_path / "bert"
    BertModel(BertConfig(vocab_size=12, max_position_embeddings=16, **size)).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "sat", "ran", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    from transformers import ViTConfig, ViTForImageClassification

    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    folder = tmp_path / "vit"
    ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, **size)).save_pretrained(folder)
    settings = {"do_resize": True, "size": {"height": 16, "width": 16}, "do_normalize": True, "do_rescale": True}
    settings |= {"image_processor_type": "ViTImageProcessor", "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | {"rescale_factor": 1 / 255, "resample": 2}))
    return folder


def test_texts_become_whole_windows_with_the_tokens_around_them(bert: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "1.txt").write_text("a cat sat . " * 200)
    (texts / "2.md").write_text("a dog ran . " * 200)
    (texts / ".hidden").write_bytes(b"\xff\xfe")
    model, batches = calibration(bert, texts)
    assert not model.training
    rows = torch.cat([batch["input_ids"] for batch in batches])
    assert rows.shape == (MOST_WINDOWS, 16)
    assert set(rows[:, 0].tolist()) == {2}
    assert set(rows[:, -1].tolist()) == {3}
    assert rows[0, 1:-1].tolist() == [5, 6, 8, 10] * 3 + [5, 6]
    assert rows[-1, 1:-1].unique().tolist() == [5, 7, 9, 10]  # the other text counts as well


def test_pictures_are_as_the_model_wants_them(vit: Path, tmp_path: Path) -> None:
    from PIL import Image

    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for k in range(20):
        Image.new("RGB", (40, 30), (255, 0, 12 * k)).save(pictures / f"{k:02}.png")
    (pictures / "notes.txt").write_text("not a picture")
    model, batches = calibration(vit, pictures)
    x = torch.cat([batch["pixel_values"] for batch in batches])
    assert x.shape == (20, 3, 16, 16)
    assert torch.allclose(x[3, :, 5, 5], (torch.tensor([1.0, 0.0, 36 / 255]) - 0.5) / 0.25, atol=1e-5)
    assert model(**batches[0]).logits.shape == (16, 2)


def test_the_command_calibrates_on_a_text(bert: Path, tmp_path: Path) -> None:
    text = tmp_path / "some.txt"
    text.write_text("a cat sat . the dog ran . " * 400)
    out = tmp_path / "small" / "model.sws"
    done = CliRunner().invoke(
        app, ["quantize", str(bert), "--bits", "5", "--calibrate", str(text), "--out", str(out), "--report",
              str(tmp_path / "page")]
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "outputs" in done.output
    assert (tmp_path / "page" / "index.html").is_file()
    model = ss.from_pretrained(out.parent)
    truth, batches = calibration(bert, text)
    with torch.no_grad():
        a, b = (m(**batches[0]).last_hidden_state for m in (model, truth))
    assert 0 < (a - b).square().mean() < 0.1 * b.square().mean()


def test_a_language_model_has_a_loss_on_texts(tmp_path: Path, bert: Path) -> None:
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    folder, text, out = tmp_path / "gpt", tmp_path / "some.txt", tmp_path / "small" / "model.sws"
    GPT2LMHeadModel(GPT2Config(vocab_size=12, n_positions=16, n_embd=32, n_layer=1, n_head=2)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
    text.write_text("a cat sat . the dog ran . " * 400)
    model, batches = calibration(folder, text)
    assert all(torch.equal(batch["labels"], batch["input_ids"]) for batch in batches)
    assert model(**batches[0]).loss > 0
    command = ["quantize", str(folder), "--loss-increase", "0.1", "--calibrate", str(text), "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert re.search(r"loss +[0-9.]+ -> [0-9.]+", done.output), done.output
    assert "labels" not in calibration(bert, text)[1][0]


def test_what_cannot_calibrate_says_so(bert: Path, vit: Path, tmp_path: Path) -> None:
    empty, bad, short = tmp_path / "empty", tmp_path / "bad.png", tmp_path / "short.txt"
    empty.mkdir()
    bad.write_text("no picture")
    short.write_text("a cat")
    latin = tmp_path / "latin.txt"
    latin.write_bytes("é".encode("latin-1") * 10)
    refused: list[tuple[Path, Path, str]] = [
        (bert, tmp_path / "none", "there is no file or folder"),
        (bert, empty, "found no file"),
        (bert, short, "expected at least 16 tokens of text, got 4"),
        (bert, latin, "expected text in UTF-8"),
        (vit, bad, "bad.png is not a picture"),
        (empty, short, "need a checkpoint that is a folder of Hugging Face"),
    ]
    for folder, given, message in refused:
        with pytest.raises(ConfigError, match=message):
            calibration(folder, given)


def test_a_folder_that_is_quantized_already_is_refused(bert: Path, tmp_path: Path) -> None:
    config: dict[str, Any] = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "softshare"}}))
    (tmp_path / "some.txt").write_text("a cat")
    with pytest.raises(ConfigError, match="expected weights that are not quantized"):
        calibration(bert, tmp_path / "some.txt")
