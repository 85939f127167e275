"""The page while the run is under way, on this machine's loopback address alone."""

from __future__ import annotations

import contextlib
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from softshare.errors import ConfigError
from softshare.report.figures.catalogue import draw_svgs
from softshare.report.page import IN_PAGE, render_page
from softshare.report.run import Run
from softshare.report.style import require_matplotlib
from softshare.train.hooks import EpochRecord, Hook

HOST = "127.0.0.1"
_TIMEOUT = 10  # seconds after which a client that says nothing is let go
_WAITING = '<!doctype html><meta http-equiv="refresh" content="1"><title>softshare</title><p>No epoch yet.</p>'


class LivePage(Hook):
    """Serves the page of a folder after the latest epoch. The page is drawn on request, at most once for each epoch.

    List it after the hooks that write to the folder, and use it in a `with`: the server stops at its end.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        require_matplotlib()
        self.folder = folder
        self._run: tuple[str, Run] | None = None  # with its version
        self._page = ("", "")  # a version, and the page of it
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
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def on_epoch(self, record: EpochRecord) -> None:
        version = str(int(self._run[0]) + 1) if self._run else "1"
        self._run = (version, Run.load(self.folder))  # read here, between two writes of the hooks before

    def _render(self) -> str:
        if self._run is None:
            return _WAITING
        with self._drawing:
            version, run = self._run
            if self._page[0] != version:
                svgs = {plot.name: draw_svgs(run, plot) for plot in IN_PAGE}
                self._page = (version, render_page(run, svgs, version))
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
                elif self.path == "/version":
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
