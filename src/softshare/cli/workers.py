"""`softshare tune --workers N`: the same command in other processes of this machine, each on its own device."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

import torch

from softshare.cli.console import console
from softshare.errors import ConfigError

OWN = ("--workers", "--devices", "--device")  # options that the other processes get another value of, or none
PATIENCE = 60  # seconds that a process has to put back its trial


def devices_of(workers: int, devices: str | None, device: str) -> list[str]:
    """The device of each process: numbers of GPUs, or names, in turn."""
    if workers < 1:
        raise ConfigError(f"--workers: expected at least 1, got {workers}")
    if devices is None:
        n = torch.cuda.device_count() if device in ("auto", "cuda") and workers > 1 else 0
        return [f"cuda:{k % n}" if n else device for k in range(workers)]
    names = [f"cuda:{name}" if name.isdigit() else name for name in devices.split(",")]
    if device != "auto" or not all(names):
        raise ConfigError(f"--devices: expected a list such as 0,1,2,3 and no --device, got {devices!r} and {device!r}")
    return [names[k % len(names)] for k in range(workers)]


def words_without(command: str, options: Sequence[str]) -> list[str]:
    """The words of a command, without the program and without some options and their values."""
    words, kept = iter(shlex.split(command)[1:]), []
    for word in words:
        if word in options:
            next(words, None)
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


@contextlib.contextmanager
def others(command: str, devices: Sequence[str]) -> Iterator[None]:
    """Within, the command runs once more on each of these devices, and writes to stderr alone.

    At the end of the block they are waited for. After an error they are stopped, and put back their trials.
    """
    words = [sys.executable, "-m", "softshare", *words_without(command, OWN)]
    environment = dict(os.environ)
    if not any(device.startswith("cuda") for device in devices):
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // (len(devices) + 1))))
    running = [
        subprocess.Popen([*words, "--device", device], stdout=subprocess.DEVNULL, env=environment) for device in devices
    ]
    try:
        yield
        failed = [process.wait() for process in running].count(0) < len(running)
    except BaseException:
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            process.kill()
        raise
    if failed:
        console(stderr=True).print("a worker ended with an error, as it says above; the others ran its trials")
