"""How to watch training: the record of an epoch, and the hooks that training calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from softshare.prior.prior import MixturePrior

if TYPE_CHECKING:  # they live above training
    from softshare.compressed import Compressed
    from softshare.result import Result


@dataclass(frozen=True)
class EpochRecord:
    """One line of the history, after each epoch or look.

    Bits and components are those of the network quantized at that time, without merging.
    """

    epoch: int  # or look, if the length of the run is in steps; 0 is the state before the first step
    seconds: float
    tau: float
    task_loss: float  # mean over the epoch
    prior_loss: float  # -log p(w, theta), in nats; a density, so it may be negative
    complexity_bits: float  # bits to name every weight's component under the mixture
    validation_error: float  # the task's metric; in the hard phase it is that of the quantized network
    components_alive: int  # of all mixtures: components that are most responsible for some weight, zero included
    density: dict[str, float] = field(default_factory=dict)  # share of non-zero weights in each shared tensor
    hard: bool = False  # whether it was in the hard phase


class Hook:
    """What to do during training. Every method does nothing unless overridden."""

    def on_prior(self, prior: MixturePrior | None) -> None:
        """Called first, with the prior that training changes in place, if there is one."""

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        """Called before each run. A search has several, whose epochs are numbered on."""

    def on_step(self, epoch: int, step: int) -> None:
        """Called after each optimizer step."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Called after each epoch or look, and once before the first, with what is known then."""

    def on_return(self, epoch: int) -> None:
        """Called if a target takes the network of an earlier epoch, after `on_prior` with its prior."""

    def on_end(self) -> None:
        """Called when training ends, even after an error."""

    def on_result(self, compressed: Compressed, result: Result) -> None:
        """Called last, with the network as it will be written and what was measured of it."""

    def state_dict(self) -> dict[str, Any]:
        """What a run that is stopped and goes on must keep of this hook: numbers, texts, tensors, and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called before all others in a run that goes on, whose first `on_epoch` is that of the next record."""


class StopPhaseError(Exception):
    """Raised by a hook in `on_epoch` to end the present training."""


Hooks = Callable[[str], Sequence[Hook]]  # from a training's title to its hooks


def no_hooks(title: str) -> Sequence[Hook]:
    return ()


def say_nothing(text: str) -> None: ...
