"""The history of a run in another library's loop: records as the route makes them, for hooks and for the report."""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softshare._util.run_folder import FRAMES
from softshare.compressed import Compressed
from softshare.distributed.group import ALONE, Group
from softshare.distributed.wrap import has_shards
from softshare.errors import NotANumberError
from softshare.prior.prior import MixturePrior
from softshare.report.figures.filters import filter_shapes, kept_filters
from softshare.report.frames import FrameLog
from softshare.task import Metric
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.retrain import record_of
from softshare.train.spared import Spared, spared

LOSS = Metric("loss", "")


class History:
    """One record per look. A validation may come after its look, so hooks see the record when the next step begins.

    The film for the report is taken at once. Of several processes, the first one has the hooks and the film.
    """

    def __init__(
        self,
        model: nn.Module,
        prior: MixturePrior,
        hooks: Sequence[Hook],
        looks: int,
        steps_per_look: int,
        state: Mapping[str, Any] | None = None,
        group: Group = ALONE,
    ) -> None:
        self.model, self.prior, self._group = model, prior, group
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # a trainer may end without a word
        self._film = FrameLog(Path(folder, FRAMES), LOSS, "look")
        self.hooks: list[Hook] = [Spared(self._film), *hooks] if group.is_first else []
        shown = {} if has_shards(model) else filter_shapes(model)
        before = {name: t for name, t in model.state_dict().items() if name in shown}
        self.filters = {name: tensor.detach().cpu().clone() for name, tensor in before.items()}  # as they are now
        self.records: tuple[EpochRecord, ...] = ()
        self._waiting: EpochRecord | None = None
        self._validated = math.nan
        self._sum: Tensor | None = None  # of the training losses since the last look
        self._n = 0
        self._started, self._has_ended = time.perf_counter(), False
        if state:
            self._load(state)
        for hook in self.hooks:
            hook.on_prior(prior)
            hook.on_start(looks, steps_per_look)
        if not state:
            self.look_(0.0, hard=False)

    def note_training_(self, loss: Tensor | float) -> None:
        value = torch.as_tensor(loss).detach().float().mean()
        self._sum, self._n = value if self._sum is None else self._sum.to(value.device) + value, self._n + 1

    def note_validation_(self, loss: Tensor | float) -> None:
        self._validated = float(loss)

    def look_(self, tau: float, hard: bool) -> None:
        """Take a record. The network must have its unquantized weights."""
        self.tell_()
        now, mean = time.perf_counter(), math.nan if self._sum is None else float(self._sum) / self._n
        mean = self._group.mean(mean)
        with suppress(NotANumberError):  # the end of the run says so
            seconds = now - self._started
            self._waiting = record_of(self.prior, len(self.records), seconds, tau, mean, math.nan, hard)
            for film in self.hooks[:1]:
                film.on_epoch(self._waiting)
        self._started, self._sum, self._n = now, None, 0

    def tell_(self) -> None:
        """Show the last record to the user's hooks, with the last validation."""
        if self._waiting is None:
            return
        record = dataclasses.replace(self._waiting, validation_error=self._validated)
        self._waiting, self.records = None, (*self.records, record)
        for hook in self.hooks[1:]:
            hook.on_epoch(record)

    def film(self, compressed: Compressed) -> bytes:
        """The film, which ends with what the file holds; empty if there is none."""
        with spared("the film for the report"):
            self._film.finish(compressed.mixtures, kept_filters(self.model, compressed))
            return self._film.path.read_bytes()
        return b""

    def end_(self) -> None:
        """Training has ended, perhaps by an error."""
        if self._has_ended:
            return
        self._has_ended = True
        self.tell_()
        for hook in self.hooks:
            hook.on_end()

    def state_dict(self) -> dict[str, Any]:
        """All processes must ask for it."""
        if self._sum is not None:
            self._group.sum_(self._sum).div_(self._group.size)  # as if each process had seen the mean of all
        return {
            "records": [vars(record) for record in self.records],
            "waiting": self._waiting and vars(self._waiting),
            "filters": self.filters,
            "validated": self._validated,
            "losses": (self._sum, self._n),
            "hooks": [hook.state_dict() for hook in self.hooks],
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self.records = tuple(EpochRecord(**record) for record in state["records"])
        self._waiting = state["waiting"] and EpochRecord(**state["waiting"])
        self.filters, self._validated = state["filters"], state["validated"]
        self._sum, self._n = state["losses"]
        for hook, own in zip(self.hooks, state["hooks"], strict=False):  # the user may give other hooks now
            hook.load_state_dict(own)
