"""The folder of a run: which files it holds, and how a finished run takes its place in one step.

A run is written to a folder beside its own: `runs/.a.unfinished` for `runs/a`. At the end the two change places, and
the earlier run, now `runs/.a.replaced`, is removed. A file that softshare has not written is never removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from softshare._util.files import (
    TEMPORARY,
    cannot_read,
    kind_of,
    make_folder,
    require_folder,
    require_plain,
    require_writable,
    sync_folder,
    write_atomic,
)
from softshare._util.run_lock import sole_writer
from softshare._util.swap import put_back, put_in_place
from softshare.errors import ConfigError, SoftShareError

MODEL, RESULT, HISTORY, FRAMES = "model.sws", "result.json", "history.csv", "frames.npz"
PRETRAINED, RETRAINED, LAST_GOOD = "pretrained.safetensors", "retrained.safetensors", "last_good.safetensors"
REPORT, PAGE, PICTURES = "report", "index.html", "figures"  # a folder, and the page and the folder in it
DRAW = "draw.html"  # in that folder: a page that runs the network
FILES = (MODEL, RESULT, HISTORY, FRAMES, PRETRAINED, RETRAINED, LAST_GOOD)
TRAINED = (MODEL, RETRAINED, LAST_GOOD)  # what took training to make
PRETRAINING, RETRAINING = "pretraining.run", "retraining.run"  # checkpoints, only in a run that is not finished
EVERY = 60.0  # seconds between two writes of a checkpoint
_PICTURE = re.compile(r"[a-z_]+(-\d+)?\.(svg|png)")
_OPENINGS = {MODEL: b"\x89SWS", RESULT: b'{\n  "schema": ', HISTORY: b"epoch,seconds,", FRAMES: b"PK\x03\x04"}


def earlier_files(path: Path) -> list[str]:
    """The files of an earlier run that the folder holds."""
    return [name for name in FILES if kind_of(path / name)]


def run_files(folder: Path, name: str) -> list[Path]:
    """The files of this name in all runs below a folder, without those in hidden folders: they are not finished."""
    found = (path for path in folder.rglob(name) if path.name == name)
    return sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts))


def unfinished_folder(path: Path) -> Path:
    """Where a run is written until it is finished."""
    return _beside(path, "unfinished")


def finished_folder(path: Path) -> Path:
    """Where a run will be when it is finished: the contrary of `unfinished_folder`, and any other path as it is."""
    own = re.fullmatch(r"\.(.+)\.unfinished", path.name)
    return path.with_name(own[1]) if own else path


def _beside(path: Path, what: str) -> Path:
    path = _named(path)
    return path.with_name(f".{path.name}.{what}")


def _named(path: Path) -> Path:
    path = path.resolve() if path.name in ("", "..") else path
    if not path.name:
        raise _cannot_replace(path, "the root of a file system")
    return path


def _cannot_replace(path: Path, what: str) -> ConfigError:
    below = f"Give a folder below it as --out, such as {path / 'run'}"
    return ConfigError(f"{path} is {what}, which cannot be replaced in one step. {below}")


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
def output_folder(
    path: Path, overwrite: bool, over: Sequence[str] = (), trained: Sequence[str] = TRAINED, resume: bool = False
) -> Iterator[Path]:
    """A folder to write a run into. When the run is done, it takes the place of `path` in one step.

    An earlier run is replaced only by one that is done, and only with `overwrite` or if its files are those of `over`.
    After an error, what took training to make (`trained`) is kept: in `path`, or where it is if `path` holds an earlier
    run. If there is none of it and no checkpoint, an error that a user can cause leaves nothing. A crash or an
    interrupt leaves the unfinished files, and the next run removes them. With `resume` it finds the checkpoints and
    the pre-trained network there.
    """
    path = _named(path)
    unfinished = unfinished_folder(path)
    with made_folder(path.parent), sole_writer(path):
        with _errors_of(path):
            _recover(path)
            require_free(path, overwrite, over)
            _require_room(unfinished, overwrite, resume)
            kept = (PRETRAINED, PRETRAINING, RETRAINING) if resume else ()
            _remove(unfinished, [name for name in _names(unfinished) if name not in kept])
        try:
            require_writable(unfinished)
            yield unfinished
        except Exception as error:
            _end_early(error, path, trained)
            raise
        _finish(path)


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def _recover(path: Path) -> None:
    """Complete what a killed run has begun: a replacement, or the removal of the run that was replaced."""
    unfinished, replaced = _beside(path, "unfinished"), _beside(path, "replaced")
    for folder in (path, unfinished, replaced):
        require_folder(folder)
    put_back(path, replaced)
    remove_run(replaced, path)
    if kind_of(replaced):
        raise ConfigError(f"{replaced} holds {_names(replaced)[0]}, which softshare has not written. Move it away")
    if not earlier_files(path) and kind_of(unfinished / MODEL) and kind_of(unfinished / RESULT):  # its last file
        _finish(path)


def require_free(path: Path, overwrite: bool, over: Sequence[str] = ()) -> None:
    """Raise unless a run may be written to the path: nothing is there, or an earlier run that may be replaced."""
    require_folder(path)
    if os.path.ismount(path):
        raise _cannot_replace(path, "the root of a file system")
    if path.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise _cannot_replace(path, "the folder you are in, or one above it")
    earlier = earlier_files(path)
    if earlier and not overwrite and earlier != list(over):
        raise ConfigError(f"{path} holds an earlier run ({earlier[0]}). Give --overwrite or another --out")
    for name in _names(path):
        if not _is_ours(path / name) or not _is_signed(path / name):
            raise ConfigError(
                f"{path} holds {name}, which is no file of a run that softshare wrote. Move it away, or give another "
                "--out"
            )


def _require_room(unfinished: Path, overwrite: bool, resume: bool) -> None:
    stopped = [name for name in (PRETRAINING, RETRAINING) if kind_of(unfinished / name)]
    if stopped and not overwrite and not resume:
        raise ConfigError(
            f"{unfinished} holds a run that was stopped ({stopped[0]}). Give --resume to go on with it, or --overwrite "
            "to start from the beginning"
        )
    left = [name for name in TRAINED if kind_of(unfinished / name)]
    if left and not overwrite and not (resume and stopped):
        raise ConfigError(
            f"{unfinished} holds what a run trained that did not finish ({left[0]}). Move it away to keep it, or give "
            "--overwrite"
        )
    for name in _names(unfinished):
        if not _is_ours(unfinished / name):
            raise ConfigError(f"{unfinished} holds {name}, which softshare has not written. Move it away")


def _end_early(error: Exception, path: Path, trained: Sequence[str]) -> None:
    unfinished = unfinished_folder(path)
    stopped = any(kind_of(unfinished / name) for name in (PRETRAINING, RETRAINING))
    if stopped and not any(kind_of(unfinished / name) for name in TRAINED):
        error.add_note("What was trained until then is kept. Give the same command with --resume to go on")
    elif any(kind_of(unfinished / name) for name in trained):
        if earlier_files(path):
            error.add_note(f"The earlier run in {path} is unchanged. What this run has trained is in {unfinished}")
            return
        try:
            _finish(path)
        except ConfigError as problem:
            error.add_note(str(problem))
        else:
            error.add_note(f"What this run has trained is in {path}")
    elif isinstance(error, SoftShareError) and not stopped:
        remove_run(unfinished)


def _finish(path: Path) -> None:
    """Put the unfinished run in its place. A report that was written meanwhile is removed, for it shows less."""
    unfinished, replaced = _beside(path, "unfinished"), _beside(path, "replaced")
    try:
        _remove(unfinished, [name for name in _names(unfinished) if name not in FILES])
        for name in ("", *filter(lambda name: _is_ours(unfinished / name), FILES)):
            if kind_of(path / name):
                os.chmod(unfinished / name, stat.S_IMODE(os.lstat(path / name).st_mode))
            sync_folder(unfinished / name)  # a file too: history.csv is only appended to
        put_in_place(unfinished, path, replaced)
    except OSError as error:
        raise ConfigError(
            f"cannot put the run into {path}: {error.strerror or error}. It is whole in {unfinished}; move it"
        ) from error
    remove_run(replaced, path)


def remove_run(folder: Path, into: Path | None = None) -> None:
    """Remove the folder of a run and the run's files in it. Others move to `into`, or stay, and so does the folder."""
    if kind_of(folder) != "a folder":
        return
    with contextlib.suppress(OSError):  # the next run tries again
        os.chmod(folder, 0o700)  # it may be read-only
        _empty(folder)
        for name in _names(folder):
            if into and not kind_of(into / name):
                os.rename(folder / name, into / name)
        os.rmdir(folder)
        sync_folder(folder.parent)


def _empty(folder: Path) -> None:
    _remove(folder, _names(folder))


def _remove(folder: Path, names: Sequence[str]) -> None:
    """Remove those that belong to a run. No link is followed."""
    for path in (folder / name for name in names if _is_ours(folder / name)):
        if path.name == REPORT:
            for inner in (path / PICTURES, path):
                for name in _names(inner):
                    if name != PICTURES:
                        os.unlink(inner / name)
                if kind_of(inner):
                    os.rmdir(inner)
        else:
            os.unlink(path)


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if kind_of(folder) == "a folder" else []


def _is_ours(path: Path) -> bool:
    """Whether a run has a file of this name and kind, or a report."""
    if path.name == REPORT:
        return kind_of(path) == "a folder" and _is_report(path)
    known = (*FILES, PRETRAINING, RETRAINING)
    return kind_of(path) == "a file" and (path.name in known or bool(TEMPORARY.fullmatch(path.name)))


def _is_report(folder: Path) -> bool:
    """Whether the folder holds a page, its pictures, or nothing, and nothing else."""
    pictures = folder / PICTURES
    plain = [folder / name for name in _names(folder) if name != PICTURES] + [pictures / n for n in _names(pictures)]
    return kind_of(pictures) in (None, "a folder") and all(
        kind_of(path) == "a file" and _is_of_report(path) for path in plain
    )


def _is_of_report(path: Path) -> bool:
    if TEMPORARY.fullmatch(path.name):
        return True
    if path.parent.name == PICTURES:
        return bool(_PICTURE.fullmatch(path.name))
    return path.name in (PAGE, DRAW) and _is_own_page(path)


def _is_own_page(path: Path) -> bool:
    with path.open("rb") as file:
        return b"<title>softshare" in file.read(1000)


def require_own_page(path: Path) -> None:
    """Raise unless a page may be written to the path: nothing is there, or a page of a report."""
    if require_plain(path) is None:
        return
    try:
        is_own = _is_own_page(path)
    except OSError as error:
        raise cannot_read(path, error) from error
    if not is_own:
        raise ConfigError(
            f"cannot write {path}: softshare has not written the page that is there. Move it away, or give another "
            "--out"
        )


def _is_signed(path: Path) -> bool:
    """Whether a file begins as softshare writes it: other programs write a history.csv too. A report has a page."""
    if path.name not in FILES:
        return path.name != REPORT or any(kind_of(path / page) is not None for page in (PAGE, DRAW))
    with path.open("rb") as file:
        opening = file.read(16)
    return opening[8:9] == b"{" if path.suffix == ".safetensors" else opening.startswith(_OPENINGS[path.name])


def write_pair(folder: Path, file: bytes, result: bytes) -> None:
    """Write `model.sws` and `result.json` of a kept result into a folder. A file is never beside another's result."""
    with output_folder(folder, overwrite=True) as unfinished:
        write_atomic(unfinished / MODEL, file)
        write_atomic(unfinished / RESULT, result)
