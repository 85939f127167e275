"""The lock of a run: one process has it, and it ends with the process."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from kills import every_kill
from softshare._util import files, run_lock
from softshare._util.run_lock import is_written, sole_writer
from softshare.errors import ConfigError


def test_the_lock_names_its_process_and_leaves_no_file(tmp_path: Path) -> None:
    with sole_writer(tmp_path / "a"):
        assert (tmp_path / ".a.lock").read_text().startswith(f"softshare process {os.getpid()} on ")
        with pytest.raises(ConfigError, match=rf"\(process {os.getpid()} on .*\)"), sole_writer(tmp_path / "a"):
            pytest.fail("two have the lock")
    assert os.listdir(tmp_path) == []


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    def lock() -> None:
        with sole_writer(tmp_path / "a"):
            os.truncate(tmp_path / ".a.lock", 0)  # the shim counts this call too

    for _ in every_kill(lock):
        with sole_writer(tmp_path / "a"):
            pass
        assert os.listdir(tmp_path) == []
    (tmp_path / ".a.lock").write_text("softshare process 1 on another machine with a longer name\n")
    with sole_writer(tmp_path / "a"):
        assert (tmp_path / ".a.lock").read_text().count("\n") == 1


def test_a_lock_that_is_removed_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder ends between the opening of the file and the lock."""
    seen = list[int]()

    def late(file: int) -> bool:
        seen.append(file)
        if len(seen) == 1:
            (tmp_path / ".a.lock").unlink()
        return files.try_lock(file)

    monkeypatch.setattr(run_lock, "try_lock", late)
    with sole_writer(tmp_path / "a"):
        assert (tmp_path / ".a.lock").exists()
    assert len(seen) == 2


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: int) -> bool:
        raise OSError("Function not implemented")

    monkeypatch.setattr(run_lock, "try_lock", no_locks)
    with sole_writer(tmp_path / "a"):
        pass
    assert os.listdir(tmp_path) == []


def test_whether_a_run_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_written(tmp_path / "a")
    with sole_writer(tmp_path / "a"):
        assert is_written(tmp_path / "a")
    (tmp_path / ".a.lock").write_text("softshare process 1 on a machine that was switched off\n")
    assert not is_written(tmp_path / "a")
    assert os.listdir(tmp_path) == []
    (tmp_path / ".a.lock").write_text("somebody's")
    assert not is_written(tmp_path / "a")
    assert (tmp_path / ".a.lock").read_text() == "somebody's"

    def no_locks(file: int) -> bool:
        raise OSError("no locks")

    monkeypatch.setattr(run_lock, "try_lock", no_locks)
    assert is_written(tmp_path / "a")  # nobody can know: its heartbeat decides
    assert not is_written(tmp_path / "b")


def test_a_child_that_outlives_the_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    read, write = os.pipe()  # the child ends when the test closes it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads
        process = os.fork()
        if process == 0:
            with sole_writer(tmp_path / "a"):
                if os.fork() == 0:
                    os.close(write)
                    os.read(read, 1)
                os._exit(0)
    os.waitpid(process, 0)
    with sole_writer(tmp_path / "a"):
        pass
    os.close(read)
    os.close(write)


def test_the_lock_of_another_is_not_removed(tmp_path: Path) -> None:
    with sole_writer(tmp_path / "a"):
        (tmp_path / ".a.lock").unlink()  # by hand
        (tmp_path / ".a.lock").write_text("softshare process 1 on another machine\n")
    assert (tmp_path / ".a.lock").exists()
