"""Runs of different gentleness from the same network, and the networks that are kept of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from softshare.config import CompressConfig
from softshare.distributed.wrap import restore_, state_of
from softshare.network.groups import Group
from softshare.prior.prior import MixturePrior
from softshare.target.gentleness import gentler
from softshare.task import Task
from softshare.train.hooks import Hook
from softshare.train.phases import Phases


class Kept(NamedTuple):
    """The network of a run at a look."""

    gentleness: float
    look: int
    model_state: dict[str, Any]
    prior_state: dict[str, Any]


class Runs(Hook):
    """Each run trains `task.model` from the weights that it has now. `steer` gives the settings of a run."""

    def __init__(
        self,
        task: Task,
        config: CompressConfig,
        groups: Sequence[Group] = (),
        steer: Callable[[CompressConfig, float], CompressConfig] = gentler,
    ) -> None:
        self.task, self.config, self.groups, self.steer = task, config, groups, steer
        self.gentleness = 0.0  # of the present run; then its settings, its prior and the number of its first record
        self.settings, self.prior = config, MixturePrior(task.model, config.prior)
        self.start = 0
        self._before = state_of(task.model)

    def train_(self, phases: Phases) -> None:
        """A run of the present gentleness. One that was stopped goes on."""
        self.prior = self._prior_of(self.gentleness)
        phases.run(self.settings.retrain, prior=self.prior)

    def begin(self, phases: Phases, gentleness: float) -> None:
        """The next run is a new one."""
        self.gentleness = gentleness
        self.start = phases.history[-1].epoch if phases.history else 0

    def _prior_of(self, gentleness: float) -> MixturePrior:
        """The prior at the start of a run, with the network as it was before."""
        restore_(self.task.model, self._before)
        self.settings = self.steer(self.config, gentleness)
        return prior_of(self.task, self.settings, self.groups)

    def kept(self, look: int) -> Kept:
        return Kept(self.gentleness, look, _on_cpu(self.task.model), _on_cpu(self.prior))

    def restore_(self, kept: Kept) -> MixturePrior:
        """Put a network into the task's model again. Returns its prior."""
        prior = self._prior_of(kept.gentleness)
        restore_(self.task.model, kept.model_state)
        prior.load_state_dict(kept.prior_state)
        return prior

    def state_dict(self) -> dict[str, Any]:
        return {"gentleness": self.gentleness, "start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gentleness, self.start = state["gentleness"], state["start"]


def prior_of(task: Task, config: CompressConfig, groups: Sequence[Group]) -> MixturePrior:
    """The prior of a run, with the network as it is now."""
    return MixturePrior(task.model, config.prior, relative=config.retrain.scaling == "auto", groups=groups)


def _on_cpu(module: nn.Module) -> dict[str, Any]:
    """A copy of the state. Several are kept, for which a GPU may have no room."""
    return {name: v.cpu() if isinstance(v, Tensor) else v for name, v in state_of(module).items()}
