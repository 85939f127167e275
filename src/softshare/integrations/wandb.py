"""Weights & Biases: the history, the result and the settings of a run, and the file as an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softshare.integrations.log import Log, Numbers
from softshare.task import Metric


class WandbLog(Log):
    """Starts a run with `settings`, those of `wandb.init`, and finishes it when the result is there.

    Without settings, a run that `wandb.init` has started is used, and left open.
    """

    package = "wandb"

    def __init__(self, metric: Metric | None = None, **settings: Any) -> None:
        super().__init__(metric)
        self.settings = settings
        self._run: Any = None
        self._is_own = True
        self._id: str | None = None  # of a run that goes on
        self._step = 0  # W&B's own count of what was logged

    def open_(self) -> None:
        import wandb

        if self._run is not None:
            return
        if wandb.run is not None and not self.settings:
            self._run, self._is_own = wandb.run, False
        else:
            again = {"id": self._id, "resume": "allow"} if self._id else {}
            self._run = wandb.init(**{"reinit": "create_new", **self.settings, **again})
            self._step = self._step if again else self._run.step
        self._id = self._run.id
        self._run.define_metric("epoch", hidden=True)
        self._run.define_metric("*", step_metric="epoch")  # W&B's own steps must rise, and a search may repeat an epoch

    def log(self, values: Numbers, epoch: int) -> None:
        if self._is_own:  # a run that goes on counts on from its checkpoint: W&B offline would count from 0
            self._run.log({**values, "epoch": epoch}, step=self._step)
            self._step += 1
        else:
            self._run.log({**values, "epoch": epoch})

    def finish(self, values: Numbers, sentence: str, settings: Mapping[str, Any], file: Path) -> None:
        import wandb

        self._run.config.update(dict(settings), allow_val_change=True)
        self._run.summary.update({**values, "verdict": sentence})
        artifact = wandb.Artifact(f"softshare-{self._run.id}", type="model", description=sentence)
        artifact.add_file(str(file))
        self._run.log_artifact(artifact)
        if self._is_own:
            self._run.finish()
        self._run = self._id = None

    def state_dict(self) -> dict[str, Any]:
        return {"id": self._id, "step": self._step} if self._id and self._is_own else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._id, self._step = state.get("id"), state.get("step", 0)
