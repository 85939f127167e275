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
    """One line of the history, after each epoch or look:

        for record in compressed.history:
            print(record.epoch, record.task_loss, record.validation_error)

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
    """What to do during training. Override the methods that you need; the others do nothing:

        class Printer(softshare.Hook):
            def on_epoch(self, record):
                print(record.epoch, record.validation_error)

        softshare.compress(task, hooks=[Printer()])

    A run calls `on_prior`, `on_start`, and `on_epoch` for the state before training. Then it calls `on_step` after each
    optimizer step, and `on_epoch` after each epoch or look. The search for a target may have several runs. `on_end` and
    `on_result` come once, at the end of all runs. An error in a method ends the run, except in `on_result`: there it is
    a warning.
    """

    def on_prior(self, prior: MixturePrior | None) -> None:
        """Called at the start of each run, before `on_start`.

        Args:
            prior: which training changes in place, with the mixtures over the weights; None if there is none.
        """

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        """Called before the first step of each run. A search has several runs, whose epochs are numbered on.

        Args:
            epochs: of the run, or its looks if its length is in steps.
            steps_per_epoch: optimizer steps in each of them; None if the training data has no length.
        """

    def on_step(self, epoch: int, step: int) -> None:
        """Called after each optimizer step.

        Args:
            epoch: or look that the step belongs to. The first is 1.
            step: its number within the epoch. The first is 1.
        """

    def on_epoch(self, record: EpochRecord) -> None:
        """Called after each epoch or look, and once before the first step.

        Args:
            record: what is known then. Its validation error is that of the quantized network in the hard phase.
        """

    def on_return(self, epoch: int) -> None:
        """Called if the target takes the network of an earlier epoch, after `on_prior` with the prior of then.

        Args:
            epoch: or look, by its number in the records.
        """

    def on_end(self) -> None:
        """Called when training ends, even after an error."""

    def on_result(self, compressed: Compressed, result: Result) -> None:
        """Called last, when the network is measured.

        Args:
            compressed: the network as it will be written.
            result: what was measured of it.
        """

    def state_dict(self) -> dict[str, Any]:
        """Called when a checkpoint of the run is written.

        Returns:
            What a run that goes on needs of this hook: numbers, texts, tensors, and lists and dicts of them.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called before all others in a run that goes on. The first `on_epoch` is then that of the next record.

        Args:
            state: what `state_dict` returned.
        """


class StopPhaseError(Exception):
    """Raised by a hook in `on_epoch` to end the present training."""


Hooks = Callable[[str], Sequence[Hook]]  # from a training's title to its hooks


def no_hooks(title: str) -> Sequence[Hook]:
    return ()


def say_nothing(text: str) -> None: ...
