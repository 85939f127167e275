"""Files are written completely or not at all, and only a plain file is ever replaced.

A file that cannot be read raises an error with its name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from softshare.errors import ConfigError, FormatError

TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")  # the name of a file that is being written
_STREAMS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def write_atomic(path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> int:
    """Write a temporary file beside `path`, flush it to disk and rename it. Returns the size in bytes.

    A replaced file keeps its permissions. Temporary files that a killed process left in the folder are removed.
    """
    with written_together() as files:
        return files.write(path, data)


class Together:
    """Files that belong together. What is asked for is done in its order, once all data are on the disk."""

    def __init__(self, open_files: contextlib.ExitStack) -> None:
        self._open = open_files
        self._steps: list[tuple[Path | None, Path]] = []  # a temporary file and its name, or None and what to remove

    def write(self, path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> int:
        """Write a file, which gets its name at the end. Returns the size in bytes."""
        path = Path(path)
        mode = require_plain(path)
        try:
            _remove_leftovers(path.parent)
            file, temporary = self._open.enter_context(_temporary_file(path.parent))
            size = sum(_write(file, part) for part in ([data] if isinstance(data, bytes) else data))
            if mode is not None:
                os.fchmod(file, mode)
            os.fsync(file)
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
        self._steps.append((temporary, path))
        return size

    def remove(self, path: Path) -> None:
        """Remove a plain file at the end, if there is one."""
        if require_plain(path) is not None:
            self._steps.append((None, path))

    def publish(self) -> None:
        for temporary, path in self._steps:
            try:
                if temporary is None:
                    os.unlink(path)
                else:
                    os.replace(temporary, path)
                sync_folder(path.parent)  # a power cut must not leave a later step without this one
            except OSError as error:
                raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def written_together() -> Iterator[Together]:
    """Within, files are written under temporary names. They get their own at the end, or none does if one fails."""
    with contextlib.ExitStack() as open_files:
        files = Together(open_files)
        yield files
        files.publish()


def kind_of(path: Path) -> str | None:
    """What is at the path, in words; None if nothing is. A link is a link, wherever it leads."""
    try:
        return _KINDS.get(stat.S_IFMT(os.lstat(path).st_mode), "something unknown")
    except (FileNotFoundError, NotADirectoryError):
        return None


def require_plain(path: Path) -> int | None:
    """The permissions of the file at the path; None if nothing is there. Anything but a plain file is refused."""
    try:
        kind = kind_of(path)
        mode = stat.S_IMODE(os.lstat(path).st_mode) if kind else None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    if kind not in (None, "a file"):
        raise ConfigError(f"cannot write {path}: expected a plain file there or nothing, found {kind}. Move it away")
    return mode


def require_other(target: Path, source: Path) -> None:
    """Raise if a file would be written over the one that it is made from."""
    with contextlib.suppress(OSError):  # one of them is not there
        if os.path.samefile(target, source):
            raise ConfigError(f"cannot write {target}: it is the file to read, which would be lost. Give another name")


def require_folder(path: Path) -> None:
    """Raise unless a folder is at the path, or nothing. A link to a folder is refused."""
    if (kind := kind_of(path)) not in (None, "a folder"):
        raise ConfigError(f"cannot write {path}: expected a folder there or nothing, found {kind}. Give another path")


@contextlib.contextmanager
def _temporary_file(folder: Path) -> Iterator[tuple[int, Path]]:
    """A new file, open and locked while it is written: a file without its lock was left by a killed process."""
    while True:
        path = folder / f".{secrets.token_hex(8)}.tmp"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(OSError, ImportError):  # no locks here: then nobody removes it either
            if not try_lock(file) or not os.fstat(file).st_nlink:  # taken for a leftover before it had its lock
                os.close(file)
                continue
        break
    try:
        yield file, path
    finally:
        with contextlib.suppress(OSError):  # after a success it is already renamed
            os.unlink(path)
        os.close(file)


def _remove_leftovers(folder: Path) -> None:
    with contextlib.suppress(OSError, ImportError), os.scandir(folder) as entries:
        for entry in entries:
            if TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                file = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    if try_lock(file):
                        os.unlink(entry.path)
                finally:
                    os.close(file)


def try_lock(file: int) -> bool:
    """Whether this process now has the file to itself, until it closes it or dies. OSError: locks do not work here."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(file: int, data: bytes) -> int:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
    return len(data)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk. Some file systems cannot, and need not."""
    try:
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EACCES):
            raise


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and flush their names to disk. An existing folder is fine."""
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for path in made:
            sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(f"cannot write to the folder {folder}: {error.strerror or error}") from error


def require_writable(folder: Path) -> None:
    """Make the folder and check that it can be written to: now, not after hours of work."""
    make_folder(folder)
    try:
        with _temporary_file(folder) as (file, _):
            _write(file, b"x")
            os.fsync(file)
    except OSError as error:
        raise ConfigError(f"cannot write to the folder {folder}: {error.strerror or error}") from error


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    require_readable(path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error


def require_readable(path: str | os.PathLike[str]) -> None:
    """Refuse what may never end: a device, or a named pipe that nobody writes to. A pipe of the shell's is read."""
    if os.fspath(path).startswith(_STREAMS):
        return
    with contextlib.suppress(OSError):  # whoever opens it says what is wrong
        kind = _KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "something unknown")
        if kind not in ("a file", "a folder"):
            raise ConfigError(f"cannot read {os.fspath(path)}: expected a file, found {kind}")


def cannot_read(path: str | os.PathLike[str], error: OSError) -> ConfigError:
    return ConfigError(f"cannot read {os.fspath(path)}: {error.strerror or error}")


def no_safetensors(path: str | os.PathLike[str], error: Exception) -> FormatError:
    expected = "expected one of safetensors, or of torch.save(model.state_dict(), ...), or GGUF or ONNX"
    return FormatError(f"{os.fspath(path)} is not a safetensors file ({error}); {expected}")
