"""The page during training."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from browser import CHROMIUM, NO_BROWSER, browser
from report_runs import compress, make_task
from softshare._util.run_folder import FRAMES, HISTORY
from softshare.cli import main
from softshare.config import RetrainConfig
from softshare.errors import ConfigError, NotAvailableError
from softshare.prior.prior import MixturePrior
from softshare.report.frames import FrameLog
from softshare.report.live import HOST, LivePage
from softshare.report.run import Run
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.progress import CsvLog
from softshare.train.retrain import retrain_


def get(address: str, path: str = "/", host: str | None = None) -> tuple[int, str]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.request("GET", path, headers={"Host": host or parts.netloc})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


class Looking(Hook):
    """Opens the page after every epoch."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.seen: list[tuple[int, str, str]] = []

    def on_epoch(self, record: EpochRecord) -> None:
        self.seen.append((record.epoch, get(self.address)[1], get(self.address, "/version")[1]))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LivePage]:
    with LivePage(tmp_path) as page:
        yield page


def train(folder: Path, *hooks: Hook, epochs: int = 1) -> None:
    task = make_task()
    writers = [CsvLog(folder / HISTORY), FrameLog(folder / FRAMES)]
    retrain_(task, MixturePrior(task.model), RetrainConfig(epochs=epochs), [*writers, *hooks])


@pytest.mark.slow
def test_the_page_is_that_of_the_latest_epoch(live: LivePage, tmp_path: Path) -> None:
    assert "No epoch yet." in get(live.address)[1]
    assert get(live.address, "/version") == (200, "")
    looking = Looking(live.address)
    train(tmp_path, live, looking)
    assert [epoch for epoch, _, _ in looking.seen] == [0, 1]
    for epoch, page, version in looking.seen:
        assert f"<div><b>{epoch}</b><span>epoch</span></div>" in page
        assert f'max="{epoch}" value="{epoch}"' in page  # of the slider
        assert f'"version":"{version}"' in page
        assert f"<title>softshare: {tmp_path.name}</title>" in page
        assert f"Under way: epoch {epoch} of 1" in page
        assert re.findall(r'<section id="(\w+)"', page) == ["film", "curves"]  # what is cheap to draw
    assert "s left" in looking.seen[1][1]
    assert looking.seen[0][2] != looking.seen[1][2]


def test_it_is_on_the_loopback_address_and_has_nothing_else(live: LivePage, tmp_path: Path) -> None:
    assert live.address.startswith("http://127.0.0.1:")
    (tmp_path / "secret.txt").write_text("secret")
    for path in ("/secret.txt", "/../secret.txt", "/index.html"):
        assert get(live.address, path)[0] == 404
    port = urlsplit(live.address).port
    assert get(live.address, host=f"localhost:{port}")[0] == 200
    assert get(live.address, host=f"elsewhere.example:{port}")[0] == 403  # a name made to lead here


def test_the_server_stops_with_the_run(tmp_path: Path) -> None:
    with LivePage(tmp_path) as page:
        pass
    with pytest.raises(ConnectionRefusedError):
        get(page.address)


def test_a_client_that_says_nothing_holds_up_neither_others_nor_the_end(tmp_path: Path) -> None:
    page = LivePage(tmp_path)
    page.__enter__()
    with socket.create_connection((HOST, urlsplit(page.address).port or 0)):  # as browsers do ahead of a request
        asking = threading.Thread(target=get, args=[page.address], daemon=True)
        stopping = threading.Thread(target=page.__exit__, args=[None, None, None], daemon=True)
        for thread in (asking, stopping):
            thread.start()
            thread.join(20)
            assert not thread.is_alive()


@pytest.mark.parametrize("fault", [None, "drawing"])
def test_a_client_that_goes_before_its_answer_prints_nothing_but_a_fault_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: str | None
) -> None:
    asked, gone = threading.Event(), threading.Event()

    def render(_: LivePage) -> str:
        asked.set()
        assert gone.wait(20)
        if fault:
            raise RuntimeError(fault)
        return "x" * 10_000_000  # more than the system takes for a client that does not read

    monkeypatch.setattr(LivePage, "_render", render)
    monkeypatch.setattr(ThreadingHTTPServer, "daemon_threads", False)  # so that the end waits for the answer
    with LivePage(tmp_path) as page:
        parts = urlsplit(page.address)
        with socket.create_connection((HOST, parts.port or 0)) as client:
            client.sendall(f"GET / HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            assert asked.wait(20)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
        gone.set()
    printed = capsys.readouterr().err
    assert ("RuntimeError: drawing" in printed) if fault else (printed == "")


def test_browsers_that_ask_at_once_get_one_drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def draw(run: Run, *_: object) -> str:
        drawn.append(run)
        time.sleep(0.2)  # long enough for the others to ask
        return "drawn"

    monkeypatch.setattr("softshare.report.live.draw_svgs", lambda *_: [])
    monkeypatch.setattr("softshare.report.live.render_page", draw)
    with LivePage(tmp_path) as page, ThreadPoolExecutor(4) as pool:
        train(tmp_path, page)
        answers = list(pool.map(get, [page.address] * 4))
    assert answers == [(200, "drawn")] * 4
    assert len(drawn) == 1


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--live-port {port}: cannot serve there"):
            LivePage(tmp_path, port)


@pytest.mark.browser
def test_a_newer_page_replaces_the_one_in_the_browser(live: LivePage, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip(NO_BROWSER)
    with browser() as tab:

        class Watching(Hook):
            def on_epoch(self, record: EpochRecord) -> None:
                if record.epoch == 0:
                    tab.open(live.address)
                tab.wait(lambda: tab.run("document.getElementById('epoch')?.max") == str(record.epoch))

        train(tmp_path, live, Watching())
        assert tab.problems == []


@pytest.mark.browser
def test_what_the_reader_has_chosen_outlives_the_page(tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip(NO_BROWSER)
    folder = compress(tmp_path)
    record = EpochRecord(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
    state = (
        "[part.selectedIndex, document.getElementById('now').textContent.split(':')[0], play.textContent, "
        "[...document.querySelectorAll('th')].map(e => e.getAttribute('aria-sort')).indexOf('ascending')]"
    )
    with LivePage(folder) as page, browser() as tab:

        def newer() -> None:
            page.on_epoch(record)
            version = page._run[0] if page._run else ""
            now = "document.readyState + JSON.parse(document.getElementById('data')?.textContent ?? '{}').version"
            tab.wait(lambda: tab.run(now) == "complete" + version)

        page.on_epoch(record)
        tab.open(page.address)
        assert tab.run(state) == [1, "4", "Play", -1]
        tab.run("(e => { e.selectedIndex = 0; e.dispatchEvent(new Event('change')); })(part)")
        tab.run("document.getElementById('epoch').focus()")
        tab.press("ArrowLeft")
        for _ in range(2):
            tab.click("#tensors th:nth-child(8) button")
        newer()
        assert tab.run(state) == [0, "3", "Play", 7]
        rows = tab.run("[...document.querySelectorAll('#tensors td:nth-child(8)')].map(e => +e.dataset.value)")
        assert rows == sorted(rows)
        tab.run("document.getElementById('epoch').focus()")
        tab.press("End")
        newer()
        assert tab.run(state)[1] == "4"
        still = (
            "const ticks = setInterval; setInterval = (f, ms) => ticks(f, ms === 180 ? 1e9 : ms)"  # a film that waits
        )
        tab.send("Page.addScriptToEvaluateOnNewDocument", source=still)
        newer()
        tab.click("#play")
        assert tab.run(state) == [0, "0", "Stop", 7]
        newer()
        assert tab.run(state) == [0, "0", "Stop", 7]
        assert tab.problems == []


def finished(folder: Path) -> Path:
    """The folder in which a run was written that is finished now."""
    return folder.with_name(f".{folder.name}.unfinished")


def test_the_name_is_that_of_the_run(tmp_path: Path) -> None:
    with LivePage(tmp_path / ".<i>a.unfinished") as page:
        assert "<h1>softshare: &lt;i&gt;a</h1><p>No epoch yet." in get(page.address)[1]


@pytest.mark.slow
def test_a_browser_that_watches_gets_the_report_at_the_end(tmp_path: Path) -> None:
    folder = compress(tmp_path)
    page, got = LivePage(finished(folder)), list[str]()

    def watch() -> None:
        version = get(page.address, "/version")[1]
        while get(page.address, "/version")[1] == version:
            time.sleep(0.1)
        got.append(get(page.address)[1])

    with page:
        get(page.address, "/version")
        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
    watching.join(20)
    assert '<section id="sizes"' in got[0]
    assert '"version":null' in got[0]  # it asks for no newer one
    assert f"<code>softshare report {folder}</code>" in got[0]


def test_without_a_browser_or_after_an_error_the_end_does_not_wait(tmp_path: Path) -> None:
    start = time.monotonic()
    with LivePage(tmp_path):
        pass
    for error in (RuntimeError, None):  # without an error, no run is there to be shown
        page = LivePage(tmp_path)
        page.__enter__()
        get(page.address, "/version")
        page.__exit__(error, None, None)
    assert time.monotonic() - start < 4


# On the command line


def test_compress_says_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = compress(tmp_path, "--live", "--epochs", 1)
    assert "live: http://127.0.0.1:" in capsys.readouterr().out
    assert (folder / "model.sws").exists()


def test_a_port_without_live_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compress", "lenet-300-100", "--live-port", "8000", "--out", str(tmp_path / "run")]) == 2
    assert "--live-port 8000 is the port of --live, which was not given" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotAvailableError, match=r"softshare\[report\]"):
        LivePage(tmp_path)
