"""Files are written completely or not at all, and errors name them."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kills import every_kill, full_disk
from softshare._util.files import make_folder, read_bytes, require_writable, try_lock, write_atomic
from softshare.errors import ConfigError
from softshare.network.checkpoint import load_checkpoint, open_checkpoint


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


LEFT = ".0123456789abcdef.tmp"


def test_permissions_are_kept(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"earlier")
    for mode in (0o600, 0o664, 0o444):
        (tmp_path / "a").chmod(mode)
        write_atomic(tmp_path / "a", b"new")
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_only_a_plain_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = sorted(os.listdir(tmp_path))
    kinds = {"link": "a symbolic link", "dangling": "a symbolic link", "pipe": "a named pipe", "folder": "a folder"}
    for name, kind in kinds.items():
        with pytest.raises(ConfigError, match=f"cannot write {tmp_path / name}: .* found {kind}. Move it away"):
            write_atomic(tmp_path / name, b"new")
    with pytest.raises(ConfigError, match=r"cannot write /dev/null: .* found a device"):
        write_atomic("/dev/null", b"new")
    assert sorted(os.listdir(tmp_path)) == before
    assert read_bytes(tmp_path / "mine") == b"mine"


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    (tmp_path / LEFT).write_bytes(b"half")
    (tmp_path / "notes.tmp").write_bytes(b"mine")
    (tmp_path / ".fedcba9876543210.tmp").symlink_to(tmp_path / "notes.tmp")
    busy = tmp_path / ".00000000ffffffff.tmp"
    file = os.open(busy, os.O_WRONLY | os.O_CREAT)
    assert try_lock(file)
    write_atomic(tmp_path / "a", b"new")
    os.close(file)
    assert sorted(os.listdir(tmp_path)) == sorted([busy.name, ".fedcba9876543210.tmp", "a", "notes.tmp"])


def test_a_kill_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"old")
    seen = set()
    for _ in every_kill(lambda: void(write_atomic(tmp_path / "a", iter([b"n", b"ew"])))):
        seen.add(read_bytes(tmp_path / "a"))
        write_atomic(tmp_path / "a", b"old")
        assert os.listdir(tmp_path) == ["a"]
    assert seen == {b"old", b"new"}


def test_a_disk_that_fills_at_any_call(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"old")
    for k in itertools.count(1):
        with full_disk(k, lasts=True) as failed, contextlib.suppress(ConfigError):
            write_atomic(tmp_path / "a", iter([b"n", b"ew"]))
        assert os.listdir(tmp_path) == ["a"]
        assert read_bytes(tmp_path / "a") in (b"old", b"new")
        if not failed:
            break
    assert read_bytes(tmp_path / "a") == b"new"


def test_the_check_for_writing_leaves_files_alone(tmp_path: Path) -> None:
    (tmp_path / ".writable").write_bytes(b"mine")
    require_writable(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {".writable": b"mine"}
    with pytest.raises(ConfigError, match="cannot write to the folder"):
        make_folder(tmp_path / ".writable")


def void(_: object) -> None: ...


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name, kind in (("pipe", "a named pipe"), ("link", "a device")):
        with pytest.raises(ConfigError, match=f"cannot read .*{name}: expected a file, found {kind}"):
            read_bytes(tmp_path / name)
        with pytest.raises(ConfigError, match=f"expected a file, found {kind}"):
            load_checkpoint(tmp_path / name)
        with pytest.raises(ConfigError, match=f"expected a file, found {kind}"):
            open_checkpoint(tmp_path / name)


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="needs /dev/fd")
def test_a_pipe_of_the_shells_is_read() -> None:
    read, write = os.pipe()
    os.write(write, b"abc")
    os.close(write)
    assert read_bytes(f"/dev/fd/{read}") == b"abc"
    os.close(read)
