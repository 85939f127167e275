"""`softshare tune` of the small task of `tuning`, in processes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import tuning


@contextlib.contextmanager
def started(
    folder: Path, trials: int, log: Path, *options: object, prelude: str = "", **environment: object
) -> Iterator[subprocess.Popen[bytes]]:
    """`softshare tune` of the small task, in a process of its own, which is ended with the block."""
    args = ["tune", f"{tuning.__file__}:make_task", "--out", folder, "--trials", trials, "--epochs", 2]
    args += ["--backend", "torch", "--width", 0.15, "--error-bound", 100, *options]
    code = f"import sys\n{prelude}\nfrom softshare.cli.app import main\nsys.exit(main({[str(a) for a in args]!r}))"
    variables = {name: str(value) for name, value in environment.items()}
    with (
        log.open("wb") as file,
        subprocess.Popen([sys.executable, "-c", code], stderr=file, env={**os.environ, **variables}) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def trials_said(log: Path) -> list[int]:
    words = [line.split() for line in log.read_text().splitlines()]
    return [int(w[1].rstrip(":")) for w in words if w[:1] == ["trial"]]


def wait_for(file: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 300
    while not file.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until
        time.sleep(0.05)
