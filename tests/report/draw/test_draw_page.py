"""The page to draw on: its file, and in a browser its answers to drawings and to test images."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from browser import CHROMIUM, NO_BROWSER, Browser, browser
from golden.make import codebook
from paths import ROOT
from softshare import codec, load_into_
from softshare._util.run_folder import DRAW, MODEL
from softshare._util.schema import to_plain
from softshare.cli import main
from softshare.codec import inspect
from softshare.config import EncodeConfig
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.report.draw.classifier import Classifier, described
from softshare.report.draw.page import drawable, problem_of, write_draw_page
from softshare.report.run import Run
from softshare.zoo.datasets import Split, load_mnist
from softshare.zoo.models import LeNet5Caffe, LeNet300100

KEPT = {"lenet-300-100": LeNet300100, "lenet-5-caffe": LeNet5Caffe}
needs_results = pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="needs the folder results of the repository")
pytestmark = [needs_results]

# Strokes of digits, in shares of the drawing's side
DIGITS: dict[int, list[list[tuple[float, float]]]] = {
    0: [[(0.5, 0.15), (0.32, 0.25), (0.27, 0.5), (0.33, 0.75), (0.5, 0.85), (0.68, 0.75), (0.73, 0.5), (0.67, 0.25),
         (0.5, 0.15)]],
    1: [[(0.52, 0.15), (0.5, 0.5), (0.48, 0.85)]],
    3: [[(0.3, 0.2), (0.5, 0.14), (0.68, 0.24), (0.66, 0.4), (0.48, 0.48), (0.68, 0.58), (0.7, 0.74), (0.52, 0.85),
         (0.3, 0.8)]],
    4: [[(0.35, 0.15), (0.3, 0.5), (0.7, 0.5)], [(0.66, 0.15), (0.64, 0.88)]],
    7: [[(0.25, 0.2), (0.75, 0.2), (0.65, 0.4), (0.55, 0.6), (0.45, 0.85)]],
}  # fmt: skip


@pytest.fixture(scope="module")
def mnist() -> Split:
    return load_mnist()[2][torch.arange(200)]


def kept(experiment: str) -> Run:
    return Run.load(ROOT / "results" / experiment / "softshare" / "seed-0")


def classifier(experiment: str, images: Split) -> Classifier:
    found = described(KEPT[experiment](), [images])
    assert isinstance(found, Classifier)
    return found


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found is not None
    return dict(json.loads(found[1]))


# The file


def test_the_page_holds_the_file_and_needs_nothing_else(tmp_path: Path, mnist: Split) -> None:
    run = kept("lenet-300-100")
    page = write_draw_page(run, tmp_path, lambda _: classifier("lenet-300-100", mnist))
    assert page == tmp_path / DRAW
    text = page.read_text(encoding="utf-8")
    assert base64.b64decode(data_of(page)["file"]) == (run.folder / MODEL).read_bytes()
    assert not re.findall(r"https?://", text)
    assert text.count("</script>") == 2
    assert len(text) < 125_000
    assert (ROOT / "decoders/js/sws.js").read_text(encoding="utf-8") in text


def test_a_page_with_images_of_mnist_has_its_notice(tmp_path: Path, mnist: Split) -> None:
    notice = "MNIST, by Yann LeCun, Corinna Cortes and Christopher J.C. Burges, under CC BY-SA 3.0"
    run = kept("lenet-300-100")
    with_images = classifier("lenet-300-100", mnist)
    without = dataclasses.replace(with_images, examples={})
    assert with_images.examples
    assert run.result is not None
    other = dataclasses.replace(run, result=dataclasses.replace(run.result, dataset="custom"))
    for one, network, expected in ((run, with_images, 1), (run, without, 0), (other, with_images, 0)):
        page = write_draw_page(one, tmp_path, lambda _, network=network: network)  # type: ignore[misc]
        assert isinstance(page, Path)
        assert page.read_text(encoding="utf-8").count(notice) == expected


def test_texts_of_a_run_are_escaped(tmp_path: Path, mnist: Split) -> None:
    source, folder = kept("lenet-300-100").folder, tmp_path / "run"
    folder.mkdir()
    (folder / MODEL).write_bytes((source / MODEL).read_bytes())
    result = json.loads((source / "result.json").read_text(encoding="utf-8"))
    odd = "</script><i onclick=x()>{{ js }}&"
    (folder / "result.json").write_text(json.dumps({**result, "experiment": odd, "dataset": odd}))
    page = write_draw_page(Run.load(folder), tmp_path, lambda _: classifier("lenet-300-100", mnist))
    assert isinstance(page, Path)
    text = page.read_text(encoding="utf-8")
    assert "<i onclick" not in text
    assert text.count("&lt;/script&gt;&lt;i onclick=x()&gt;{{ js }}&amp;") == 4
    assert "Draw an image" in text


def test_a_run_without_a_classifier_has_a_reason(tmp_path: Path, mnist: Split) -> None:
    run = kept("lenet-300-100")
    (tmp_path / DRAW).write_text("of an earlier report")
    assert write_draw_page(run, tmp_path, lambda _: "it is no classifier") == "it is no classifier"
    assert not (tmp_path / DRAW).exists()
    assert "does not describe" in str(drawable(run))
    other = classifier("lenet-5-caffe", mnist)
    assert "conv1.weight" in str(drawable(run, lambda _: other))
    assert run.info is not None
    assert "16 tensors" not in str(problem_of(other, run.info))


@pytest.mark.slow
def test_the_commands_write_it_and_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a kept run, whose film does not describe the network: the experiment does."""
    run = ROOT / "results/lenet-300-100/softshare/seed-0"
    assert main(["report", str(run), "--out", str(tmp_path)]) == 0
    assert f"Draw for the network:     {tmp_path / DRAW}" in capsys.readouterr().out
    assert f'href="{DRAW}"' in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert sorted(data_of(tmp_path / DRAW)["examples"]) == [str(k) for k in range(10)]


# In a browser


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip(NO_BROWSER)
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, mnist: Split) -> dict[str, Path]:
    found = {}
    for name in KEPT:
        folder = tmp_path_factory.mktemp(name)
        page = write_draw_page(kept(name), folder, lambda name: classifier(name, mnist))
        assert isinstance(page, Path)
        found[name] = page
    return found


def opened(tab: Browser, page: Path, width: int = 1400, scheme: str = "light") -> Browser:
    tab.problems.clear()
    tab.requests.clear()
    tab.open(page.as_uri(), width, 900, scheme)
    tab.wait(lambda: tab.run("document.documentElement.dataset.state"))
    assert tab.run("document.documentElement.dataset.state") == "ready"
    return tab


def draw(tab: Browser, strokes: list[list[tuple[float, float]]], touch: bool) -> None:
    """Real events of a mouse or a finger."""
    box = tab.run(
        "(() => { const e = document.getElementById('ink'); e.scrollIntoView({block: 'center'}); "
        "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
    )
    for stroke in strokes:
        points = [(box[0] + x * box[2], box[1] + y * box[3]) for x, y in stroke]
        steps = [
            (x0 + (x1 - x0) * k / 4, y0 + (y1 - y0) * k / 4)
            for (x0, y0), (x1, y1) in itertools.pairwise(points)
            for k in range(4)
        ]
        for k, (x, y) in enumerate([*steps, points[-1]]):
            if touch:
                kind = "touchMove" if k else "touchStart"
                tab.send("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y}])
            else:
                kind = "mouseMoved" if k else "mousePressed"
                tab.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        if touch:
            tab.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        else:
            tab.send("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)


def has(tab: Browser, digit: int) -> bool:
    return bool(tab.run("document.documentElement.dataset.best") == str(digit))


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("touch", [False, True], ids=["mouse", "finger"])
def test_digits_that_are_drawn_are_recognized(tab: Browser, pages: dict[str, Path], name: str, touch: bool) -> None:
    opened(tab, pages[name], 390 if touch else 1400, "dark" if touch else "light")
    tab.send("Emulation.setTouchEmulationEnabled", enabled=touch)
    try:
        for digit, strokes in DIGITS.items():
            tab.run("document.getElementById('clear').click()")
            tab.wait(partial(has, tab, -1))
            draw(tab, strokes, touch)
            tab.wait(partial(has, tab, digit))
            assert tab.run("document.getElementById('says').textContent").startswith(f"{digit}, at ")
    finally:
        tab.send("Emulation.setTouchEmulationEnabled", enabled=False)
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    assert tab.problems == []
    assert tab.requests == [pages[name].as_uri()]  # it asks for nothing


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_logits_are_those_of_pytorch(tab: Browser, pages: dict[str, Path], mnist: Split, name: str) -> None:
    model = KEPT[name]()
    load_into_(model, kept(name).folder / MODEL)
    with torch.no_grad():
        expected = model.eval()(mnist.images)
    pixels = base64.b64encode((mnist.images * 255).round().byte().numpy().tobytes()).decode()
    found = opened(tab, pages[name]).run(
        f"(() => {{ const all = Uint8Array.from(atob('{pixels}'), c => c.charCodeAt(0)); "
        "return Array.from({length: all.length / 784}, (_, k) => "
        "[...classifier.logits(Float32Array.from(all.subarray(784 * k, 784 * k + 784), x => x / 255))]); })()"
    )
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.browser
@pytest.mark.slow
def test_the_tensors_in_the_page_have_the_bits_of_python(tab: Browser, pages: dict[str, Path]) -> None:
    expected = codec.load(kept("lenet-300-100").folder / MODEL)
    found = opened(tab, pages["lenet-300-100"]).run(
        "Object.fromEntries([...classifier.tensors].map(([name, t]) => [name, "
        "btoa(Array.from(new Uint8Array(t.data.buffer), c => String.fromCharCode(c)).join(''))]))"
    )
    octets = {name: base64.b64decode(text) for name, text in found.items()}
    assert octets == {name: tensor.contiguous().numpy().tobytes() for name, tensor in expected.items()}


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("width", [1400, 390])
def test_the_first_layer_is_sharp_and_has_no_empty_tiles(
    tab: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    """A pixel of the canvas is a pixel of the screen, and every unit that reads something has its squares."""
    opened(tab, pages[name], width)
    own, shown, columns = tab.run(
        "(() => { const c = document.getElementById('first'), b = c.getBoundingClientRect(), f = c.parentElement; "
        "return [[c.width, c.height], [b.width, b.height], f.clientWidth]; })()"
    )
    assert own == [round(x * tab.run("devicePixelRatio")) for x in shown]
    assert columns / 2 < shown[0] <= columns
    first = next(t for n, t in codec.load(kept(name).folder / MODEL).items() if n.endswith("weight"))
    unread = int((first.flatten(1) == 0).all(1).sum())
    assert unread > 0
    about = tab.run("document.getElementById('first-about').textContent")
    assert about.endswith(f"{unread} of {len(first)} units read nothing and have no tile.")


@pytest.mark.browser
@pytest.mark.slow
def test_drawings_are_scaled_and_centred_as_mnist_is(tab: Browser, pages: dict[str, Path]) -> None:
    """A small drawing in a corner gives the image that a large one in the middle gives."""
    opened(tab, pages["lenet-300-100"])
    images = []
    for scale, shift in ((1.0, 0.0), (0.5, 0.3)):
        tab.run("document.getElementById('clear').click()")
        draw(tab, [[(x * scale + shift, y * scale + shift) for x, y in s] for s in DIGITS[4]], touch=False)
        images.append(torch.tensor(tab.run("[...classifier.input()]")).view(28, 28))
    for image in images:
        rows, columns = (image > 0.05).any(1).nonzero().flatten(), (image > 0.05).any(0).nonzero().flatten()
        assert 20 <= max(len(rows), len(columns)) <= 22
        mass, places = image.sum(), torch.arange(28) + 0.5
        centre = (float((image.sum(0) * places).sum() / mass), float((image.sum(1) * places).sum() / mass))
        assert centre == pytest.approx((14, 14), abs=0.1)
    large, small = (i.flatten() / i.norm() for i in images)
    assert float(large @ small) > 0.8  # the pen is as wide in both, so the small one is bolder


@pytest.mark.browser
@pytest.mark.slow
def test_the_keyboard_and_the_examples_work(tab: Browser, pages: dict[str, Path], mnist: Split) -> None:
    opened(tab, pages["lenet-300-100"])
    labels = tab.run("[...document.querySelectorAll('#examples button')].map(b => b.getAttribute('aria-label'))")
    assert labels == [f"Example of {k}" for k in range(10)]
    hint = "getComputedStyle(document.querySelector('.hint')).display !== 'none'"
    assert tab.run(hint)
    tab.run("document.querySelectorAll('#examples button')[2].click()")
    tab.wait(lambda: tab.run("document.documentElement.dataset.best") != "-1")
    first = mnist.images[(mnist.labels == 2).nonzero()[0, 0]].flatten()
    assert not tab.run(hint)
    torch.testing.assert_close(torch.tensor(tab.run("[...classifier.input()]")), first)
    tab.run("document.getElementById('ink').focus()")

    def press(key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            tab.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    press("Delete", 46)
    tab.wait(lambda: tab.run("document.documentElement.dataset.best") == "-1")
    for _ in range(9):
        press("ArrowUp", 38)
    press(" ", 32)
    for _ in range(18):
        press("ArrowDown", 40)
    press(" ", 32)
    tab.wait(lambda: tab.run("document.documentElement.dataset.best") == "1")
    assert tab.run("scrollY") == 0  # the arrows move the pen, not the page


@pytest.mark.browser
@pytest.mark.slow
def test_a_file_without_names_and_standardized_pixels(tab: Browser, tmp_path: Path) -> None:
    """A made-up network whose tensors are tied to no name in the file, with a stride, a padding and no bias."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 5, 4, stride=2, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                          nn.Flatten(), nn.Linear(180, 4))  # fmt: skip
    book = codebook([900 * (k + 1) for k in range(8)])
    shared = [
        QuantizedTensor(name, tuple(t.shape), t.dtype, torch.randint(0, 9, (t.numel(),), dtype=torch.uint8), book)
        for name, t in model.state_dict().items()
    ]
    weights = QuantizedWeights(tuple(shared), {}, {})
    source = kept("lenet-300-100").folder
    (tmp_path / MODEL).write_bytes(codec.encode(weights, EncodeConfig(names="none")))
    (tmp_path / "result.json").write_bytes((source / "result.json").read_bytes())
    model.load_state_dict(weights.state_dict())
    images = torch.randn(20, 1, 24, 24)
    found = described(model, [(images, torch.arange(20) % 4)])
    assert isinstance(found, Classifier)
    assert found.low < -1
    page = write_draw_page(Run.load(tmp_path), tmp_path, lambda _: found)
    assert isinstance(page, Path), page
    outputs = opened(tab, page).run(f"[...classifier.logits({json.dumps(images[0].flatten().tolist())})]")
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(outputs), model.eval()(images[:1])[0], rtol=1e-4, atol=1e-4)
    assert inspect(tmp_path / MODEL).tensors[0].name is None
    assert to_plain(found)["shape"] == [1, 24, 24]
    assert tab.problems == []
