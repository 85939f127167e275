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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from softshare._util.files import read_bytes, write_atomic
from softshare._util.run_folder import EVERY
from softshare._util.signals import Handler, end_fork
from softshare.distributed.group import ALONE, Group
from softshare.distributed.wrap import restore_, whole_state
from softshare.errors import ConfigError, FormatError, SoftShareError, StoppedError
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.random_state import random_state, set_random_state
from softshare.train.spared import warn
from softshare.train.step import Step
from softshare.train.supply import Supply

VERSION = 3
OTHER_BATCHES = (
    "Task.train gave other batches than before for the pass that was under way. The run goes on, but ends in another "
    "file than one that was never stopped. The batches must depend on nothing but the random states of Python, NumPy "
    "and torch, and the generators of a DataLoader and its samplers"
)
ASKED_EVERY, MOST_STEPS = 0.5, 50  # seconds, and steps, after which all processes are asked whether to write or stop


class Part(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> object: ...


class Checkpoint:
    """The file that a run is kept in while it is under way. If it exists, the run goes on from it:

        softshare.compress(task, checkpoint=softshare.Checkpoint("mine.run", every=600))

    It is written when Ctrl-C or SIGTERM stops the run, too. `compress` calls the methods.

    Args:
        path: of the file.
        every: seconds between two writes.
        say: gets a text if the file cannot be written; by default a Python warning.
    """

    def __init__(self, path: str | os.PathLike[str], every: float = EVERY, say: Callable[[str], None] = warn) -> None:
        if isinstance(every, bool) or not isinstance(every, int | float) or not every >= 0:
            raise ConfigError(f"every: expected a number of seconds of at least 0, got {every!r}")
        self.path, self.every, self.say = Path(path), every, say
        self._parts: dict[str, Part] = {}
        self._loaded: dict[str, Any] = {}  # states whose parts do not exist yet
        self._key, self._conditions = "", dict[str, Any]()
        self._written = time.monotonic()
        self._signal = 0
        self._group = ALONE
        self._asked, self._asked_every = time.monotonic(), 1  # when all processes were last asked, and after how many
        self._steps = 0  # steps they are asked, and steps since

    def begin(self, key: object, group: Group = ALONE, device: str = "cpu") -> None:
        """Read the file, if there is one. Raise unless it is of this run, by its key.

        In a group, the first process reads and writes the file for all, which may be another number when they go on.
        So may the threads and the device. Sums are then rounded in another way, and that is said.

        Args:
            key: what makes two runs the same: plain values.
            group: the processes that train the network.
            device: that it is trained on.
        """
        self._conditions = {"threads": torch.get_num_threads(), "device": device, "processes": group.size}
        self._group = group
        self._key = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
        self._parts, self._loaded, self._written, self._signal = {}, {}, time.monotonic(), 0
        data = read_bytes(self.path) if group.is_first and self.path.exists() else None
        if not group.first(data is not None):
            return
        state = _read(self.path, group.first_bytes(data or b""))
        if state["key"] != self._key:
            raise ConfigError(
                f"{self.path} is of another run: the network, the settings, the target or the versions are not the "
                "same. Give those of that run to go on with it, or delete the file to start from the beginning"
            )
        self._loaded = state["parts"]
        then, now = state["conditions"], self._conditions
        other = [f"{name} {then[name]} then, {now[name]} now" for name in now if now[name] != then[name]]
        if other and group.is_first:
            self.say(
                f"{self.path} was written under other conditions ({'; '.join(other)}). The run goes on, but rounds "
                "differently, and ends in another file than one that was never stopped"
            )

    def follow(self, name: str, part: Part) -> None:
        """Keep a part of the run from now on. If the run was stopped, the part gets the state that it had then.

        Args:
            name: of the part in the file.
            part: an object with `state_dict` and `load_state_dict`.
        """
        self._parts[name] = part
        if name in self._loaded:
            part.load_state_dict(self._loaded.pop(name))

    def tick(self, at_end: bool = False) -> None:
        """Called after each step, and at the end of each training. Writes the file if it is time, and at an end.

        After a signal, stops the run.

        Args:
            at_end: whether a training has ended.
        """
        is_due = at_end or time.monotonic() - self._written >= self.every
        if self._group.size > 1:
            self._steps += 1
            if self._steps < self._asked_every and not at_end:
                return
            is_due = self._agree(is_due)
        if self._signal:
            self.write()
            raise StoppedError(
                f"stopped by {signal.Signals(self._signal).name}; the run is kept in {self.path}", self._signal
            )
        if is_due:
            try:
                self.write()
            except SoftShareError as problem:  # a full disk: the file before is still there, and so is the run
                self.say(f"{problem}; the run goes on without a new checkpoint")
                self._written = time.monotonic()

    def _agree(self, is_due: bool) -> bool:
        """Whether the first process finds it time to write, and whether any has had a signal. Asked twice a second."""
        now = time.monotonic()
        often = min(MOST_STEPS, max(1, round(self._steps * ASKED_EVERY / max(now - self._asked, 1e-6))))
        said = self._group.highest_(torch.tensor([self._signal, is_due and self._group.is_first, often]))
        self._signal, due, self._asked_every = (int(n) for n in said)
        self._asked, self._steps = now, 0
        return bool(due)

    def write(self) -> None:
        """Write the file now."""
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        if self._group.size > 1:
            parts = whole_state(parts, self._group)
            self._written = time.monotonic()
            if not self._group.is_first:
                return
        buffer = io.BytesIO()
        torch.save({"version": VERSION, "key": self._key, "conditions": self._conditions, "parts": parts}, buffer)
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
        before: dict[int, Handler] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        process = os.getpid()

        def stop(number: int, frame: FrameType | None) -> None:
            end_fork(number, process)
            if self._signal:
                if callable(handler := before[number]):
                    handler(number, frame)
                raise KeyboardInterrupt
            self._signal = number

        try:
            for number in before:
                signal.signal(number, stop)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _read(path: Path, data: bytes) -> dict[str, Any]:
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if state["version"] != VERSION:
            raise ValueError(f"version {state['version']}, expected {VERSION}")
        return {name: kind(state[name]) for name, kind in (("key", str), ("conditions", dict), ("parts", dict))}
    except Exception as problem:  # torch has no error of its own for each way in which a file can be wrong
        kind = type(problem).__name__
        raise FormatError(
            f"{path} is not the checkpoint of a run ({kind}); delete it to start from the beginning"
        ) from None


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
            **self._of_each(),
        }

    def _of_each(self) -> dict[str, Any]:
        """What each process has of its own: its batches, and its random state."""
        own = {"supply": self.supply.state_dict(), "random": random_state(self.task.model)}
        group = self.task.group
        return {**own, "each": group.each(own)} if group.size > 1 else own

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.look, self.step, self.tau = state["look"], state["step"], state["tau"]
        self.run_step.hard = state["hard"]
        restore_(self.task.model, state["model"])
        for name, buffer in _unkept_buffers(self.task.model).items():
            buffer.copy_(state["buffers"][name])
        if self.prior and state["prior"]:
            self.prior.load_state_dict(state["prior"]["state"])
            self.prior.steps, self.prior.reaches = state["prior"]["steps"], state["prior"]["reaches"]
        self.run_step.load_state_dict(state["run_step"])
        rank, each = self.task.group.rank, state.get("each", [])
        own = each[rank] if rank < len(each) else state
        self.supply.load_state_dict(own["supply"])  # draws random numbers
        set_random_state(own["random"], self.task.model)


def _unkept_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Those that are not part of the state dict."""
    kept = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name not in kept}
