"""Runs of different gentleness from the same network, and the networks that are kept of them."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from torch import Tensor, nn

from softshare.config import CompressConfig
from softshare.prior.prior import MixturePrior
from softshare.target.gentleness import gentler
from softshare.task import Task
from softshare.train.hooks import Hook
from softshare.train.phases import Phases


class Kept(NamedTuple):
    """A network of a run, which ended at this look or was at it."""

    look: int
    prior: MixturePrior
    model_state: dict[str, Any]
    prior_state: dict[str, Any]


class Runs(Hook):
    """Each run trains `task.model` anew, from the weights that it has now."""

    def __init__(self, task: Task, config: CompressConfig) -> None:
        self.task, self.config = task, config
        self.settings, self.prior = config, MixturePrior(task.model, config.prior)  # of the present run
        self.start = 0  # the number of its first record
        self._before = copy.deepcopy(task.model.state_dict())

    def train_(self, phases: Phases, gentleness: float) -> None:
        self.task.model.load_state_dict(self._before)
        self.settings = gentler(self.config, gentleness)
        relative = self.settings.retrain.scaling == "auto"
        self.prior = MixturePrior(self.task.model, self.settings.prior, relative=relative)
        self.start = phases.history[-1].epoch if phases.history else 0
        phases.run(self.settings.retrain, prior=self.prior)

    def kept(self, look: int) -> Kept:
        return Kept(look, self.prior, _on_cpu(self.task.model), _on_cpu(self.prior))

    def restore_(self, kept: Kept) -> MixturePrior:
        """Put a network into the task's model again. Returns its prior."""
        self.task.model.load_state_dict(kept.model_state)
        kept.prior.load_state_dict(kept.prior_state)
        return kept.prior


def _on_cpu(module: nn.Module) -> dict[str, Any]:
    """A copy of the state. Several are kept, for which a GPU may have no room."""
    return {name: v.cpu().clone() if isinstance(v, Tensor) else v for name, v in module.state_dict().items()}
