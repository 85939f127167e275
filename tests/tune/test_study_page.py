"""The report of a study, from the folder that is kept in the docs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from matplotlib.image import imread

from browser import CHROMIUM, NO_BROWSER, browser
from paths import ROOT
from softshare.cli import main
from softshare.errors import FormatError
from softshare.task import Metric
from softshare.tune.plots import draw_front, front_data, no_others
from softshare.tune.study_page import study_title, write_study_report
from softshare.tune.trials import from_csv, to_csv, with_front

KEPT = ROOT / "docs" / "tuning"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    shutil.copy(KEPT / "summary.csv", folder)
    shutil.copytree(KEPT / "front", folder / "front")
    assert main(["report", str(folder)]) == 0
    return folder


def test_a_table_is_read_back() -> None:
    data = (KEPT / "summary.csv").read_bytes()
    rows = from_csv(data, "summary.csv")
    assert to_csv(rows) == data
    assert with_front(rows, Metric()) == rows
    assert (rows[0].trial, rows[0].file_bytes, rows[0].on_front, rows[1].test_error) == (0, 4847, True, None)
    assert rows[0].settings["zeroing"] == 0.3


@pytest.mark.parametrize("data", [b"a,b\n1,2\n", b"\xff\xfe", (KEPT / "summary.csv").read_bytes()[:-40]])
def test_another_table_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="there: expected a line for each trial"):
        from_csv(data, "there")


def test_a_study_has_a_page_and_its_two_figures(study: Path) -> None:
    assert study_title(study) == "lenet-300-100"
    pictures = {path.name for path in (study / "report" / "figures").iterdir()}
    assert pictures == {"front.png", "front.svg", "settings.png", "settings.svg"}


def test_the_page_says_which_trial_to_take(study: Path) -> None:
    page = (study / "report" / "index.html").read_text()
    assert "Take trial 36: 8,611 bytes, 124 times smaller." in page
    settings = study / "front" / "trial-0036" / "result.json"
    assert f"<code>softshare compress lenet-300-100 --config {settings}</code>" in page
    assert page.count('<tr class="taken">') == 1
    cells = re.findall(r'<tr(?: class="taken")?><td data-value="(\d+)">', page)
    taken = page.partition('<tr class="taken">')[2].partition("</tr>")[0]
    assert re.findall(r">([^<]+)</td>", taken)[:6] == ["36", "take this", "1.52", "1.66", "8,611", "123.8"]
    assert page.count("stopped early") == sum(
        ",pruned," in line for line in (KEPT / "summary.csv").read_text().splitlines()
    )
    assert cells[:12] == ["21", "13", "18", "45", "0", "40", "34", "35", "43", "36", "7", "47"]  # the front first


def test_the_picture_in_the_docs_is_drawn_from_the_table_beside_it(study: Path) -> None:
    for name in ("front.png", "settings.png"):
        kept, drawn = (imread(folder / name) for folder in (KEPT, study / "report" / "figures"))
        assert kept.shape == drawn.shape
        assert abs(kept - drawn).mean() < 0.01  # fonts may differ a little


def test_without_published_figures_there_is_one_panel_and_nothing_said_of_others(tmp_path: Path, study: Path) -> None:
    write_study_report(KEPT, tmp_path)
    alone, beside = ((folder / "index.html").read_text() for folder in (tmp_path, study / "report"))
    for text in ("published figures", "in the paper&#39;s format", "lower one"):
        assert text not in alone
    assert "Each has the published figures" in beside
    labels = ("ratio in the paper's format; others", "ratio; others")
    assert [sum(label in page for label in labels) for page in (alone, beside)] == [0, 2]
    rows = from_csv((KEPT / "summary.csv").read_bytes(), "summary.csv")
    figure = draw_front(front_data("net", rows[:4], no_others(""), Metric()))
    figure.draw_without_rendering()
    *_, bar = figure.axes
    shown = [label.get_text() for label in bar.get_yticklabels()]
    assert shown
    assert all(text.isdecimal() for text in shown)


def test_a_study_without_a_trial_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.csv").write_bytes((KEPT / "summary.csv").read_bytes().partition(b"\n")[0])
    assert main(["report", str(tmp_path)]) == 2
    assert "no trial has come to its end yet" in capsys.readouterr().err


@pytest.mark.slow
def test_names_from_its_files_are_text(tmp_path: Path) -> None:
    lines = (KEPT / "summary.csv").read_text().splitlines()
    (tmp_path / "summary.csv").write_text("\n".join([f"{lines[0]},<i>odd", *(f"{line},1" for line in lines[1:])]))
    result = json.loads(next((KEPT / "front").glob("*/result.json")).read_text())
    (tmp_path / "front" / "trial-0000").mkdir(parents=True)
    (tmp_path / "front" / "trial-0000" / "result.json").write_text(json.dumps({**result, "experiment": "<i>net"}))
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<i>" not in page
    for name in ("&lt;i&gt;odd</button>", "&lt;i&gt;net</title>", "&lt;i&gt;net</h1>", "&lt;i&gt;net</text>"):
        assert name in page


def test_without_scipy_it_says_what_to_install(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    assert main(["report", str(study), "--out", str(tmp_path / "report")]) == 2
    assert "scipy: pip install 'softshare[tune]'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "report").exists()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_the_page_opens_and_its_table_sorts(study: Path, width: int, scheme: str) -> None:
    with browser() as tab:
        tab.open((study / "report" / "index.html").as_uri(), width=width, scheme=scheme)
        assert tab.run("[...document.querySelectorAll('section')].map(e => e.id)") == ["front", "settings", "trials"]
        assert tab.run("document.documentElement.scrollWidth") <= width
        tab.click("#trials th:nth-child(5) button")
        cells = "[...document.querySelectorAll('#trials td:nth-child(5)')].map(e => +e.dataset.value).filter(n => n)"
        sizes = tab.run(cells)
        assert sizes == sorted(sizes, reverse=True)
        assert len(sizes) > 10
        assert tab.problems == []


ODD = "<img src=x onerror=alert(1)>$\\frac{$"


def test_the_columns_of_a_table_are_shown_as_they_are(study: Path, tmp_path: Path) -> None:
    text = (study / "summary.csv").read_text()
    (tmp_path / "summary.csv").write_text(text.replace(",zeroing", f",{ODD}", 1))
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;$\\frac{$</button>" in page


@pytest.mark.parametrize(
    ("column", "value"),
    [("ratio", "0"), ("ratio", "nan"), ("ratio", "-1"), ("trial", "9" * 5000), ("tau", "-1"), ("file_bytes", "1e5")],
)
def test_figures_that_no_study_has_end_in_one_message(
    study: Path, tmp_path: Path, column: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    head, first, *others = (study / "summary.csv").read_text().splitlines()
    cells = first.split(",")
    cells[head.split(",").index(column)] = value
    (tmp_path / "summary.csv").write_text("\n".join([head, ",".join(cells), *others]) + "\n")
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
