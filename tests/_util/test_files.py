"""Files are written completely or not at all, and errors name them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from softshare._util.files import read_bytes, write_atomic
from softshare.errors import ConfigError


def test_a_file_is_written_whole_in_one_part_or_several(tmp_path: Path) -> None:
    assert write_atomic(tmp_path / "a", b"whole") == 5
    assert write_atomic(tmp_path / "b", iter([b"in ", b"parts"])) == 8
    assert (read_bytes(tmp_path / "a"), read_bytes(tmp_path / "b")) == (b"whole", b"in parts")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]  # no temporary file remains


def test_a_failure_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    write_atomic(tmp_path / "a", b"earlier")
    with pytest.raises(ZeroDivisionError):
        write_atomic(tmp_path / "a", parts())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match=rf"cannot write {tmp_path / 'a'}: No space left on device"):
        write_atomic(tmp_path / "a", b"new")
    assert read_bytes(tmp_path / "a") == b"earlier"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match=f"cannot read {path}: "):
            read_bytes(path)
