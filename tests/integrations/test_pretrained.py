"""Folders of Hugging Face with a .sws file: what comes back is what was saved, without a network and without pickle."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
)

import softshare as ss
from softshare.errors import ConfigError
from softshare.integrations.huggingface import from_pretrained, save_pretrained

pytestmark = pytest.mark.slow  # transformers takes seconds to import


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(torch, "load", refuse)


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(vocab_size=100, max_position_embeddings=8, num_labels=3, **size))


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=8))
    model.generation_config.max_length = 7
    return model


def compressed(model: nn.Module) -> ss.FittedWeights:
    return ss.compress_weights(model.state_dict(), weight_error=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [bert, gpt2])
def test_a_model_comes_back_bit_for_bit(tmp_path: Path, make: Any, dtype: torch.dtype) -> None:
    model = make().to(dtype)
    settings = model.config.to_dict()
    fitted = compressed(model)
    size = save_pretrained(model, fitted, tmp_path / "folder")
    assert size == len(fitted.data) == (tmp_path / "folder" / "model.sws").stat().st_size
    assert model.config.to_dict() == settings
    again = from_pretrained(tmp_path / "folder")
    assert type(again) is type(model)
    assert not again.training
    state, wanted = again.state_dict(), ss.load(tmp_path / "folder" / "model.sws")
    assert set(state) == set(wanted)
    for name, tensor in wanted.items():
        assert state[name].dtype == tensor.dtype == dtype, name
        assert torch.equal(state[name], tensor), name
    ss.load_into_(model, tmp_path / "folder" / "model.sws")
    words = torch.arange(6)[None]
    assert torch.equal(again(input_ids=words).logits, model.eval()(input_ids=words).logits)


def test_transformers_reads_the_folder(tmp_path: Path) -> None:
    save_pretrained(bert(), compressed(bert()), tmp_path)
    found = AutoConfig.from_pretrained(tmp_path, local_files_only=True)
    assert isinstance(found, BertConfig)
    assert found.architectures == ["BertForSequenceClassification"]
    assert (found.hidden_size, found.num_labels, found.dtype) == (32, 3, torch.float32)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.json", "model.sws"]


def test_tied_weights_stay_tied_and_settings_of_generation_come_along(tmp_path: Path) -> None:
    save_pretrained(gpt2(), compressed(gpt2()), tmp_path)
    again = from_pretrained(tmp_path, AutoModelForCausalLM)
    assert again.lm_head.weight is again.transformer.wte.weight
    assert again.generation_config.max_length == 7
    assert again.generate(torch.tensor([[1, 2]]), pad_token_id=0).shape == (1, 7)


def test_a_network_from_compress(tmp_path: Path) -> None:
    model = bert()
    batches = [{"input_ids": torch.randint(100, (8, 6)), "labels": torch.randint(3, (8,))} for _ in range(4)]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found: torch.Tensor = model(**batch).loss
        return found

    task = ss.Task(model, batches, loss, lambda model: float(loss(model, batches[0])), metric=ss.Metric("loss", ""))
    small = ss.compress(task, ss.CompressConfig().override(epochs=1), target=None)
    save_pretrained(model, small, tmp_path)
    again = from_pretrained(tmp_path)
    for name, tensor in small.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "sat"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    save_pretrained(bert(), compressed(bert()), tmp_path / "folder", tokenizer)
    again = AutoTokenizer.from_pretrained(tmp_path / "folder", local_files_only=True)
    assert again("a cat sat")["input_ids"] == tokenizer("a cat sat")["input_ids"]


def test_what_cannot_be_saved_or_loaded_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a model of transformers, got Linear"):
        save_pretrained(nn.Linear(2, 2), compressed(nn.Linear(2, 2)), tmp_path)
    mixed = bert()
    mixed.classifier.half()
    with pytest.raises(ConfigError, match=r"expected weights of one dtype, .* got float16 and float32"):
        save_pretrained(mixed, compressed(mixed), tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=r"expected a folder of save_pretrained, but there is no config\.json and no"):
        from_pretrained("bert-base-uncased")
    save_pretrained(bert(), compressed(bert()), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    for wrong in (["os"], ["AutoConfig"], None, ["A", "B"]):
        (tmp_path / "config.json").write_text(json.dumps({**settings, "architectures": wrong}))
        with pytest.raises(ConfigError, match="transformers has no model of the name"):
            from_pretrained(tmp_path)
    inner = from_pretrained(tmp_path, BertForSequenceClassification)
    assert isinstance(inner, BertForSequenceClassification)
    with pytest.raises(ss.SoftShareError, match="classifier"):
        from_pretrained(tmp_path, AutoModel)  # has no classifier
