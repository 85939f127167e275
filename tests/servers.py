"""PostgreSQL and Redis for tests: real servers, each started for one test in a folder of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

DEBIAN = "/usr/lib/postgresql"  # where Debian's package has what is not on the path


def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """The address of a database, which is empty."""
    pytest.importorskip("psycopg", reason="needs a driver: pip install 'softshare[storage]'")
    programs = sorted(Path(DEBIAN).glob("*/bin"), key=lambda path: int(path.parent.name))
    initdb = shutil.which("initdb", path=os.pathsep.join([*map(str, programs[-1:]), os.environ["PATH"]]))
    if initdb is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    user = "postgres" if os.getuid() == 0 else getpass.getuser()  # the server refuses to run as root
    port = free_port()
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o777)
        data = f"{root}/data"
        command = [initdb, "-D", data, "-U", "tuner", "--auth", "trust", "--no-sync"]
        subprocess.run(command, user=_other(user), check=True, stdout=subprocess.DEVNULL, cwd="/")
        program = [str(Path(initdb).with_name("postgres")), "-D", data, "-p", str(port), "-k", root, "-F"]
        with _running(program, port, _other(user)):
            yield f"postgresql://tuner@localhost:{port}/postgres"


@contextlib.contextmanager
def redis() -> Iterator[str]:
    pytest.importorskip("redis", reason="needs a driver: pip install 'softshare[storage]'")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs Redis: apt-get install redis-server")
    port = free_port()
    with tempfile.TemporaryDirectory() as root:
        command = [program, "--port", str(port), "--bind", "localhost", "--dir", root, "--save", ""]
        with _running(command, port):
            yield f"redis://localhost:{port}"


def _other(user: str) -> str | None:
    return None if user == getpass.getuser() else user


@contextlib.contextmanager
def _running(command: list[str], port: int, user: str | None = None) -> Iterator[None]:
    """Within, the server answers. It is stopped with the block."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, user=user, cwd="/") as server:
        try:
            until = time.monotonic() + 60
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("localhost", port), 1):
                    break
                assert server.poll() is None, f"{command[0]} ended with status {server.returncode}"
                assert time.monotonic() < until, f"{command[0]} does not answer"
                time.sleep(0.1)
            yield
        finally:
            server.terminate()
