"""Writing a checkpoint in shards over an earlier one: the folder never has a mixture of both."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kills import every_kill, full_disk
from softshare.errors import SoftShareError
from softshare.network.checkpoint import index_of, load_checkpoint, save_shards, saved_files
from softshare.network.readers.source import open_tensors


def state(value: float) -> dict[str, Tensor]:
    return {f"{k}.weight": torch.full((64,), value) for k in range(4)}


def save(path: Path, value: float, most: int) -> None:
    tensors = state(value)
    save_shards(path, tensors, tensors.items(), most)


def values_in(folder: Path) -> set[float]:
    """All values of the checkpoint in the folder, which is whole. Empty if it is refused."""
    try:
        found = load_checkpoint(folder)
    except SoftShareError:
        return set()
    assert set(found) == set(state(0.0))
    return {float(v) for t in found.values() for v in t}


SIZES = [(256, 256), (256, 1 << 20), (1 << 20, 256), (256, 512), (512, 256), (1 << 20, 1 << 20)]  # before and after


@pytest.mark.parametrize(("first", "second"), SIZES)
def test_an_earlier_checkpoint_is_replaced_as_a_whole(first: int, second: int, tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", 1.0, first)
    save(tmp_path / "model.safetensors", 2.0, second)
    assert values_in(tmp_path) == {2.0}
    assert len(saved_files(tmp_path / "model.safetensors")) == {256: 5, 512: 3}.get(second, 1)


@pytest.mark.parametrize(("first", "second"), SIZES)
def test_a_full_disk_leaves_the_earlier_checkpoint(first: int, second: int, tmp_path: Path) -> None:
    """Until the first file takes its name. After that nothing needs space."""
    path = tmp_path / "model.safetensors"
    save(path, 1.0, first)
    for k in range(1, 8):
        with full_disk(k, lasts=True) as failed, pytest.raises(SoftShareError, match="No space left"):
            save(path, 2.0, second)
        if failed[0] in ("unlink", "replace"):
            break
        assert values_in(tmp_path) == {1.0}
        assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]
    assert k > 2


@pytest.mark.parametrize(("first", "second"), SIZES)
def test_a_kill_never_leaves_a_mixture(first: int, second: int, tmp_path: Path) -> None:
    start, folder = tmp_path / "start", tmp_path / "folder"
    start.mkdir()
    save(start / "model.safetensors", 1.0, first)
    shutil.copytree(start, folder)
    seen = set()
    for _ in every_kill(lambda: save(folder / "model.safetensors", 2.0, second)):
        found = values_in(folder)
        assert found in (set(), {1.0}, {2.0})
        seen |= found
        save(folder / "model.safetensors", 3.0, second)  # once more, over what a kill has left
        assert values_in(folder) == {3.0}
        shutil.rmtree(folder)
        shutil.copytree(start, folder)
    assert seen == {1.0, 2.0}


def test_a_kill_of_the_first_one_leaves_nothing_that_is_read_in_part(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    for _ in every_kill(lambda: save(tmp_path / "new" / "model.safetensors", 2.0, 256)):
        assert values_in(tmp_path / "new") in (set(), {2.0})
        shutil.rmtree(tmp_path / "new")
        (tmp_path / "new").mkdir()


def test_other_files_stay(tmp_path: Path) -> None:
    others = ["model-1-of-2.safetensors", "other-00001-of-00002.safetensors", "model-00001-of-00002.bin", "notes"]
    for name in others:
        (tmp_path / name).write_text("mine")
    save(tmp_path / "model.safetensors", 1.0, 256)
    save(tmp_path / "model.safetensors", 2.0, 1 << 20)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, "model.safetensors"])


def test_a_link_in_place_of_an_old_shard_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", 1.0, 256)
    link = tmp_path / "model-00004-of-00004.safetensors"
    link.unlink()
    (tmp_path / "precious").write_text("kept")
    link.symlink_to(tmp_path / "precious")
    with pytest.raises(SoftShareError, match="found a symbolic link"):
        save(tmp_path / "model.safetensors", 2.0, 512)
    assert (tmp_path / "precious").read_text() == "kept"
    assert index_of(tmp_path / "model.safetensors").exists()


@pytest.mark.slow
def test_many_tensors_cost_a_bounded_time(tmp_path: Path) -> None:
    """Each was compared with all before it: 65,536 small tensors of a file took a minute and a half."""
    tensors = dict.fromkeys(map(str, range(60_000)), torch.ones(2))
    start = time.process_time()
    save_shards(tmp_path / "m.safetensors", tensors, tensors.items(), 1 << 30)
    assert len(open_tensors(tmp_path / "m.safetensors")) == 60_000
    assert time.process_time() - start < 10
