"""The batches of a run: whole passes, or a number of steps that may be many passes or a part of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from softshare._util.user_code import batches as batches_of
from softshare._util.user_code import length_of
from softshare.config import RetrainConfig
from softshare.errors import ConfigError
from softshare.task import examples_in


class Supply:
    """Hands out the batches from one look at the run to the next."""

    def __init__(self, batches: Iterable[Any], config: RetrainConfig) -> None:
        self._batches, self._config = batches, config
        self._per_pass = length_of(batches)  # None until the first pass has ended
        self._rows = 1  # of the last batch
        self._stream = self.endless()

    @property
    def steps_per_look(self) -> int | None:
        return self._per_pass if self._config.epochs else -(-self._config.steps // self._config.looks)

    def until(self, look: int) -> Iterator[tuple[Any, float]]:
        """The batches up to this look, counted from 1, each with the share of the run that is done before it."""
        if self._config.epochs:
            yield from self._pass(look, self._config.epochs)
            return
        steps, looks = self._config.steps, self._config.looks
        for step in range(steps * (look - 1) // looks, steps * look // looks):
            yield next(self._stream), step / steps

    def _pass(self, epoch: int, epochs: int) -> Iterator[tuple[Any, float]]:
        n = 0
        for n, batch in enumerate(batches_of(self._batches), start=1):
            yield batch, (epoch - 1 + (n - 1) / max(n, self._per_pass or 0)) / epochs
        self._end_pass(n, epoch)

    def endless(self) -> Iterator[Any]:
        """Pass after pass."""
        epoch = 0
        while True:
            epoch, n = epoch + 1, 0
            for batch in batches_of(self._batches):
                n += 1
                self._rows = examples_in(batch) or 1
                yield batch
            self._end_pass(n, epoch)

    def _end_pass(self, n: int, epoch: int) -> None:
        if n == 0:
            when = "" if epoch == 1 else f" in pass {epoch}"
            raise ConfigError(
                f"Task.train: expected at least one batch, got none{when}. It must give its batches each time it is "
                "iterated"
            )
        self._per_pass = n

    def batch_size(self, n_examples: int) -> float:
        """The mean over a pass; before one has ended, if the batches have no length, that of the last batch."""
        return n_examples / self._per_pass if self._per_pass else self._rows
