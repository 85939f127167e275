"""The folder of a run: which files it holds, and how they are written so that no half-written run remains."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from softshare._util.files import make_folder, require_writable, write_atomic
from softshare.errors import ConfigError, SoftShareError

MODEL, RESULT, HISTORY, FRAMES = "model.sws", "result.json", "history.csv", "frames.npz"
PRETRAINED, RETRAINED, LAST_GOOD = "pretrained.safetensors", "retrained.safetensors", "last_good.safetensors"
UNFINISHED = ".unfinished"
REPORT, PAGE = "report", "index.html"  # a folder, and the page in it
FILES = (MODEL, RESULT, HISTORY, FRAMES, PRETRAINED, RETRAINED, LAST_GOOD)


def earlier_files(path: Path) -> list[str]:
    """The files of an earlier run that the folder holds."""
    return [name for name in FILES if (path / name).exists()]


@contextlib.contextmanager
def made_folder(path: Path) -> Iterator[None]:
    """Make a folder and its parents. At the end, remove those that are still empty."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        make_folder(path)
        yield
    finally:
        with contextlib.suppress(OSError):  # stops at the first folder that is not empty
            for folder in made:
                folder.rmdir()


@contextlib.contextmanager
def output_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """A folder inside `path` to write a run into. When the run is done, its files move up to `path`.

    They also move up if training diverged, or if an error came after retraining. After any other error that a user can
    cause, the folder is removed and an earlier run stays unchanged. A crash or an interrupt leaves the unfinished files
    behind, and the next run replaces them.
    """
    earlier = earlier_files(path)
    if earlier and not overwrite:
        raise ConfigError(f"{path} holds an earlier run ({earlier[0]}). Give --overwrite or another --out")
    unfinished = path / UNFINISHED
    with made_folder(path):
        try:
            make_folder(unfinished)
            _clear(unfinished)
            require_writable(unfinished)
            yield unfinished
        except SoftShareError:
            if (unfinished / RETRAINED).exists() or (unfinished / LAST_GOOD).exists():
                _move_up(unfinished, earlier)
            elif unfinished.exists():
                shutil.rmtree(unfinished)
            raise
        _move_up(unfinished, earlier)


def _clear(folder: Path) -> None:
    """Empty a folder, subfolders too: an unfinished run may have a report."""
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise ConfigError(f"cannot empty the folder {folder}: {error.strerror or error}") from error


def _move_up(unfinished: Path, earlier: Sequence[str]) -> None:
    """Replace the files of an earlier run by those of this one. A report of the earlier run is removed too."""
    path = unfinished.parent
    for name in earlier:
        (path / name).unlink(missing_ok=True)
    if earlier and (path / REPORT / PAGE).exists() and not (path / REPORT).is_symlink():
        shutil.rmtree(path / REPORT)
    for name in earlier_files(unfinished):
        os.replace(unfinished / name, path / name)
    shutil.rmtree(unfinished)


def write_pair(folder: Path, file: bytes, result: bytes) -> None:
    """Write `model.sws` and `result.json` of a kept result into a folder: both or neither.

    Both files are complete before either gets its name, and a file is never beside the result of another file.
    """
    contents = {folder / MODEL: file, folder / RESULT: result}
    ready = {path: folder / f".{path.name}.ready" for path in contents}
    make_folder(folder)
    try:
        for path, content in contents.items():
            write_atomic(ready[path], content)
        (folder / RESULT).unlink(missing_ok=True)
        for path in contents:
            os.replace(ready[path], path)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        for path in ready.values():
            path.unlink(missing_ok=True)
        if not (folder / RESULT).exists():
            (folder / MODEL).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the folder holds something else
                folder.rmdir()
