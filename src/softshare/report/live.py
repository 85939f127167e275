"""The page while the run is under way, on this machine's loopback address alone."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from markupsafe import Markup

from softshare._util.run_folder import finished_folder
from softshare.errors import ConfigError
from softshare.report.course import run_starts
from softshare.report.figures.catalogue import draw_svgs
from softshare.report.headline import Progress, said
from softshare.report.page import IN_PAGE, render_page
from softshare.report.run import Run
from softshare.report.style import require_matplotlib
from softshare.train.hooks import EpochRecord, Hook

HOST = "127.0.0.1"
_TIMEOUT = 10  # seconds after which a client that says nothing is let go
_WATCHING = 5  # seconds since a page last asked for a newer one: somebody still has it open
_END = "end"  # the version of the report, the last page


class LivePage(Hook):
    """Serves the page of a folder after the latest epoch. The page is drawn on request, at most once for each epoch.

    It shows the few figures that are cheap to draw. If a browser still has it open at the end, the last page is the
    report. List it after the hooks that write to the folder, and use it in a `with`: the server stops at its end.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        require_matplotlib()
        self.folder = folder
        self._total = 0
        self._first: tuple[int, float] | None = None  # the first epoch seen of this training, and when
        self._run: tuple[str, Run, Progress | None] | None = None  # with its version
        self._page = ("", "")  # a version, and the page of it
        self._asked = -math.inf  # when a page last asked for a newer one
        self._led = threading.Event()  # a browser has got the report
        self._drawing = threading.Lock()  # every client has a thread of its own
        try:
            self._server = ThreadingHTTPServer((HOST, port), self._handler())
        except OSError as error:
            raise ConfigError(
                f"--live-port {port}: cannot serve there ({error.strerror or error}); leave it out for a free one"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/"

    def __enter__(self) -> LivePage:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and time.monotonic() - self._asked < _WATCHING:
            self._lead_to_report()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self._total, self._first = epochs, None

    def on_epoch(self, record: EpochRecord) -> None:
        version = str(int(self._run[0]) + 1) if self._run else "1"
        run = Run.load(self.folder)  # read here, between two writes of the hooks before
        self._run = (version, run, self._progress(run, record.epoch) if self._total else None)

    def _progress(self, run: Run, epoch: int) -> Progress:
        """By the history, because a run that goes on has begun before this page."""
        now, starts = time.monotonic(), run_starts(run.history)
        self._first = self._first or (epoch, now)
        seen, done = epoch - self._first[0], epoch - int(run.history[starts[-1]]["epoch"])
        left = (now - self._first[1]) / seen * (self._total - done) if seen > 0 else None
        return Progress(done, self._total, left, len(starts))

    def _lead_to_report(self) -> None:
        """Serve the report as the last page, and wait until a browser has it."""
        try:
            run = Run.load(finished_folder(self.folder))
            page = render_page(run, {plot.name: draw_svgs(run, plot) for plot in IN_PAGE}, saved=False)
        except Exception:  # the run is finished and whole: its page must not make it fail
            return
        with self._drawing:
            self._run, self._page = (_END, run, None), (_END, page)
        self._led.wait(_WATCHING)

    def _render(self) -> str:
        if self._run is None:
            return _waiting(finished_folder(self.folder.resolve()).name)
        with self._drawing:
            version, run, progress = self._run
            if self._page[0] != version:
                svgs = {plot.name: draw_svgs(run, plot) for plot in IN_PAGE if plot.live}
                self._page = (version, render_page(run, svgs, version, progress))
            return self._page[1]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        live = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the browser has gone, perhaps in the middle of an answer
                    super().handle()

            def do_GET(self) -> None:
                port = live._server.server_port
                if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
                    self.send_error(HTTPStatus.FORBIDDEN)  # a page from elsewhere under a name that leads here
                elif self.path == "/":
                    self._answer("text/html", live._render())
                    if live._page[0] == _END:
                        live._led.set()
                elif self.path == "/version":
                    live._asked = time.monotonic()
                    self._answer("text/plain", live._run[0] if live._run else "")
                else:
                    self.send_error(HTTPStatus.NOT_FOUND)

            def _answer(self, kind: str, text: str) -> None:
                body = text.encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Not into the middle of the progress bar."""

        return Handler


def _waiting(name: str) -> str:
    head = '<!doctype html><meta http-equiv="refresh" content="1"><link rel="icon" href="data:,">'
    title = Markup("<title>softshare: {0}</title><h1>softshare: {0}</h1>").format(said(name))
    return f"{head}{title}<p>No epoch yet.</p>"
