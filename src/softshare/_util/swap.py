"""Put one folder in the place of another in one step, and put back what a killed process left between two steps."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path

from softshare._util.files import kind_of, sync_folder

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of <fcntl.h> and <stdio.h>
_NOT_OFFERED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # by this kernel or this file system


def put_in_place(new: Path, path: Path, aside: Path) -> None:
    """Rename `new` to `path`. A folder that was at `path`, and not empty, is then at `aside`.

    After a kill at any time, `path` is the whole old folder or the whole new one. Where folders cannot be exchanged it
    may also be missing, and `put_back` restores the old one.
    """
    try:
        os.rename(new, path)  # nothing is there, or an empty folder
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if exchange(new, path):
            with contextlib.suppress(OSError):  # the new folder is in its place
                os.rename(new, aside)
        else:
            os.rename(path, aside)
            try:
                os.rename(new, path)
            except OSError:
                put_back(path, aside)
                raise
    with contextlib.suppress(OSError):  # without it, a power cut may bring the old folder back
        sync_folder(path.parent)


def put_back(path: Path, aside: Path) -> None:
    """Undo the first of the two renames, if a killed process did not get to the second."""
    if kind_of(aside) and not kind_of(path):
        os.rename(aside, path)
        sync_folder(path.parent)


def exchange(a: Path, b: Path) -> bool:
    """Exchange two paths in one step. False if this system does not offer it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(a), _HERE, os.fsencode(b), _EXCHANGE) == 0:
        return True
    problem = ctypes.get_errno()
    if problem in _NOT_OFFERED:
        return False
    raise OSError(problem, os.strerror(problem), os.fspath(b))
