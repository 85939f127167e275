"""Going on with a run that was stopped: a file with all that decides its further course.

What is in a run says what must be kept: every part has a state, and follows the file. The file is written between two
steps, completely or not at all. A run that goes on from it ends with the same bytes as one that was never stopped.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from softshare._util.files import read_bytes, write_atomic
from softshare._util.run_folder import EVERY
from softshare.errors import ConfigError, FormatError, SoftShareError, StoppedError
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.random_state import random_state, set_random_state
from softshare.train.step import Step
from softshare.train.supply import Supply

VERSION = 1


class Part(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> object: ...


class Checkpoint:
    """The file that a run is kept in while it is under way. If it exists, the run goes on from it:

        softshare.compress(task, checkpoint=softshare.Checkpoint("mine.run", every=600))

    It is written every so many seconds, and when Ctrl-C or SIGTERM stops the run.
    """

    def __init__(self, path: str | os.PathLike[str], every: float = EVERY) -> None:
        if isinstance(every, bool) or not isinstance(every, int | float) or not every >= 0:
            raise ConfigError(f"every: expected a number of seconds of at least 0, got {every!r}")
        self.path, self.every = Path(path), every
        self._parts: dict[str, Part] = {}
        self._loaded: dict[str, Any] = {}  # states whose parts do not exist yet
        self._key = ""
        self._written = time.monotonic()
        self._signal = 0

    def begin(self, key: object) -> None:
        """Read the file, if there is one. Raise unless it is of this run, by its key."""
        self._key = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
        self._parts, self._loaded, self._written, self._signal = {}, {}, time.monotonic(), 0
        if not self.path.exists():
            return
        state = _read(self.path)
        if state["key"] != self._key:
            raise ConfigError(
                f"{self.path} is of another run: the network, the settings, the target or the versions are not the "
                "same. Give those of that run to go on with it, or delete the file to start anew"
            )
        self._loaded = state["parts"]

    def follow(self, name: str, part: Part) -> None:
        """Keep a part of the run from now on. If the run was stopped, the part gets the state that it had then."""
        self._parts[name] = part
        if name in self._loaded:
            part.load_state_dict(self._loaded.pop(name))

    def tick(self) -> None:
        """Called after each step and at the end. Writes the file if it is time. After a signal, stops the run."""
        if self._signal:
            self.write()
            raise StoppedError(
                f"stopped by {signal.Signals(self._signal).name}; the run is kept in {self.path}", self._signal
            )
        if time.monotonic() - self._written >= self.every:
            try:
                self.write()
            except SoftShareError as problem:  # a full disk: the file before is still there, and so is the run
                warnings.warn(f"{problem}; the run goes on without a new checkpoint", stacklevel=2)
                self._written = time.monotonic()

    def write(self) -> None:
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        buffer = io.BytesIO()
        torch.save({"version": VERSION, "key": self._key, "parts": parts}, buffer)
        write_atomic(self.path, buffer.getvalue())
        self._written = time.monotonic()

    def remove(self) -> None:
        """The run is over, and what came of it is saved."""
        self.path.unlink(missing_ok=True)

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Within, SIGINT and SIGTERM wait for the end of a step. The second one does not."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def stop(number: int, frame: FrameType | None) -> None:
            if self._signal:
                raise KeyboardInterrupt
            self._signal = number

        try:
            for number in before:
                signal.signal(number, stop)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _read(path: Path) -> dict[str, Any]:
    data = read_bytes(path)
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if state["version"] != VERSION:
            raise ValueError(f"version {state['version']}, expected {VERSION}")
        return {"key": str(state["key"]), "parts": dict(state["parts"])}
    except Exception as problem:  # torch has no error of its own for each way in which a file can be wrong
        kind = type(problem).__name__
        raise FormatError(f"{path} is not the checkpoint of a run ({kind}); delete it to start anew") from None


class Training:
    """Where a training is, between two steps: after so many steps of the present look."""

    def __init__(self, task: Task, prior: MixturePrior | None, run_step: Step, supply: Supply) -> None:
        self.task, self.prior, self.run_step, self.supply = task, prior, run_step, supply
        self.look, self.step = 0, 0
        self.tau = 0.0  # of the last step

    def state_dict(self) -> dict[str, Any]:
        prior = self.prior
        return {
            "look": self.look,
            "step": self.step,
            "tau": self.tau,
            "hard": self.run_step.hard,
            "model": self.task.model.state_dict(),
            "buffers": _unkept_buffers(self.task.model),
            "prior": prior and {"state": prior.state_dict(), "steps": prior.steps, "reaches": prior.reaches},
            "run_step": self.run_step.state_dict(),
            "supply": self.supply.state_dict(),
            "random": random_state(self.task.model),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.look, self.step, self.tau = state["look"], state["step"], state["tau"]
        self.run_step.hard = state["hard"]
        self.task.model.load_state_dict(state["model"])
        for name, buffer in _unkept_buffers(self.task.model).items():
            buffer.copy_(state["buffers"][name])
        if self.prior and state["prior"]:
            self.prior.load_state_dict(state["prior"]["state"])
            self.prior.steps, self.prior.reaches = state["prior"]["steps"], state["prior"]["reaches"]
        self.run_step.load_state_dict(state["run_step"])
        self.supply.load_state_dict(state["supply"])  # draws random numbers
        set_random_state(state["random"], self.task.model)


def _unkept_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Those that are not part of the state dict."""
    kept = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name not in kept}
