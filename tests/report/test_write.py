"""Where a report is written: nothing of others is followed or deleted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli_runs import finished_run
from softshare.errors import ConfigError, FormatError
from softshare.report.write import make_report_folder, write_report


def test_a_link_in_the_place_of_a_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"link: expected a folder there or nothing, found a symbolic link"):
        make_report_folder(tmp_path / "link")
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "figures").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match="found a symbolic link"):
        make_report_folder(tmp_path / "report")
    assert os.listdir(tmp_path / "mine") == []


@pytest.mark.parametrize("name", ["index.html", "draw.html"])
def test_a_page_of_others_is_refused_and_stays(name: str, tmp_path: Path) -> None:
    """`softshare report --out FOLDER` replaced a page that was there, or deleted it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / name).write_text("<!doctype html><title>Mine</title>")
    with pytest.raises(ConfigError, match=rf"{name}: softshare has not written the page that is there"):
        make_report_folder(tmp_path / "site")
    assert os.listdir(tmp_path / "site") == [name]
    (tmp_path / "site" / name).write_text("<!doctype html><title>softshare: net</title>")
    make_report_folder(tmp_path / "site")


@pytest.mark.slow
def test_pictures_of_others_stay_and_a_report_that_fails_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished_run(tmp_path)
    report = write_report(run, run / "report")
    page, pictures = report.page, report.pictures
    mine, stale = (pictures[0].with_name(name) for name in ("film-final.svg", "film-99.svg"))
    for file in (mine, stale):
        file.write_text("a picture")
    before = {p: p.read_bytes() for p in (page, *pictures, stale)}

    def fail(*_: object) -> str:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("softshare.report.write.render_page", fail)
        with pytest.raises(FormatError, match="cannot be shown"):
            write_report(run, run / "report")
    assert {p: p.read_bytes() for p in before} == before
    write_report(run, run / "report")
    assert mine.exists()
    assert not stale.exists()
