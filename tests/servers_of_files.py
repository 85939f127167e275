"""Files over HTTP for tests: a real server, which answers ranges and notes what it sends."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

TYPES = {".js": "text/javascript", ".html": "text/html; charset=utf-8"}


class Served:
    """The address of a folder, and of each answer the status and the bytes of its body."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sent: list[tuple[int, int]] = []


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Served]:
    found = Served("")

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            path = folder / unquote(self.path.partition("?")[0]).lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            data, status = path.read_bytes(), 200
            total = len(data)
            part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if part:
                start, end = int(part[1]), min(int(part[2]) + 1, len(data))
                data, status = data[start:end], 206
            self.send_response(status)
            if part:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{total}")
            self.send_header("Content-Type", TYPES.get(path.suffix, "application/octet-stream"))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if with_body:
                found.sent.append((status, len(data)))
                self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
