"""The folder of a study: only what a study has written is removed, and a drawing that fails costs a message."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from softshare.errors import ConfigError
from softshare.task import Metric, Task
from softshare.tune.plots import no_others
from softshare.tune.study_folder import prepare_folders, with_tests, write_summary
from softshare.tune.trials import Row, with_front

ROWS = [Row(0, "complete", "", 2.0, 2.0, 100, 10.0, 9.0, 1.0, {"tau": 0.01})]


def test_only_trials_leave_the_front(tmp_path: Path) -> None:
    prepare_folders(tmp_path)
    for name in ("trial-0003/model.sws", "trial-0004/notes.txt", "mine/notes.txt"):
        (tmp_path / "front" / name).parent.mkdir()
        (tmp_path / "front" / name).write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.sws").write_text("x")
    (tmp_path / "front" / "trial-0005").symlink_to(tmp_path / "elsewhere")
    with_tests([], tmp_path, cast(Task, None))
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert left == ["elsewhere/model.sws", "front/mine/notes.txt", "front/trial-0004/notes.txt"]
    assert (tmp_path / "front" / "trial-0005").is_symlink()


def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "front").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="found a symbolic link"):
        prepare_folders(tmp_path)


@pytest.mark.parametrize("name", ["summary.csv", "front.png", "settings.png"])
def test_what_no_study_has_written_is_refused_and_stays(name: str, tmp_path: Path) -> None:
    """A study in a folder with a summary.csv or a front.png of something else replaced it at its end."""
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"{name}: no study has written the file that is there"):
        prepare_folders(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_an_earlier_summary_may_be_replaced(tmp_path: Path) -> None:
    write_summary(with_front(ROWS, Metric()), tmp_path, "net", {}, no_others("net"), Metric())
    prepare_folders(tmp_path)


def test_a_drawing_that_fails_costs_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no")

    monkeypatch.setattr("softshare.tune.study_folder.draw_front", fail)
    said: list[str] = []
    write_summary(with_front(ROWS, Metric()), tmp_path, "net", {}, no_others("net"), Metric(), said.append)
    assert (tmp_path / "summary.csv").exists()
    assert said == [f"the figures of the study failed (ZeroDivisionError: no); all else is in {tmp_path}"]
