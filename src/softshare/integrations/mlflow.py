"""MLflow: the history, the result and the settings of a run, and the file as an artifact."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softshare.integrations.log import Log, Numbers, flat
from softshare.task import Metric

MOST_METRICS, MOST_PARAMS = 1000, 100  # in one call, as a server takes them
MOST_CHARACTERS = 6000  # of a setting


class MlflowLog(Log):
    """Makes a run of `experiment`, on the server or in the file that MLflow's own settings name.

    Without `experiment` and `run_name`, a run that `mlflow.start_run` has started is used, and left open.
    """

    package = "mlflow"

    def __init__(
        self, experiment: str | None = None, run_name: str | None = None, metric: Metric | None = None
    ) -> None:
        super().__init__(metric)
        self.experiment, self.run_name = experiment, run_name
        self._client: Any = None
        self._id: str | None = None
        self._is_own = True

    def open_(self) -> None:
        import mlflow

        self._client = self._client or mlflow.MlflowClient()
        if self._id is not None:
            return
        active = mlflow.active_run()
        if active is not None and self.experiment is None and self.run_name is None:
            self._id, self._is_own = active.info.run_id, False
            return
        name = self.experiment or "Default"
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        self._id = self._client.create_run(experiment, run_name=self.run_name).info.run_id

    def log(self, values: Numbers, epoch: int) -> None:
        from mlflow.entities import Metric as Point

        now = int(time.time() * 1000)
        points = [Point(_name(name), value, now, epoch) for name, value in values.items()]
        for start in range(0, len(points), MOST_METRICS):
            self._client.log_batch(self._id, metrics=points[start : start + MOST_METRICS])

    def finish(self, values: Numbers, sentence: str, settings: Mapping[str, Any], file: Path) -> None:
        from mlflow.entities import Param

        self.log(values, self._epoch)
        self._client.set_tag(self._id, "verdict", sentence)
        self._client.log_artifact(self._id, str(file))
        params = [Param(_name(name), value[:MOST_CHARACTERS]) for name, value in flat(settings)]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._id, params=params[start : start + MOST_PARAMS])
        self._id = None

    def close(self) -> None:
        if self._id is not None and self._is_own:
            self._client.set_terminated(self._id)  # numbers and files may still be added

    def state_dict(self) -> dict[str, Any]:
        return {"id": self._id} if self._id and self._is_own else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._id = state.get("id")


def _name(text: str) -> str:
    """The name with only those characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", text)
