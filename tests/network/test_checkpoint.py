"""Checkpoints: safetensors files that hold every tensor exactly, and what they say when they cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from softshare.config import Rule
from softshare.errors import ConfigError, FormatError, ModelError
from softshare.network.checkpoint import load_checkpoint, open_checkpoint, save_checkpoint


def every_kind_of_tensor() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 4, 2, 2, generator=generator)
    floats = {str(d): values.to(d) for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
    return {
        **floats,
        "counter": torch.tensor((1 << 40) + 1),
        "mask": torch.tensor([True, False]),
        "empty": torch.empty(0, 3),
        "transposed": values[:, :, 0, 0].t(),
        "with holes": values[..., 1],
        "channels last": values.to(memory_format=torch.channels_last),
        "expanded": torch.tensor([1.5]).expand(3),
        "trained": nn.Parameter(values[0]),
    }


def test_a_checkpoint_holds_every_tensor_exactly(tmp_path: Path) -> None:
    state = every_kind_of_tensor()
    save_checkpoint(tmp_path / "a.safetensors", state)
    for loaded in (
        load_checkpoint(tmp_path / "a.safetensors"),
        safetensors.torch.load_file(tmp_path / "a.safetensors"),
    ):
        assert set(loaded) == set(state)
        for name, tensor in state.items():
            assert loaded[name].dtype == tensor.dtype, name
            assert torch.equal(loaded[name], tensor), name
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_checkpoint_repeats_tied_tensors_under_each_name(tmp_path: Path) -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    save_checkpoint(tmp_path / "a", {"embed": tensor, "head": tensor, "part": tensor[1:]})
    loaded = load_checkpoint(tmp_path / "a")
    assert torch.equal(loaded["embed"], tensor)
    assert torch.equal(loaded["head"], tensor)
    assert torch.equal(loaded["part"], tensor[1:])


def test_a_checkpoint_replaces_an_older_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a", {"w": torch.zeros(2)})
    save_checkpoint(tmp_path / "a", {"w": torch.ones(3)})
    assert load_checkpoint(tmp_path / "a")["w"].tolist() == [1, 1, 1]
    assert os.listdir(tmp_path) == ["a"]


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*missing.a\.safetensors"):
        save_checkpoint(tmp_path / "missing" / "a.safetensors", {"w": torch.zeros(2)})
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(ConfigError, match="cannot read") as error:
            load_checkpoint(path)
        assert str(path) in str(error.value)


def test_a_file_that_is_no_checkpoint_is_an_error_that_names_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "whole", {"w": torch.arange(100.0)})
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-1])
    (tmp_path / "head.safetensors").write_bytes(whole[:20])
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "text.safetensors").write_text("not a checkpoint, but longer than a header")
    for name in ("cut.safetensors", "head.safetensors", "empty.safetensors", "text.safetensors"):
        with pytest.raises(
            FormatError, match=r"is not a safetensors file.*expected one of safetensors, or of torch"
        ) as error:
            load_checkpoint(tmp_path / name)
        assert str(error.value).startswith(str(tmp_path / name))


def test_a_reserved_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="called '__metadata__', a name that safetensors reserves"):
        save_checkpoint(tmp_path / "a", {"__metadata__": torch.zeros(2)})
    assert os.listdir(tmp_path) == []


def test_an_open_checkpoint_knows_shared_and_tied_tensors(tmp_path: Path) -> None:
    """From a file and from a state dict alike. The first rule that matches decides."""
    torch.manual_seed(0)
    embed = torch.randn(5, 4)
    state = {"embed": embed, "head": embed.clone(), "body.weight": torch.randn(4, 4), "body.bias": torch.zeros(4)}
    state |= {"position": torch.randn(3, 4), "count": torch.ones(2, 2, dtype=torch.int64), "empty": torch.empty(0, 3)}
    save_checkpoint(tmp_path / "a.safetensors", state)
    rules = [Rule("pos*", share=False), Rule("*.bias", share=True), Rule("position", share=True)]
    for source in (state, tmp_path / "a.safetensors"):
        opened = open_checkpoint(source, rules)
        assert sorted(opened.shared) == ["body.bias", "body.weight", "embed"]
        assert sorted(opened.rest) == ["count", "empty", "position"]
        assert opened.tied == {"head": "embed"}
        for name in (*opened.shared, *opened.rest):
            assert torch.equal(opened[name], state[name]), name


def test_a_checkpoint_that_cannot_be_opened() -> None:
    with pytest.raises(ModelError, match="only tensors, but these entries are not: step"):
        open_checkpoint({"w": torch.zeros(2, 2), "step": 3})  # type: ignore[dict-item]
    with pytest.raises(ModelError, match="texts as names, got 3 as one"):
        open_checkpoint({3: torch.zeros(2, 2)})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"rule keep:fc\*: no tensor matches; the names are w"):
        open_checkpoint({"w": torch.zeros(2, 2)}, [Rule("fc*", share=False)])


def test_only_what_shares_memory_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of every tensor would be as large as the network."""
    weight = torch.arange(6.0).view(2, 3)
    state = {"own": torch.ones(3), "weight": weight, "tied": weight, "part": weight[1], "turned": weight.t()}
    saved: dict[str, Tensor] = {}

    def save(tensors: dict[str, Tensor]) -> bytes:
        saved.update(tensors)
        return b""

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save", save)
        save_checkpoint(tmp_path / "a", state)
    assert {name for name, t in saved.items() if t.data_ptr() == state[name].data_ptr()} == {"own", "weight"}
    save_checkpoint(tmp_path / "a", state)
    assert all(torch.equal(t, state[name]) for name, t in load_checkpoint(tmp_path / "a").items())
