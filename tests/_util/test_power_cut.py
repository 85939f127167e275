"""A power cut: what gets a name is on the disk by then, and the name is on the disk when it is needed."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import softshare as ss
from power_cut import watched_disk
from softshare._util import swap
from softshare._util.files import write_atomic
from softshare._util.run_folder import HISTORY, MODEL, RESULT, output_folder
from softshare.network.checkpoint import index_of, save_checkpoint, save_shards
from softshare.train.resume import Checkpoint

WEIGHTS = {f"layer{k}.weight": torch.randn(20, 20) for k in range(3)}


def save_sws(folder: Path) -> None:
    ss.quantize(WEIGHTS, bits=3).save(folder / "model.sws")


def save_weights(folder: Path) -> None:
    save_checkpoint(folder / "model.safetensors", WEIGHTS)


def keep_a_run(folder: Path) -> None:
    checkpoint = Checkpoint(folder / "mine.run")
    checkpoint.begin("this")
    checkpoint.write()


def finish_a_run(folder: Path) -> None:
    with output_folder(folder / "runs" / "a", overwrite=True) as unfinished, (unfinished / HISTORY).open("w") as file:
        file.write("epoch,seconds,tau\n")
        file.flush()
        write_atomic(unfinished / MODEL, b"\x89SWS")
        write_atomic(unfinished / RESULT, b'{\n  "schema": 1')
        file.write("1,2,3\n")


def save_in_shards(folder: Path) -> None:
    save_shards(folder / "model.safetensors", WEIGHTS, WEIGHTS.items(), 1700)


ACTIONS = [save_sws, save_weights, keep_a_run, finish_a_run, save_in_shards]


@pytest.fixture(params=["exchange", "pair"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folders change places in one step, or in two where the system has no such step."""
    if request.param == "pair":
        monkeypatch.setattr(swap, "exchange", lambda *_: False)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("action", ACTIONS)
def test_all_is_on_the_disk_before_it_has_its_name(action: Callable[[Path], None], tmp_path: Path) -> None:
    """And so is the name when the action ends: the first time, and over what it left then."""
    with watched_disk(tmp_path) as disk:
        action(tmp_path)
        n = len(disk.named)
        action(tmp_path)
    assert len(disk.named) > n


@pytest.mark.parametrize("kind", [stat.S_IFREG, stat.S_IFDIR], ids=["files", "folders"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_flush_that_is_left_out_is_seen(action: Callable[[Path], None], kind: int, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"is not on the disk|can be lost"), watched_disk(tmp_path, kind):
        action(tmp_path)


def test_shards_get_their_names_in_order(tmp_path: Path) -> None:
    """A folder that has lost a later name, but not an earlier one, has no index: so it has no mixed checkpoint."""
    save_in_shards(tmp_path)
    index = index_of(tmp_path / "model.safetensors")
    with watched_disk(tmp_path) as disk:
        save_in_shards(tmp_path)
    assert disk.named[-1] == index
    assert len(disk.named) == 4
    assert disk.waiting == [[]] * 4
    assert disk.removed == [index]
