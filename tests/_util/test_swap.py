"""Folders that change places."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from softshare._util import swap
from softshare._util.swap import exchange, put_back, put_in_place


def make(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "file").write_text(text)
    return folder


def test_two_folders_are_exchanged_in_one_step(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", "first"), make(tmp_path / "b", "second")
    if not exchange(a, b):
        pytest.skip("this system cannot swap two folders")
    assert ((a / "file").read_text(), (b / "file").read_text()) == ("second", "first")
    with pytest.raises(FileNotFoundError):
        exchange(a, tmp_path / "missing")


def test_a_system_without_exchange(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    assert not exchange(tmp_path, tmp_path)


@pytest.mark.parametrize("way", ["exchange", "pair"])
def test_the_old_folder_is_put_aside(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "pair":
        monkeypatch.setattr(swap, "exchange", lambda *_: False)
    new, path, aside = make(tmp_path / "new", "new"), make(tmp_path / "a", "old"), tmp_path / "aside"
    put_in_place(new, path, aside)
    assert ((path / "file").read_text(), (aside / "file").read_text()) == ("new", "old")
    assert not new.exists()


def test_a_second_rename_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "exchange", lambda *_: False)
    new, path, aside = make(tmp_path / "new", "new"), make(tmp_path / "a", "old"), tmp_path / "aside"
    rename, calls = os.rename, list[object]()

    def fail(source: object, target: object) -> None:
        calls.append(source)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="No space left"):
        put_in_place(new, path, aside)
    assert ((path / "file").read_text(), (new / "file").read_text()) == ("old", "new")


def test_an_old_folder_is_put_back_only_if_its_place_is_free(tmp_path: Path) -> None:
    aside = make(tmp_path / "aside", "old")
    put_back(tmp_path / "a", aside)
    assert (tmp_path / "a" / "file").read_text() == "old"
    make(aside, "older")
    put_back(tmp_path / "a", aside)
    assert (tmp_path / "a" / "file").read_text() == "old"
