"""A headless Chromium, driven over its debugging pipe: JSON messages, each ended by a zero byte."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
NO_BROWSER = "no Chromium on this machine: apt-get install chromium"
SECONDS = 60  # a page that takes longer has failed


class Browser:
    """One tab."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._buffer, self._sent = read, write, b"", 0
        self._session: str | None = None
        self.problems: list[str] = []  # errors and warnings in the console, and failed loads
        self.requests: list[str] = []  # addresses asked for
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.problems.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(self, address: str, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        phone = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url=address)
        self.wait(lambda: self.run("document.readyState === 'complete' && location.href !== 'about:blank'"))

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"the page did not reach the expected state within {SECONDS} seconds")
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Click with the mouse in the middle of the element."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, selector: str) -> None:
        x, y = self.place(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, selector: str) -> None:
        """Tap with a finger."""
        x, y = self.place(selector)
        self.send("Emulation.setTouchEmulationEnabled", enabled=True)
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.send("Emulation.setTouchEmulationEnabled", enabled=False)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            code = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}[key]
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled into view."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return float(box[0]), float(box[1])

    def screenshot(self, path: Path, whole: bool = True) -> None:
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))
        path.write_bytes(base64.b64decode(picture["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}


def _pipe() -> tuple[int, int]:
    """A pipe with file numbers well above 3 and 4, which the browser uses itself."""
    ends = os.pipe()
    high = fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 20), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 20)
    for end in ends:
        os.close(end)
    return high


@contextmanager
def browser() -> Iterator[Browser]:
    """Run a browser with its own profile folder, and end it afterwards."""
    child_read, write = _pipe()
    read, child_write = _pipe()
    options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = f'exec "{CHROMIUM}" {options} --user-data-dir="{profile}" 3<&{child_read} 4>&{child_write}'
        process = subprocess.Popen(
            ["bash", "-c", command],  # a plain shell cannot redirect to numbers above 9
            pass_fds=(child_read, child_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_read)
        os.close(child_write)
        try:
            yield Browser(read, write)
        finally:
            os.close(write)  # the browser ends by itself when its pipe closes
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(read)
