"""What a power cut would leave: the contents of files and folders as they were when they were last flushed to disk."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kills import patch_calls
from softshare._util.files import TEMPORARY


class Disk:
    """Watches the calls to the file system. A name must only be given to what is on the disk, all of it."""

    def __init__(self, below: Path, blind: int) -> None:
        self.below, self.blind = below, blind
        self.flushed: dict[int, object] = {}  # by inode: the names in a folder, or the size and the time of a file
        self.named: list[Path] = []  # by a rename, in their order
        self.removed: list[Path] = []
        self.waiting: list[list[str]] = []  # for each rename, what was named or removed but not flushed by then

    def __call__(self, name: str, *args: Any) -> None:
        if name == "fsync" and stat.S_IFMT(os.fstat(args[0]).st_mode) != self.blind:
            self.flushed[os.fstat(args[0]).st_ino] = state(args[0])
        if name in ("rename", "replace", "exchange") and self.below in Path(args[0]).parents:  # numba has files too
            source, target = Path(args[0]), Path(args[1])
            assert self.has(source), f"{source} is not on the disk, and becomes {target}"
            self.waiting.append([path.name for path in self.named + self.removed if not self.has_name(path)])
            self.named.append(target)
        if name == "unlink" and Path(args[0]).exists() and not TEMPORARY.fullmatch(Path(args[0]).name):
            self.removed.append(Path(args[0]))

    def has(self, path: Path) -> bool:
        """Whether all of a file or folder is on the disk as it is now."""
        inner = path.iterdir() if path.is_dir() else ()
        return self.flushed.get(path.stat().st_ino) == state(path) and all(map(self.has, inner))

    def has_name(self, path: Path) -> bool:
        """Whether the name is on the disk, or its absence."""
        names = self.flushed.get(path.parent.stat().st_ino)
        now = path.stat().st_ino if path.exists() else None
        return isinstance(names, dict) and names.get(path.name) == now


def state(place: Path | int) -> object:
    if os.path.isdir(place):
        with os.scandir(place) as entries:
            return {entry.name: entry.inode() for entry in entries}
    found = os.stat(place)
    return found.st_size, found.st_mtime_ns, found.st_mode


@contextlib.contextmanager
def watched_disk(below: Path, blind: int = 0) -> Iterator[Disk]:
    """Within, nothing gets a name before it is flushed. At the end, each name is flushed, up to the folder `below`.

    What is of the kind `blind`, as in `stat.S_IFREG`, counts as never flushed.
    """
    disk = Disk(below, blind)
    with pytest.MonkeyPatch.context() as patch:
        patch_calls(disk, patch.setattr)
        yield disk
    assert disk.named, "the shim has seen no rename"
    for name in filter(Path.exists, disk.named):
        for path in (name, *name.parents):
            if path == below:
                break
            assert disk.has_name(path), f"{path} can be lost: its folder is not flushed"
