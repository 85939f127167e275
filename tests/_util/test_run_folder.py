from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from softshare._util.run_folder import FRAMES, HISTORY, LAST_GOOD, MODEL, PRETRAINED, RESULT, RETRAINED, output_folder
from softshare.errors import ConfigError, DivergedError

FILES = [MODEL, RESULT, HISTORY, FRAMES, PRETRAINED, RETRAINED, LAST_GOOD]


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below the folder, by its path."""
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
        assert contents(path) == {}  # nothing remains of the check for writing
        (folder / MODEL).write_bytes(b"x")
    assert contents(tmp_path) == {"runs/a/model.sws": b"x"}
    assert [p.name for p in path.iterdir()] == ["model.sws"]


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    fill(tmp_path, "notes.txt")
    with output_folder(tmp_path, overwrite=False):
        pass
    assert contents(tmp_path) == {"notes.txt": b"earlier notes.txt"}


def test_an_earlier_run_is_refused_and_not_touched(tmp_path: Path) -> None:
    for name in FILES:
        path = tmp_path / f"with {name}"
        fill(path, name)
        message = rf"{path} holds an earlier run \({name}\). Give --overwrite"
        with pytest.raises(ConfigError, match=message), output_folder(path, overwrite=False):
            pytest.fail("the folder was given out")
        assert contents(path) == {name: f"earlier {name}".encode()}


def test_overwrite_removes_the_earlier_run_and_nothing_else(tmp_path: Path) -> None:
    fill(tmp_path, *FILES, "notes.txt")
    before = contents(tmp_path)
    with output_folder(tmp_path, overwrite=True) as folder:
        (folder / RESULT).write_bytes(b"new")
        assert before.items() <= contents(tmp_path).items()  # until the new run is done
    assert contents(tmp_path) == {"notes.txt": b"earlier notes.txt", RESULT: b"new"}


def test_an_error_leaves_the_earlier_run(tmp_path: Path) -> None:
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
    """The report of a stopped run, and one that is written while the next run is under way."""
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


def test_overwrite_removes_the_earlier_report(tmp_path: Path) -> None:
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


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for below in ("", "a/b"):
        path = tmp_path / "file" / below
        with pytest.raises(ConfigError, match=f"cannot write .*{path}"), output_folder(path, overwrite=True):
            pytest.fail("the folder was given out")
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
