"""What training tells whoever watches: the record of an epoch, and the hooks that are called as it goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from softshare.prior.prior import MixturePrior


@dataclass(frozen=True)
class EpochRecord:
    """One line of the history. Bits and components are those of the network if it were quantized now, unmerged."""

    epoch: int  # 0 is the state before the first step
    seconds: float
    tau: float
    task_loss: float  # mean over the epoch, in nats
    prior_loss: float  # -log p(w, theta), in nats; a density, so it may be negative
    complexity_bits: float  # bits to name every weight's component under the mixture
    validation_error: float  # percent, of the network as it is; in the hard phase, as everything there, quantized
    components_alive: int  # components that are the most responsible for some weight, zero included, of all mixtures
    density: dict[str, float] = field(default_factory=dict)  # share of non-zero weights of each shared tensor


class Hook:
    """What may be done while training goes on; every method does nothing unless overridden."""

    def on_prior(self, prior: MixturePrior | None) -> None:
        """Called first: the prior that training is under and changes in place, if any."""

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None: ...

    def on_step(self, epoch: int, step: int) -> None: ...

    def on_epoch(self, record: EpochRecord) -> None: ...

    def on_return(self, epoch: int) -> None:
        """Called where a target takes the network of an earlier epoch: it and the prior are again as they were then."""

    def on_end(self) -> None:
        """Called last, after an error too."""


Hooks = Callable[[str], Sequence[Hook]]  # from a training's title to the hooks it runs with


def no_hooks(title: str) -> Sequence[Hook]:
    return ()


def say_nothing(text: str) -> None: ...
