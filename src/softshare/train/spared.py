"""What watches or draws a run must not end it: an error there costs a message, never the network."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from softshare.errors import SoftShareError
from softshare.prior.prior import MixturePrior
from softshare.train.hooks import EpochRecord, Hook

if TYPE_CHECKING:  # they live above training
    from softshare.compressed import Compressed
    from softshare.result import Result

Say = Callable[[str], None]


def warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


@contextlib.contextmanager
def spared(what: str, say: Say = warn, then: str = "The run goes on without it") -> Iterator[None]:
    """Turn an error in the block into a message."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, SoftShareError) else f"{type(error).__name__}: "
        say(f"{what} failed ({kind}{error}). {then}")


class Spared(Hook):
    """Calls a hook, and says once if it fails. The next call may succeed: a full disk is emptied, a folder is back."""

    def __init__(self, hook: Hook, say: Say = warn) -> None:
        self.hook, self.say = hook, say
        self._is_said = False

    def _call(self, method: Callable[[], None]) -> None:
        if self._is_said:
            with contextlib.suppress(Exception):
                method()
            return
        self._is_said = True
        with spared(type(self.hook).__name__, self.say):
            method()
            self._is_said = False

    def on_prior(self, prior: MixturePrior | None) -> None:
        self._call(lambda: self.hook.on_prior(prior))

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self._call(lambda: self.hook.on_start(epochs, steps_per_epoch))

    def on_step(self, epoch: int, step: int) -> None:
        self._call(lambda: self.hook.on_step(epoch, step))

    def on_epoch(self, record: EpochRecord) -> None:
        self._call(lambda: self.hook.on_epoch(record))

    def on_return(self, epoch: int) -> None:
        self._call(lambda: self.hook.on_return(epoch))

    def on_end(self) -> None:
        self._call(self.hook.on_end)

    def on_result(self, compressed: Compressed, result: Result) -> None:
        self._call(lambda: self.hook.on_result(compressed, result))

    def state_dict(self) -> dict[str, Any]:
        return self.hook.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._call(lambda: self.hook.load_state_dict(state))
