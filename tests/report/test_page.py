"""The report as it is written, and the page in a real browser."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from browser import CHROMIUM, NO_BROWSER, Browser, browser
from report_runs import compress
from softshare.cli import main
from softshare.codec import inspect
from softshare.errors import NotAvailableError
from softshare.report.figures.catalogue import FIGURES
from softshare.report.headline import Lead
from softshare.report.page import Figure, Page, render, render_page
from softshare.report.run import Run
from softshare.report.style import GROUND, VARIABLES, require_matplotlib
from softshare.report.table import Table
from softshare.target.limits import MaxBytes, MaxError, MaxErrorIncrease, Outcome, Target, WithinNoise
from softshare.task import Metric

PICTURES = {plot.name for plot in FIGURES}
ODD = """</script></title></pre><i class=odd onclick="x()">'&amp;{{ 7 * 7 }}"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with its report."""
    folder = compress(tmp_path_factory.mktemp("report"), "--units", 1e-3)
    assert main(["report", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(NO_BROWSER)
    with browser() as found:
        yield found


@pytest.fixture
def page(written: Path, tab: Browser) -> Browser:
    tab.problems.clear()
    tab.requests.clear()
    tab.open((written / "report" / "index.html").as_uri())
    return tab


# The files


@pytest.mark.slow
def test_the_report_is_a_page_and_every_figure_twice(written: Path) -> None:
    pictures = sorted((written / "report" / "figures").iterdir())
    for kind, beginning in ((".svg", b"<?xml"), (".png", b"\x89PNG")):
        own = [path for path in pictures if path.suffix == kind]
        assert {path.stem.partition("-")[0] for path in own} == PICTURES
        assert all(path.read_bytes().startswith(beginning) for path in own)
    assert len({path.stem for path in pictures}) * 2 == len(pictures)


@pytest.mark.slow
def test_it_is_the_same_again_and_pictures_of_an_earlier_report_do_not_stay(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "weights-9.svg").write_text("of another run")
    (tmp_path / "figures" / "notes.txt").write_text("mine")
    assert main(["report", str(written), "--out", str(tmp_path)]) == 0
    pictures = {path.name for path in (written / "report" / "figures").iterdir()}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == pictures | {"notes.txt"}
    said = " ".join(capsys.readouterr().out.split())
    assert f"index.html written, and {len(pictures)} pictures beside it." in said
    pages = [(folder / "index.html").read_bytes() for folder in (written / "report", tmp_path)]
    assert pages[0] == pages[1]  # nothing of the hour in it


def test_a_picture_is_xml_and_says_what_is_under_the_pointer(written: Path) -> None:
    (n_bytes,) = [t.n_bytes for t in inspect(written / "model.sws").tensors if t.name == "conv.weight"]
    tree = ElementTree.parse(written / "report" / "figures" / "sizes-1.svg")
    titles = [e.text or "" for e in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith(f"conv.weight: {n_bytes:,} bytes") for title in titles)
    assert any(title.startswith("<b>head.weight: ") for title in titles)


def test_the_page_needs_nothing_from_elsewhere_and_has_no_colour_of_its_own(written: Path) -> None:
    page = (written / "report" / "index.html").read_text()
    addresses = set(re.findall(r"https?://[^\"' <)]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, not places
    figures = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert not [colour for colour in (GROUND, *VARIABLES) if colour in figures]
    assert "<b>head" not in page  # as text only
    assert "&lt;b&gt;head" in page


class Parsed(HTMLParser):
    """The elements of a page, with what their attributes and their texts say."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.says = list[str](), list[str]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.says += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.says.append(data)


def test_a_name_is_text_in_every_place() -> None:
    plain, odd = (
        Parsed(
            render(
                Page(
                    title=name,
                    lead=Lead("lost", name, (name,), 0.5),
                    cards={name: name},
                    facts={name: name},
                    command=(name, name),
                    figures=[Figure(name, name, name, []), Figure(name, name, name, [], details=True)],
                    tables=[Table(name, name, [name], [[(name, name)]])],
                    films=[{"name": name, "epochs": [0], "weights": 3}],
                    settings=name,
                    version=name,
                    report=name,
                )
            )
        )
        for name in ("name", ODD)
    )
    assert odd.tags == plain.tags
    assert odd.says.count(ODD) == plain.says.count("name")
    (data,) = [text for text in odd.says if text.startswith('{"film":')]
    film = {"name": ODD, "epochs": [0], "weights": 3}
    assert json.loads(data) == {"film": [film], "version": ODD, "report": ODD, "counted": "epoch"}


def test_every_variable_has_a_colour_for_light_and_for_dark() -> None:
    css = (Path(require_matplotlib.__code__.co_filename).parent / "page.css").read_text()
    for name in VARIABLES.values():
        assert len(re.findall(rf"--{name}: #", css)) == 2, name


@pytest.mark.parametrize(
    ("target", "reached", "card"),
    [
        (None, 1.0, "<b>1.00 → 1.00%</b><span>validation error, noise 0.25%</span>"),
        (WithinNoise(), 1.5, "<b>1.00 → 1.50%</b><span>validation error, noise 0.25%</span>"),
        (MaxBytes(5000), 4321, "<b>met</b><span>target: at most 5,000 bytes; 4,321 bytes reached</span>"),
        (MaxError(2.5), 2.75, "<b>not met</b><span>target: at most 2.50% validation error; 2.75% reached</span>"),
        (MaxErrorIncrease(0.5), 1.5, "<b>met</b><span>target: at most 2.00% validation error; 1.50% reached</span>"),
    ],
)
def test_the_outcome_is_in_the_headline(written: Path, target: Target | None, reached: float, card: str) -> None:
    run = Run.load(written)
    assert run.result is not None
    none: dict[str, list[str]] = {plot.name: [] for plot in FIGURES}
    assert "<span>target" not in render_page(run, none).partition("</header>")[0]
    limits = {MaxBytes: 5000, MaxError: 2.5, MaxErrorIncrease: 2.0, WithinNoise: 1.25}
    after, n_bytes = (1.0, int(reached)) if isinstance(target, MaxBytes) else (reached, 4000)
    outcome = Outcome(target, Metric(), 1.0, after, 0.25, limits.get(type(target), math.inf), n_bytes)
    result = dataclasses.replace(run.result, outcome=json.loads(json.dumps(outcome.to_dict())))
    header = render_page(dataclasses.replace(run, result=result), none).partition("</header>")[0]
    assert card in header
    assert header.count("<span>target") == (target is not None and not isinstance(target, WithinNoise))
    old = dataclasses.replace(run.result, outcome={"target": {"max_bytes": 9}, "limit": 9, "reached": 8, "met": True})
    header = render_page(dataclasses.replace(run, result=old), none).partition("</header>")[0]
    assert "<b>met</b><span>target: at most 9 bytes; 8 bytes reached</span>" in header


def test_a_folder_that_is_no_run_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "expected the folder of a run" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.endswith("/none, which does not exist\n")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_it_says_what_to_install(
    written: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotAvailableError, match=r"softshare\[report\]"):
        require_matplotlib()
    assert main(["report", str(written), "--out", str(written / "none")]) == 2
    assert "softshare[report]" in capsys.readouterr().err
    assert not (written / "none").exists()


# In the browser


def column(page: Browser, n: int) -> list[str]:
    values: list[str] = page.run(
        f"[...document.querySelectorAll('#tensors td:nth-child({n})')].map(e => e.textContent)"
    )
    return values


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1400, "dark"), (390, "light"), (360, "dark")])
def test_it_opens_without_an_error_and_fits_the_screen(written: Path, tab: Browser, width: int, scheme: str) -> None:
    tab.problems.clear()
    tab.requests.clear()
    address = (written / "report" / "index.html").as_uri()
    tab.open(address, width=width, scheme=scheme)
    shown = tab.run("[...document.querySelectorAll('section')].map(e => e.id)")
    assert set(shown) == PICTURES | {"shrunk", "tensors", "details", "settings"}
    links = tab.run("[...document.querySelectorAll('nav a')].map(e => e.getAttribute('href'))")
    special = {plot.name for plot in FIGURES if plot.details}
    assert {link[1:] for link in links} == set(shown) - special - {"settings"}
    assert not tab.run("document.querySelector('#account svg').checkVisibility()")
    tab.click("nav a[href='#details']")
    assert tab.run("document.querySelector('#account svg').checkVisibility()")
    assert tab.run("document.documentElement.scrollWidth") <= width  # no scrolling sideways
    tab.run("(cards => cards.append(cards.children[2].cloneNode(true)))(document.querySelector('.cards'))")  # a seventh
    lines = tab.run("[...document.querySelectorAll('.cards b')].map(e => e.clientHeight)")
    assert len(lines) == 7
    assert width < 600 or len(set(lines)) == 1  # no value is broken in two
    small = tab.run("[...document.querySelectorAll('figure svg')].filter(e => e.clientWidth < 250).length")
    assert small == 0
    sizes = tab.run(
        "[...document.querySelectorAll('figure svg')].flatMap(svg => [...svg.querySelectorAll('text')].map("
        "text => parseFloat(getComputedStyle(text).fontSize) * svg.clientWidth / svg.viewBox.baseVal.width))"
    )
    assert min(sizes) >= 7.5  # pixels
    ground, ink = (tab.run(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    luminance = [sum(map(int, re.findall(r"\d+", value)[:3])) for value in (ground, ink)]
    assert (luminance[0] > luminance[1]) == (scheme == "light")
    assert abs(luminance[0] - luminance[1]) > 500
    title = "document.querySelector('figure svg text')"
    assert tab.run(f"getComputedStyle({title}).fill") == ink
    assert tab.problems == []
    assert {request for request in tab.requests if not request.startswith("data:")} == {address}


@pytest.mark.browser
def test_long_names_fit_a_phone_and_leave_the_numbers_in_reach(written: Path, tab: Browser) -> None:
    tab.open((written / "report" / "index.html").as_uri(), width=390)
    name = "encoder_with_a_rather_long_name.layers.{0-11}.attention_projection.weight x12"
    tab.run(
        f"for (const e of [...part.options, ...document.querySelectorAll('td:first-child')]) e.textContent = '{name}'"
    )
    assert tab.run("Math.ceil(part.getBoundingClientRect().right)") <= 390
    assert tab.run("document.documentElement.scrollWidth") <= 390
    assert tab.run("document.querySelector('#tensors td').clientWidth") <= 200


@pytest.mark.browser
def test_the_table_sorts(page: Browser) -> None:
    names = column(page, 1)
    sizes = [int(text.replace(",", "")) for text in column(page, 8)]
    assert sizes != sorted(sizes, reverse=True)
    page.click("#tensors th:nth-child(8) button")
    assert [int(text.replace(",", "")) for text in column(page, 8)] == sorted(sizes, reverse=True)
    assert page.run("document.querySelector('#tensors th:nth-child(8)').getAttribute('aria-sort')") == "descending"
    page.click("#tensors th:nth-child(8) button")
    assert [int(text.replace(",", "")) for text in column(page, 8)] == sorted(sizes)
    page.click("#tensors th:nth-child(5) button")
    densities = column(page, 5)
    known = [float(text) for text in densities if text]
    assert known == sorted(known, reverse=True)
    assert densities[len(known) :] == [""] * (len(densities) - len(known))  # of what is not shared it is not known
    page.click("#tensors th:nth-child(1) button")
    page.click("#tensors th:nth-child(1) button")
    assert sorted(column(page, 1)) == sorted(names)
    assert column(page, 1)[-1] == "norm.weight"
    assert page.problems == []


def picture(page: Browser) -> str:
    value: str = page.run("document.getElementById('screen').toDataURL()")
    return value


@pytest.mark.browser
def test_the_slider_moves_the_frame(page: Browser) -> None:
    frames, texts = [picture(page)], [page.run("document.getElementById('now').textContent")]
    page.run("document.getElementById('epoch').focus()")
    for _ in range(4):
        page.press("ArrowLeft")
        frames.append(picture(page))
        texts.append(page.run("document.getElementById('now').textContent"))
    assert [text.partition(":")[0] for text in texts] == ["4", "3", "2", "1", "0"]
    assert page.run("document.getElementById('screen').dataset.frame") == "0"
    assert len(set(frames)) == 5
    page.press("End")
    assert picture(page) == frames[0]
    assert page.problems == []


@pytest.mark.browser
def test_the_slider_shows_the_mixture_that_is_chosen(page: Browser) -> None:
    names = page.run("[...document.getElementById('part').options].map(o => o.text)")
    assert names == ["conv", "hidden", "<b>head"]
    assert page.run("part.selectedIndex") == 1  # the largest
    said = page.run("document.getElementById('now').textContent")
    left = page.run("data.film[1].left")
    assert re.search(rf"\b{left:,}( of 1,040 weights are not zero$|, after simplifying$)", said), said
    first = picture(page)
    page.run("(e => { e.selectedIndex = 0; e.dispatchEvent(new Event('change')); })(part)")
    assert picture(page) != first
    assert page.problems == []


@pytest.mark.browser
def test_the_film_shows_the_file_and_on_request_the_latent_weights(page: Browser) -> None:
    label = "document.getElementById('screen').getAttribute('aria-label')"
    assert page.run(label).startswith("Weights of hidden, before against what the file holds, at epoch 4: hard phase")
    first = picture(page)
    page.run("(e => { e.selectedIndex = 1; e.dispatchEvent(new Event('change')); })(kind)")
    assert picture(page) != first
    assert page.run(label).startswith("Weights of hidden, before against latent weights")
    page.run("document.getElementById('epoch').focus()")
    page.press("Home")
    assert "0: soft phase" in page.run("document.getElementById('now').textContent")
    assert page.problems == []


@pytest.mark.browser
def test_everything_has_a_label_for_a_screen_reader(page: Browser) -> None:
    unlabelled = (
        "[...document.querySelectorAll('svg, canvas, nav, progress, [role=region]')]"
        ".filter(e => !e.closest('svg svg') && !e.getAttribute('aria-label')).length"
    )
    assert page.run(unlabelled) == 0
    assert page.run("[...document.querySelectorAll('select, input')].filter(e => !e.labels.length).length") == 0
    assert page.run("document.querySelector('#curves svg').getAttribute('aria-label')").startswith(
        "Validation error by"
    )
    assert page.problems == []


@pytest.mark.browser
def test_the_film_plays_to_its_end(page: Browser) -> None:
    page.click("#play")
    assert page.run("document.getElementById('play').textContent") == "Stop"
    page.wait(lambda: page.run("document.getElementById('play').textContent") == "Play")
    assert page.run("document.getElementById('screen').dataset.frame") == "4"
    assert page.problems == []


@pytest.mark.browser
def test_values_are_shown_under_the_pointer(page: Browser) -> None:
    shown = "getComputedStyle(document.getElementById('tip')).display"
    assert page.run(shown) == "none"
    page.hover("#sizes g[data-tip^='conv.weight']")
    assert page.run(shown) == "block"
    assert re.fullmatch(r"conv\.weight: [\d,]+ bytes, [\d.]+% of the file", page.run("tip.textContent"))
    page.hover("#curves g[data-tip^='epoch 3']")
    assert page.run("tip.textContent").startswith("epoch 3: ")
    page.hover("#screen")
    assert page.run("tip.textContent").startswith("component at ")
    page.hover("h1")
    assert page.run(shown) == "none"
    assert page.problems == []


@pytest.mark.browser
def test_values_are_shown_where_a_finger_taps(written: Path, tab: Browser) -> None:
    tab.problems.clear()
    tab.open((written / "report" / "index.html").as_uri(), width=390)
    shown = "getComputedStyle(document.getElementById('tip')).display"
    for selector, text in (("#screen", "component at "), ("#sizes g[data-tip^='conv.weight']", "conv.weight: ")):
        tab.tap(selector)
        assert tab.run(shown) == "block"
        assert tab.run("tip.textContent").startswith(text)
        tab.tap("h1")
        assert tab.run(shown) == "none"
    assert tab.problems == []


def test_the_page_says_the_metric(written: Path) -> None:
    run = Run.load(written)
    assert run.result is not None
    assert run.frames is not None
    metric = Metric("PSNR", "dB", higher_is_better=True)
    outcome = {"target": {"max_error": 30.0}, "limit": 30.0, "reached": 30.5, "met": True}
    result = dataclasses.replace(
        run.result, metric=metric, error_before=31.25, error_after=30.5, others={"<loss>": [0.5, 0.75]}, outcome=outcome
    )
    none: dict[str, list[str]] = {plot.name: [] for plot in FIGURES}
    header = render_page(dataclasses.replace(run, result=result), none).partition("</header>")[0]
    assert re.search(r"<b>31.25 → 30.5 dB</b><span>PSNR, noise [\d.]+ dB</span>", header)
    assert "<b>0.5 → 0.75</b><span>&lt;loss&gt;</span>" in header
    assert "<b>met</b><span>target: at least 30 dB validation PSNR; 30.5 dB reached</span>" in header
    frames = dataclasses.replace(run.frames, about={**run.frames.about, "metric": dataclasses.asdict(metric)})
    begun = dataclasses.replace(run, result=None, frames=frames)
    value = metric.text(run.history[-1]["validation_error"])
    assert f"<b>{value}</b><span>validation PSNR</span>" in render_page(begun, none).partition("</header>")[0]
