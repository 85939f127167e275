from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from softshare._util.run_folder import FRAMES, HISTORY, LAST_GOOD, MODEL, PRETRAINED, RESULT, RETRAINED, output_folder
from softshare.errors import ConfigError, DivergedError, FormatError
from softshare.network.checkpoint import load_checkpoint, save_checkpoint

FILES = [MODEL, RESULT, HISTORY, FRAMES, PRETRAINED, RETRAINED, LAST_GOOD]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below the folder, by its path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def fill(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"earlier {name}")


def fail(folder: Path, name: str, content: bytes, error: BaseException) -> None:
    """A run that ends after it has written one file."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    raise error


# The folder


def test_the_names_are_those_of_the_documentation() -> None:
    assert FILES == [
        "model.sws",
        "result.json",
        "history.csv",
        "frames.npz",
        "pretrained.safetensors",
        "retrained.safetensors",
        "last_good.safetensors",
    ]


def test_makes_the_folder_with_its_parents_and_leaves_it_empty(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with output_folder(path, overwrite=False) as folder:
        assert folder.parent == path
        assert contents(path) == {}  # nothing is left of the trial
        (folder / MODEL).write_bytes(b"x")
    assert contents(tmp_path) == {"runs/a/model.sws": b"x"}
    assert [p.name for p in path.iterdir()] == ["model.sws"]


def test_a_folder_that_holds_other_things_is_used_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path, "notes.txt")
    with output_folder(tmp_path, overwrite=False):
        pass
    assert contents(tmp_path) == {"notes.txt": b"earlier notes.txt"}


@pytest.mark.parametrize("name", FILES)
def test_an_earlier_run_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    fill(tmp_path, name)
    with pytest.raises(ConfigError, match="--overwrite") as error, output_folder(tmp_path, overwrite=False):
        pytest.fail("the folder was given out")
    assert name in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert contents(tmp_path) == {name: f"earlier {name}".encode()}


def test_overwrite_takes_the_earlier_run_away_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path, *FILES, "notes.txt")
    before = contents(tmp_path)
    with output_folder(tmp_path, overwrite=True) as folder:
        (folder / RESULT).write_bytes(b"new")
        assert before.items() <= contents(tmp_path).items()  # until the new run is done
    assert contents(tmp_path) == {"notes.txt": b"earlier notes.txt", RESULT: b"new"}


def test_an_error_leaves_the_earlier_run_as_it_was(tmp_path: Path) -> None:
    fill(tmp_path, *FILES)
    before = contents(tmp_path)
    with pytest.raises(ConfigError), output_folder(tmp_path, overwrite=True) as folder:
        fail(folder, PRETRAINED, b"new", ConfigError("Task.train gave no batch"))
    assert contents(tmp_path) == before


def test_an_error_after_the_training_does_not_cost_the_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), output_folder(tmp_path, overwrite=True) as folder:
        fail(folder, RETRAINED, b"weights", ConfigError("Task.train gave no batch"))
    assert contents(tmp_path) == {RETRAINED: b"weights"}


def test_a_stop_leaves_the_unfinished_files_and_the_next_run_replaces_them(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), output_folder(tmp_path, overwrite=False) as folder:
        fail(folder, HISTORY, b"two epochs", KeyboardInterrupt())
    assert contents(tmp_path) == {".unfinished/history.csv": b"two epochs"}
    with output_folder(tmp_path, overwrite=False) as folder:
        (folder / MODEL).write_bytes(b"x")
    assert contents(tmp_path) == {MODEL: b"x"}


def test_a_report_of_an_unfinished_run_goes_with_it(tmp_path: Path) -> None:
    """Both one that a stopped run has and one that is written while the next run is under way."""
    fill(tmp_path / ".unfinished" / "report" / "figures", "film-1.svg")
    fill(tmp_path / "report", "index.html")
    with output_folder(tmp_path, overwrite=False) as folder:
        assert contents(folder) == {}
        fill(folder / "report", "index.html")
        (folder / MODEL).write_bytes(b"x")
    assert contents(tmp_path) == {MODEL: b"x", "report/index.html": b"earlier index.html"}
    assert not folder.exists()
    with pytest.raises(ConfigError), output_folder(tmp_path, overwrite=True) as folder:
        fail(folder, "report/index.html", b"page", ConfigError("no"))
    assert not folder.exists()


def test_overwrite_takes_the_earlier_report_away(tmp_path: Path) -> None:
    fill(tmp_path, *FILES)
    fill(tmp_path / "report" / "figures", "film-1.svg")
    fill(tmp_path / "report", "index.html")
    before = contents(tmp_path)
    with output_folder(tmp_path, overwrite=True) as folder:
        assert contents(tmp_path) == before  # until the new run is done
        (folder / RESULT).write_bytes(b"new")
    assert contents(tmp_path) == {RESULT: b"new"}


def test_overwrite_leaves_a_folder_that_is_only_called_report(tmp_path: Path) -> None:
    fill(tmp_path, *FILES)
    fill(tmp_path / "report", "thesis.tex")
    with output_folder(tmp_path, overwrite=True):
        pass
    assert contents(tmp_path) == {"report/thesis.tex": b"earlier thesis.tex"}


def test_an_error_leaves_no_empty_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), output_folder(tmp_path / "runs" / "a", overwrite=False):
        raise ConfigError("no")
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_a_folder_that_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ZeroDivisionError), output_folder(tmp_path / "a", overwrite=False):
        raise ZeroDivisionError
    assert (tmp_path / "a").is_dir()


def test_an_error_leaves_the_last_good_state(tmp_path: Path) -> None:
    with pytest.raises(DivergedError), output_folder(tmp_path / "a", overwrite=False) as folder:
        fail(folder, LAST_GOOD, b"weights", DivergedError("the loss became nan", {}))
    assert contents(tmp_path) == {"a/last_good.safetensors": b"weights"}


@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / "file" / below
    with pytest.raises(ConfigError, match="cannot write") as error, output_folder(path, overwrite=True):
        pytest.fail("the folder was given out")
    assert str(path) in str(error.value)
    assert contents(tmp_path) == {"file": b"not a folder"}


def test_a_folder_that_cannot_be_written_is_found_out_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    fill(tmp_path / "old", RESULT)
    for name in ("new", "old"):
        with pytest.raises(ConfigError, match="No space left") as error, output_folder(tmp_path / name, overwrite=True):
            pytest.fail("the folder was given out")
        assert str(tmp_path / name) in str(error.value)
    assert contents(tmp_path) == {"old/result.json": b"earlier result.json"}
    assert not (tmp_path / "new").exists()


# Checkpoints


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
    torch.save({"w": torch.zeros(2)}, tmp_path / "pickled.pt")
    (tmp_path / "cut.safetensors").write_bytes(whole[:-1])
    (tmp_path / "head.safetensors").write_bytes(whole[:20])
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "text.safetensors").write_text("not a checkpoint, but longer than a header")
    for name in ("pickled.pt", "cut.safetensors", "head.safetensors", "empty.safetensors", "text.safetensors"):
        with pytest.raises(FormatError, match=r"is not a safetensors file.*safetensors\.torch\.save_file") as error:
            load_checkpoint(tmp_path / name)
        assert str(error.value).startswith(str(tmp_path / name))
