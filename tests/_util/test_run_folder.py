"""The folder of a run: whole at any time, written by one process, and without a trace of what others own."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kills import every_kill, full_disk
from softshare._util import run_folder, swap
from softshare._util.files import write_atomic
from softshare._util.run_folder import (
    FRAMES,
    HISTORY,
    LAST_GOOD,
    MODEL,
    PRETRAINED,
    RESULT,
    RETRAINED,
    finished_folder,
    output_folder,
    run_files,
    unfinished_folder,
)
from softshare.errors import ConfigError, DivergedError

FILES = [MODEL, RESULT, HISTORY, FRAMES, PRETRAINED, RETRAINED, LAST_GOOD]
PAGE = b"<!doctype html><title>softshare: "
OPENINGS = {MODEL: b"\x89SWS", RESULT: b'{\n  "schema": 1', HISTORY: b"epoch,seconds,tau\n", FRAMES: b"PK\x03\x04"}
OPENINGS |= {"index.html": PAGE, "draw.html": PAGE}


def written(name: str, tag: str = "earlier") -> bytes:
    """A file that begins as softshare writes it."""
    return OPENINGS.get(name, bytes(8) + b"{") + tag.encode()


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file below the folder, by its path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def fill(folder: Path, *names: str, tag: str = "earlier") -> dict[str, bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(written(name, tag))
    return {name: written(name, tag) for name in names}


def fail(folder: Path, name: str, content: bytes, error: BaseException) -> None:
    """A run that ends after it has written one file."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    raise error


def make_run(path: Path, tag: str, *names: str) -> dict[str, bytes]:
    """A whole run by `output_folder`, over what is there."""
    with output_folder(path, overwrite=True) as folder:
        for name in names:
            write_atomic(folder / name, written(name, tag))
    return {name: written(name, tag) for name in names}


def test_the_names_are_those_of_the_documentation() -> None:
    assert FILES == [
        "model.sws",
        "result.json",
        "history.csv",
        "frames.npz",
        "pretrained.safetensors",
        "retrained.safetensors",
        "last_good.safetensors",
    ]


def test_a_run_is_written_beside_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with output_folder(path, overwrite=False) as folder:
        assert folder == tmp_path / "runs" / ".a.unfinished" == unfinished_folder(path)
        assert contents(folder) == {}  # nothing remains of the check for writing
        assert not path.exists()
        (folder / MODEL).write_bytes(b"x")
    assert contents(tmp_path) == {"runs/a/model.sws": b"x"}
    assert os.listdir(tmp_path / "runs") == ["a"]


def test_an_earlier_run_is_refused_and_not_touched(tmp_path: Path) -> None:
    for name in FILES:
        path = tmp_path / f"with {name}"
        before = fill(path, name)
        message = rf"{path} holds an earlier run \({name}\). Give --overwrite"
        with pytest.raises(ConfigError, match=message), output_folder(path, overwrite=False):
            pytest.fail("the folder was given out")
        assert contents(path) == before


def test_a_run_over_files_that_were_named(tmp_path: Path) -> None:
    """A run may follow `softshare pretrain`, but not a run that was finished in the meantime."""
    fill(tmp_path / "a", PRETRAINED)
    with output_folder(tmp_path / "a", overwrite=False, over=[PRETRAINED]) as folder:
        fill(folder, MODEL)
    assert sorted(contents(tmp_path)) == ["a/model.sws"]
    fill(tmp_path / "a", PRETRAINED)
    message = "holds an earlier run"
    with pytest.raises(ConfigError, match=message), output_folder(tmp_path / "a", False, over=[PRETRAINED]):
        pytest.fail("the folder was given out")


def test_overwrite_replaces_the_whole_run_at_the_end(tmp_path: Path) -> None:
    before = fill(tmp_path / "a", *FILES)
    with output_folder(tmp_path / "a", overwrite=True) as folder:
        (folder / RESULT).write_bytes(b"new")
        assert contents(tmp_path / "a") == before  # until the new run is done
    assert contents(tmp_path) == {"a/result.json": b"new"}
    assert os.listdir(tmp_path) == ["a"]


def test_permissions_are_kept(tmp_path: Path) -> None:
    fill(tmp_path / "a", MODEL, RESULT)
    (tmp_path / "a" / MODEL).chmod(0o640)
    (tmp_path / "a").chmod(0o750)
    make_run(tmp_path / "a", "new", MODEL, RESULT)
    assert stat.S_IMODE((tmp_path / "a" / MODEL).stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o750


def test_a_read_only_run_can_be_replaced(tmp_path: Path) -> None:
    fill(tmp_path / "a", MODEL)
    (tmp_path / "a").chmod(0o555)
    new = make_run(tmp_path / "a", "new", MODEL)
    assert contents(tmp_path / "a") == new
    assert os.listdir(tmp_path) == ["a"]
    (tmp_path / "a").chmod(0o755)


def test_an_empty_folder_becomes_the_run(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    new = make_run(tmp_path / "a", "new", MODEL)
    assert contents(tmp_path / "a") == new


# Errors


def test_an_error_leaves_the_earlier_run(tmp_path: Path) -> None:
    before = fill(tmp_path / "a", *FILES)
    with pytest.raises(ConfigError), output_folder(tmp_path / "a", overwrite=True) as folder:
        fail(folder, PRETRAINED, b"new", ConfigError("Task.train gave no batch"))
    assert contents(tmp_path / "a") == before
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("name", [LAST_GOOD, RETRAINED, MODEL])
def test_a_run_that_fails_does_not_replace_a_finished_one(name: str, tmp_path: Path) -> None:
    """What it has trained is kept beside it, and the error says where."""
    before = fill(tmp_path / "a", *FILES)
    with pytest.raises(DivergedError) as error, output_folder(tmp_path / "a", overwrite=True) as folder:
        fail(folder, name, b"weights", DivergedError("the loss became nan", {}))
    assert contents(tmp_path / "a") == before
    assert contents(folder) == {name: b"weights"}
    assert error.value.__notes__ == [
        f"The earlier run in {tmp_path / 'a'} is unchanged. What this run has trained is in {folder}"
    ]


def test_a_run_that_fails_says_where_its_network_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error, output_folder(tmp_path / "a", overwrite=False) as folder:
        fail(folder, MODEL, b"weights", ConfigError("Task.test returned nan"))
    assert contents(tmp_path / "a") == {MODEL: b"weights"}
    assert error.value.__notes__ == [f"What this run has trained is in {tmp_path / 'a'}"]


def test_what_was_trained_is_not_lost_to_the_next_run(tmp_path: Path) -> None:
    unfinished = tmp_path / ".a.unfinished"
    fill(unfinished, RETRAINED, HISTORY)
    with (
        pytest.raises(ConfigError, match=rf"{unfinished} holds what a run trained .*{RETRAINED}.*--overwrite"),
        output_folder(tmp_path / "a", overwrite=False),
    ):
        pytest.fail("the folder was given out")
    assert sorted(contents(unfinished)) == [HISTORY, RETRAINED]
    with output_folder(tmp_path / "a", overwrite=True) as folder:
        assert contents(folder) == {}


def test_an_error_after_the_training_does_not_cost_the_training(tmp_path: Path) -> None:
    for error in (ConfigError("Task.train gave no batch"), ZeroDivisionError()):
        path = tmp_path / type(error).__name__
        with pytest.raises(type(error)), output_folder(path, overwrite=True) as folder:
            fail(folder, RETRAINED, b"weights", error)
        assert contents(path) == {RETRAINED: b"weights"}
        assert not folder.exists()


def test_a_network_that_was_pre_trained_for_the_run_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), output_folder(tmp_path / "a", False, trained=[PRETRAINED]) as folder:
        fail(folder, PRETRAINED, b"weights", ConfigError("no"))
    assert contents(tmp_path) == {f"a/{PRETRAINED}": b"weights"}


def test_a_stop_leaves_the_unfinished_files_and_the_next_run_removes_them(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), output_folder(tmp_path / "a", overwrite=False) as folder:
        fail(folder, HISTORY, b"two epochs", KeyboardInterrupt())
    assert contents(tmp_path) == {".a.unfinished/history.csv": b"two epochs"}
    (folder / ".0123456789abcdef.tmp").write_bytes(b"half")
    new = make_run(tmp_path / "a", "new", MODEL)
    assert contents(tmp_path / "a") == new
    assert os.listdir(tmp_path) == ["a"]


def test_an_error_leaves_no_empty_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), output_folder(tmp_path / "runs" / "a", overwrite=False):
        raise ConfigError("no")
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_a_folder_that_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError), output_folder(tmp_path / "a", overwrite=False):
        raise ConfigError("no")
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for below in ("", "a/b"):
        path = tmp_path / "file" / below
        with pytest.raises(ConfigError, match=f"cannot write .*{tmp_path}/file"), output_folder(path, overwrite=True):
            pytest.fail("the folder was given out")
    assert contents(tmp_path) == {"file": b"not a folder"}


def test_a_full_disk_is_found_out_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fill(tmp_path / "old", RESULT)
    monkeypatch.setattr(os, "fsync", full)
    for name in ("new", "old"):
        with pytest.raises(ConfigError, match="No space left") as error, output_folder(tmp_path / name, overwrite=True):
            pytest.fail("the folder was given out")
        assert str(unfinished_folder(tmp_path / name)) in str(error.value)
    assert contents(tmp_path) == {"old/result.json": written(RESULT)}
    assert os.listdir(tmp_path) == ["old"]


# Reports


def test_a_report_of_an_unfinished_run_goes_with_it(tmp_path: Path) -> None:
    """The report of a stopped run, and one that is written while the next run is under way."""
    fill(tmp_path / ".a.unfinished" / "report" / "figures", "film-1.svg")
    with output_folder(tmp_path / "a", overwrite=False) as folder:
        assert contents(folder) == {}
        fill(folder / "report" / "figures", "film-1.svg")
        fill(folder / "report", "index.html")
        (folder / MODEL).write_bytes(b"x")
    assert contents(tmp_path) == {"a/model.sws": b"x"}
    with pytest.raises(ConfigError), output_folder(tmp_path / "a", overwrite=True) as folder:
        fail(folder, "report/index.html", PAGE, ConfigError("no"))
    assert not folder.exists()


def test_overwrite_removes_the_earlier_report(tmp_path: Path) -> None:
    fill(tmp_path / "a", *FILES)
    fill(tmp_path / "a" / "report" / "figures", "film-1.svg", "before_after-2.png")
    fill(tmp_path / "a" / "report", "index.html")
    new = make_run(tmp_path / "a", "new", RESULT)
    assert contents(tmp_path / "a") == new
    fill(tmp_path / "a" / "report", "draw.html")  # as the demo leaves it
    new = make_run(tmp_path / "a", "newer", RESULT)
    assert contents(tmp_path / "a") == new
    assert os.listdir(tmp_path) == ["a"]


# What others own


def place_link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def place_pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def place_socket(path: Path, _: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # the whole path is too long for a socket
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


def place_folder(path: Path, _: Path) -> None:
    fill(path, "mine.txt")


def place_file(path: Path, _: Path) -> None:
    path.write_text("mine")


def everything(folder: Path) -> dict[Path, object]:
    """The kind of all that is below a folder, links not followed, and what the files hold."""
    found = {p: p.lstat().st_mode for p in folder.rglob("*")}
    return {p: p.read_bytes() if stat.S_ISREG(mode) else mode for p, mode in found.items()}


PLACES = [
    *("a", ".a.unfinished", ".a.replaced", ".a.lock"),
    *(f"a/{name}" for name in (MODEL, RESULT, HISTORY, FRAMES, PRETRAINED, "notes.txt", "report", "report/figures")),
    *("a/report/index.html", "a/report/draw.html"),
    *(f".a.unfinished/{name}" for name in (HISTORY, "notes.txt", "report")),
]


MISPLACED = [
    (place, where)
    for where in PLACES
    for place in (place_link, place_pipe, place_socket, place_folder, place_file)
    if (place, where)
    not in (
        (place_folder, ".a.replaced"),  # what is in there moves to the run: see the next test
        (place_file, f".a.unfinished/{HISTORY}"),  # it may have any content: it was not finished
    )
]


@pytest.mark.parametrize(("place", "where"), MISPLACED)
def test_what_softshare_has_not_written_is_refused_and_stays(
    place: Callable[[Path, Path], None], where: str, tmp_path: Path
) -> None:
    fill(tmp_path / "elsewhere", *FILES, "notes.txt")
    path = tmp_path / where
    if where != "a":
        fill(tmp_path / "a", *(name for name in FILES if name != path.name))
    if "a/report/" in where:
        fill(path.parent, *({"index.html", "draw.html"} - {path.name}))
    path.parent.mkdir(exist_ok=True)
    place(path, tmp_path / "elsewhere")
    before = everything(tmp_path)
    with pytest.raises(ConfigError) as error, output_folder(tmp_path / "a", overwrite=True):
        pytest.fail("the folder was given out")
    assert "\n" not in str(error.value)
    assert ("report" if "report" in where else path.name) in str(error.value)
    assert everything(tmp_path) == before


def test_files_of_others_in_a_run_that_was_replaced_are_not_lost(tmp_path: Path) -> None:
    fill(tmp_path / "a", MODEL)
    fill(tmp_path / ".a.replaced", RESULT, "notes.txt")
    with pytest.raises(ConfigError, match=r"holds notes\.txt"), output_folder(tmp_path / "a", overwrite=True):
        pytest.fail("the folder was given out")
    assert sorted(contents(tmp_path)) == ["a/model.sws", "a/notes.txt"]


def test_a_link_to_the_temporary_folder_does_not_empty_its_target(tmp_path: Path) -> None:
    mine = fill(tmp_path / "mine", *FILES, "notes.txt")
    (tmp_path / ".a.unfinished").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match="found a symbolic link"), output_folder(tmp_path / "a", overwrite=True):
        pytest.fail("the folder was given out")
    assert contents(tmp_path / "mine") == mine


def test_a_link_above_the_folder_is_fine(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    new = make_run(tmp_path / "runs" / "a", "new", MODEL)
    assert contents(tmp_path / "disk" / "a") == new


def test_files_that_appear_during_the_run_are_carried_over(tmp_path: Path) -> None:
    """A log of TensorBoard, or notes. They are in the way of nobody, and the run is done."""
    fill(tmp_path / "a", *FILES)
    with output_folder(tmp_path / "a", overwrite=True) as folder:
        fill(folder, MODEL, tag="new")
        fill(tmp_path / "a", "notes.txt")
        fill(tmp_path / "a" / "logs", "events")
    assert contents(tmp_path / "a") == {
        MODEL: written(MODEL, "new"),
        "notes.txt": written("notes.txt"),
        "logs/events": written("events"),
    }
    assert os.listdir(tmp_path) == ["a"]


def test_a_folder_that_cannot_be_renamed_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "below")
    for path in (Path(), Path(".."), tmp_path / "a", Path("../below")):
        with pytest.raises(ConfigError, match="Give a folder below it"), output_folder(path, overwrite=True):
            pytest.fail("the folder was given out")
    with pytest.raises(ConfigError, match="is the root of a file system"), output_folder(Path("/"), overwrite=True):
        pytest.fail("the folder was given out")


# A kill, and a full disk, at any time


@pytest.fixture(params=["exchange", "pair"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Linux, and as on a system that cannot exchange two folders in one step."""
    if request.param == "pair":
        monkeypatch.setattr(swap, "exchange", lambda *_: False)


def next_run(path: Path) -> None:
    """A run that finds something wrong at once."""
    with pytest.raises(ConfigError, match="nothing to do"), output_folder(path, overwrite=True):
        raise ConfigError("nothing to do")


@pytest.mark.usefixtures("_way")
def test_a_kill_at_any_call_leaves_the_old_run_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    can_exchange = swap.exchange(tmp_path, tmp_path)
    path, names = tmp_path / "runs" / "a", (MODEL, RESULT)
    new = {name: written(name, "new") for name in names}
    seen = set()
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a kill is no power cut

    def begin() -> dict[str, bytes]:
        fill(path / "report", "index.html")
        return fill(path, *names, LAST_GOOD)

    old = begin()
    for _ in every_kill(lambda: void(make_run(path, "new", *names))):
        assert run_in(path) in (old, new) or not (can_exchange or path.exists())
        next_run(path)
        assert os.listdir(tmp_path / "runs") == ["a"]  # nothing is left of the killed one
        assert run_in(path) in (old, new)
        seen.add(run_in(path) == new)
        begin()
    assert seen == {False, True}
    assert contents(path) == new


def test_a_kill_at_any_call_of_a_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, names = tmp_path / "runs" / "a", (MODEL, RESULT)
    new = {name: written(name, "new") for name in names}
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for _ in every_kill(lambda: void(make_run(path, "new", *names))):
        assert contents(path) in ({}, new)
        next_run(path)
        assert contents(tmp_path) in ({}, {f"runs/a/{name}": data for name, data in new.items()})
        for name in contents(tmp_path):
            (tmp_path / name).unlink()
    assert contents(path) == new


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("lasts", [False, True])
def test_a_disk_that_fills_at_any_call(lasts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, names = tmp_path / "a", (MODEL, RESULT)
    old, new = fill(path, *names, LAST_GOOD), {name: written(name, "new") for name in names}
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for k in itertools.count(1):
        with full_disk(k, lasts) as failed, contextlib.suppress(ConfigError):
            make_run(path, "new", *names)
        assert contents(path) in (old, new)
        if not failed:
            break
        next_run(path)
        assert os.listdir(tmp_path) == ["a"]
        fill(path, *old)
    assert contents(path) == new
    assert k > 20


def run_in(path: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(path).items() if "report" not in name}


def void(_: object) -> None: ...


def test_a_finished_run_that_did_not_get_to_its_place_is_found(tmp_path: Path) -> None:
    new = fill(tmp_path / ".a.unfinished", MODEL, RESULT)
    with pytest.raises(ConfigError, match="holds an earlier run"), output_folder(tmp_path / "a", overwrite=False):
        pytest.fail("the folder was given out")
    assert contents(tmp_path / "a") == new


def test_runs_in_hidden_folders_are_not_found(tmp_path: Path) -> None:
    for name in ("a", ".a.unfinished", ".a.replaced"):
        fill(tmp_path / name, RESULT)
    assert run_files(tmp_path, RESULT) == [tmp_path / "a" / RESULT]
    assert run_files(tmp_path / ".a.unfinished", RESULT) == [tmp_path / ".a.unfinished" / RESULT]


def test_a_place_that_is_lost_at_the_end_does_not_cost_the_run(tmp_path: Path) -> None:
    def lose_it() -> None:
        with output_folder(tmp_path / "a", overwrite=True) as folder:
            fill(folder, MODEL)
            (tmp_path / "a").write_text("a file of somebody else")

    with pytest.raises(ConfigError, match=r"cannot put the run into .*It is whole in"):
        lose_it()
    assert contents(tmp_path) == {"a": b"a file of somebody else", f".a.unfinished/{MODEL}": written(MODEL)}


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    with output_folder(tmp_path / "a", overwrite=False) as folder:
        fill(folder, MODEL)
        message = rf"{tmp_path / 'a'} is being written by another run \(process {os.getpid()} on .*\). Wait"
        with pytest.raises(ConfigError, match=message), output_folder(tmp_path / "a", overwrite=True):
            pytest.fail("the folder was given out")
        with output_folder(tmp_path / "b", overwrite=True):
            pass
        assert sorted(contents(folder)) == [MODEL]
    assert sorted(contents(tmp_path)) == [f"a/{MODEL}"]


def test_a_pair_is_whole(tmp_path: Path) -> None:
    run_folder.write_pair(tmp_path / "a", written(MODEL), written(RESULT))
    run_folder.write_pair(tmp_path / "a", written(MODEL, "new"), written(RESULT, "new"))
    assert contents(tmp_path / "a") == {name: written(name, "new") for name in (MODEL, RESULT)}


def test_the_folder_of_a_finished_run_is_known_from_the_unfinished_one() -> None:
    for path in (Path("runs/a"), Path("a.b"), Path("runs/.a.unfinished-not")):
        assert finished_folder(unfinished_folder(path)) == path
        assert finished_folder(path) == path
