"""One writer: a lock beside the folder of a run. It ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from softshare._util.files import require_plain, try_lock
from softshare.errors import ConfigError

_SIGN = b"softshare"  # the first word of a lock file
_held = set[int]()  # the open lock files of this process


def _let_go() -> None:
    """In a forked process, such as a worker that loads data: it may outlive its parent, and the lock may not."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Raise if another process writes this run. Where the file system has no locks, nobody is kept out."""
    lock = _lock_of(path)
    try:
        file = _take(lock, path)
    except OSError as error:
        raise ConfigError(f"cannot write {lock}: {error.strerror or error}") from error
    _held.add(file)
    try:
        with contextlib.suppress(OSError):  # it is only for the message to others
            os.truncate(file, 0)
            os.pwrite(file, b"%s process %d on %s\n" % (_SIGN, os.getpid(), socket.gethostname().encode()), 0)
        yield
    finally:
        if file in _held:
            _held.remove(file)
            with contextlib.suppress(OSError):
                if _is_at(file, lock):
                    os.unlink(lock)  # while it is locked, so that no other process can have locked this file
            os.close(file)


def is_written(path: Path) -> bool:
    """Whether another process writes this run. Where the file system has no locks, one that has left its file may.

    The file of a dead process is removed.
    """
    lock = _lock_of(path)
    try:
        file = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        if not try_lock(file):
            return True
        if os.pread(file, len(_SIGN), 0) == _SIGN and _is_at(file, lock):
            os.unlink(lock)
        return False
    except (OSError, ImportError):
        return True
    finally:
        os.close(file)


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _take(lock: Path, path: Path) -> int:
    while True:
        require_plain(lock)
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            _require_free(file, lock, path)
            if _is_at(file, lock):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # its holder has just removed it


def _require_free(file: int, lock: Path, path: Path) -> None:
    found = os.pread(file, 200, 0)
    if not _SIGN.startswith(found[: len(_SIGN)]):
        raise ConfigError(f"cannot write {lock}: softshare has not written the file that is there. Move it away")
    try:
        is_free = try_lock(file)
    except (OSError, ImportError):
        return
    if not is_free:
        holder = found.removeprefix(_SIGN).decode(errors="replace").strip() or "another process"
        raise ConfigError(
            f"{path} is being written by another run ({holder}). Wait until it ends, or give another --out"
        )


def _is_at(file: int, lock: Path) -> bool:
    """Whether the open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(lock))
    except FileNotFoundError:
        return False
