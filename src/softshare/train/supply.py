"""The batches of a run: whole passes, or a number of steps that may be many passes or a part of one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from softshare._util.user_code import batches as batches_of
from softshare._util.user_code import length_of
from softshare.config import RetrainConfig
from softshare.errors import ConfigError
from softshare.task import examples_in
from softshare.train.random_state import generators_of, random_state, set_random_state

SEEN = 4096  # values of a tensor that tell its batch from another


class Supply:
    """Hands out the batches from one look at the run to the next."""

    def __init__(self, batches: Iterable[Any], config: RetrainConfig) -> None:
        self._batches, self._config = batches, config
        self._per_pass = length_of(batches)  # None until the first pass has ended
        self._rows = 1  # of the last batch
        self._stream = self.endless()
        self._pass, self._done = 0, 0  # the present pass, and the batches of it that were handed out
        self._iterator: Iterator[Any] | None = None  # of the present pass
        self._start: dict[str, Any] = {}  # the random states at its start
        self._first = ""  # what its first batch was, before anybody changed it
        self.differs = False  # whether a run that goes on did not get the batches again that it had

    @property
    def steps_per_look(self) -> int | None:
        return self._per_pass if self._config.epochs else -(-self._config.steps // self._config.looks)

    def until(self, look: int, done: int = 0) -> Iterator[tuple[Any, float]]:
        """The batches up to this look, counted from 1, each with the share of the run that is done before it.

        Of the batches since the look before, `done` were handed out already, to a run that was stopped.
        """
        if epochs := self._config.epochs:
            for batch in self._present_pass():
                n = self._done
                yield batch, (look - 1 + (n - 1) / max(n, self._per_pass or 0)) / epochs
            return
        steps, looks = self._config.steps, self._config.looks
        for step in range(steps * (look - 1) // looks + done, steps * look // looks):
            yield next(self._stream), step / steps

    def endless(self) -> Iterator[Any]:
        """Pass after pass."""
        while True:
            yield from self._present_pass()

    def _present_pass(self) -> Iterator[Any]:
        """A new pass, or what is left of one that is under way."""
        if self._iterator is None:
            self._begin_pass()
        assert self._iterator is not None
        for batch in self._iterator:
            self._done += 1
            self._rows = examples_in(batch) or 1
            if self._done == 1:
                self._first = _digest(batch)
            yield batch
        self._iterator = None
        if self._done == 0:
            when = "" if self._pass == 1 else f" in pass {self._pass}"
            raise ConfigError(
                f"Task.train: expected at least one batch, got none{when}. It must give its batches each time it is "
                "iterated"
            )
        self._per_pass = self._done

    def _begin_pass(self) -> None:
        self._pass, self._done = self._pass + 1, 0
        set_epoch = getattr(getattr(self._batches, "sampler", None), "set_epoch", None)
        if callable(set_epoch):  # a DistributedSampler has another order in each pass only if it is told the pass
            set_epoch(self._pass)
        self._start = {**random_state(), "own": self._own()}
        self._iterator = iter(batches_of(self._batches))

    def _own(self) -> list[Tensor]:
        """The states of the generators that the batches have of their own."""
        return [generator.get_state() for generator in generators_of(self._batches)]

    def _set_own(self, states: list[Tensor]) -> None:
        for generator, state in zip(generators_of(self._batches), states, strict=False):  # another loader may have none
            generator.set_state(state)

    def state_dict(self) -> dict[str, Any]:
        return {
            "pass": self._pass,
            "done": self._done,
            "per_pass": self._per_pass,
            "rows": self._rows,
            "start": self._start if self._iterator is not None else None,
            "own": self._own(),
            "first": self._first,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A pass that was under way is begun as it was then, and its first batches are passed over.

        This draws random numbers.
        """
        self._pass, self._per_pass, self._rows = state["pass"], state["per_pass"], state["rows"]
        if state["start"] is None:
            self._set_own(state["own"])
            return
        n = length_of(self._batches)
        if self._per_pass is not None and n not in (None, self._per_pass):
            raise ConfigError(
                f"Task.train: expected {self._per_pass} batches in a pass, as in the run that was stopped, got {n}. On "
                "another number of processes, keep the batch of all of them together"
            )
        set_random_state(state["start"])
        self._set_own(state["start"]["own"])
        self._pass -= 1
        self._begin_pass()
        assert self._iterator is not None
        for self._done in range(1, state["done"] + 1):
            batch = next(self._iterator)
            if self._done == 1:
                self._first = _digest(batch)
        self.differs = self._first != state["first"]

    def batch_size(self, n_examples: int) -> float:
        """The mean over a pass; before one has ended, if the batches have no length, that of the last batch."""
        return n_examples / self._per_pass if self._per_pass else self._rows


def _digest(batch: Any) -> str:
    """Of the first values of each tensor in a batch: a pass may be one batch, and that the whole data."""
    found = hashlib.sha256()
    for leaf in tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch):
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
            part = leaf.detach().reshape(-1)[:SEEN].cpu().contiguous()
            found.update(part.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
