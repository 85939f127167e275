"""Files of torch.save: a state dict is found wherever it is, and no code of a file runs."""

from __future__ import annotations

import argparse
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from softshare.errors import ConfigError, FormatError
from softshare.network.checkpoint import load_checkpoint, open_checkpoint
from softshare.network.weights import load_state_


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def saved(tmp_path: Path, value: Any, **how: Any) -> Path:
    torch.save(value, tmp_path / "file.pt", **how)
    return tmp_path / "file.pt"


def require_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def trained() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = make_net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("name", ["state_dict", "model", "model_state_dict", "net", None])
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_state_dict_is_found_wherever_it_is(tmp_path: Path, name: str | None, is_zip: bool) -> None:
    model, optimizer = trained()
    state = model.state_dict()
    beside = {"optimizer": optimizer.state_dict(), "epoch": 3, "best": torch.tensor(0.9), "rng": torch.get_rng_state()}
    beside |= {"losses": {"train": torch.tensor(1.0)}, "generators": {"cpu": torch.get_rng_state()}}
    file = saved(tmp_path, {**beside, name: state} if name else state, _use_new_zipfile_serialization=is_zip)
    require_equal(load_checkpoint(file), state)
    opened = open_checkpoint(file)
    assert opened.shared == ("0.weight", "3.weight")
    deeper = saved(tmp_path, {"run": {"best": {"state_dict": state}}, **beside})
    require_equal(load_checkpoint(deeper), state)
    listed = saved(tmp_path, (state, None, {"lr": 0.1, "sizes": [3, 4]}), _use_new_zipfile_serialization=is_zip)
    require_equal(load_checkpoint(listed), state)
    require_equal(load_checkpoint(saved(tmp_path, [{"epoch": 3}, {"model": state}])), state)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_prefixes_of_wrappers_are_taken_off(tmp_path: Path, prefix: str) -> None:
    state = make_net().state_dict()
    file = saved(tmp_path, {"state_dict": {prefix + name: tensor for name, tensor in state.items()}})
    require_equal(load_checkpoint(file), state)


def test_a_network_whose_part_has_the_name_of_a_wrapper_loads_too(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("module", make_net())
    again = nn.Sequential()
    again.add_module("module", nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
    load_state_(again, load_checkpoint(saved(tmp_path, model.state_dict())), "the file")
    require_equal(again.state_dict(), model.state_dict())


def test_a_checkpoint_of_lightning(tmp_path: Path) -> None:
    """Its callbacks may hold tensors of their own."""
    model, optimizer = trained()
    content = {"epoch": 1, "pytorch-lightning_version": "2.6.6", "state_dict": model.state_dict(), "loops": {}}
    content |= {"optimizer_states": [optimizer.state_dict()], "callbacks": {"mean": {"prior": {"w": torch.ones(3)}}}}
    require_equal(load_checkpoint(saved(tmp_path, content)), model.state_dict())


def test_of_several_state_dicts_the_user_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_net().state_dict()
    file = saved(tmp_path, {"model": state, "ema": {"module": {f"{name}_": t for name, t in state.items()}}})
    with pytest.raises(FormatError) as error:
        load_checkpoint(file)
    said = str(error.value)
    assert f"{file} has several state dicts: ['model'] (9 tensors), ['ema']['module'] (9 tensors)" in said
    monkeypatch.chdir(tmp_path)
    exec(said.rpartition(": ")[2], {"torch": torch})  # what the message says
    require_equal(load_checkpoint(tmp_path / "weights.pt"), state)


def test_tied_and_every_kind_of_tensor(tmp_path: Path) -> None:
    shared = torch.randn(5, 4)
    state = {"embed": shared, "head": shared, "half": torch.randn(3, 3).bfloat16(), "count": torch.tensor(1 << 40)}
    state |= {"transposed": torch.randn(2, 3).t(), "empty": torch.empty(0, 3), "parameter": nn.Parameter(torch.ones(2))}
    file = saved(tmp_path, state)
    require_equal(load_checkpoint(file), state)
    assert open_checkpoint(file).tied == {"head": "embed"}


def test_a_pt_file_is_compressed_in_one_line(tmp_path: Path) -> None:
    model = make_net()
    file = saved(tmp_path, {"model": model.state_dict(), "epoch": 3})
    ss.compress_weights(file, weight_error=0.1).save(tmp_path / "model.sws")
    assert (tmp_path / "model.sws").read_bytes() == ss.compress_weights(model.state_dict(), weight_error=0.1).data


class Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, ("trapped",)


@pytest.mark.parametrize("is_zip", [True, False])
def test_nothing_but_tensors_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_zip: bool) -> None:
    monkeypatch.chdir(tmp_path)
    state = make_net().state_dict()
    for value, what in (
        (make_net(), "torch.nn.modules.container.Sequential"),
        ({"model": state, "args": argparse.Namespace(lr=1)}, "argparse.Namespace"),
        ({"model": state, "trap": Trap()}, "posix.mkdir"),
    ):
        file = saved(tmp_path, value, _use_new_zipfile_serialization=is_zip)
        with pytest.raises(FormatError, match=rf"holds an object of {what}, and to read that would run code") as error:
            load_checkpoint(file)
        assert "torch.save(model.state_dict(), 'weights.pt')" in str(error.value)
        assert not Path("trapped").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    whole = saved(tmp_path, make_net().state_dict()).read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"w": [1.0, 2.0]}))
    torch.save({"epoch": 3, "loss": torch.tensor(0.5)}, tmp_path / "numbers.pt")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    torch.jit.script(nn.Linear(2, 2)).save(tmp_path / "script.pt")
    with zipfile.ZipFile(tmp_path / "file.pt") as old, zipfile.ZipFile(tmp_path / "packed.pt", "w", 8) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    for name, message in {
        "cut": "is not a file of torch.save, or it is damaged",
        "pickle": "pickle.pt",
        "numbers": "expected the state dict of a network in it, found a dict of epoch, loss",
        "tensor": "found a tensor",
        "script": r"is a TorchScript program\. Save its weights: ",
        "packed": "is not a file of torch.save: it is packed",
    }.items():
        with pytest.raises(FormatError, match=message) as error:
            load_checkpoint(tmp_path / f"{name}.pt")
        assert str(error.value).startswith(str(tmp_path / name))
    with pytest.raises(ConfigError, match="cannot read"):
        load_checkpoint(tmp_path / "missing.pt")


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, is_zip: bool) -> None:
    file, rng = saved(tmp_path, make_net().state_dict(), _use_new_zipfile_serialization=is_zip), random.Random(0)
    whole = file.read_bytes()
    said: list[str] = []
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(data)
        try:
            load_checkpoint(file)
        except FormatError as error:
            said.append(str(error))
    assert said
    assert all(str(file) in text for text in said)
