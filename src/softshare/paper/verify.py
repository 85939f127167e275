"""Verify runs: decode each file, measure it again, and compare it with the result beside it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from softshare._util.files import read_bytes
from softshare._util.run_folder import MODEL, RESULT, run_files
from softshare.codec import decode, encode
from softshare.config import EncodeConfig
from softshare.errors import ConfigError, NotAvailableError, SoftShareError
from softshare.paper.baselines import published_ratio
from softshare.quantization.description_length import entropy_bits
from softshare.quantization.quantized import QuantizedWeights
from softshare.result import Result, device_name, final_error, load_copy
from softshare.task import Metric, Task
from softshare.zoo.experiments import EXPERIMENTS, get_experiment, make_task

TOLERANCE = 1e-9  # percent points of error; relative for ratios and entropies. Counts must be equal.
_ABSOLUTE, _RELATIVE = ("error_after",), ("ratio", "han_ratio", "entropy_bytes", "published_ratio")


@dataclass(frozen=True)
class Check:
    """The outcome of one run. `differences` is empty if file and result agree."""

    path: str  # of the run, relative to the folder
    file_bytes: int | None  # as found; None if there is no file
    error: float | None  # the value of the metric as measured; None if it could not be
    differences: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    metric: Metric = Metric()
    conditions: tuple[str, ...] = ()  # in which this differs from the recorded measurement: no difference by itself

    @property
    def ok(self) -> bool:
        return not self.differences


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """Every folder that holds a file or a result of a run: this one and those below it."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"expected a folder of runs or results, but there is no folder {folder}")
    found = {path.parent for name in (MODEL, RESULT) for path in run_files(folder, name)}
    if not found:
        raise ConfigError(f"{folder}: expected folders that hold {MODEL} and {RESULT}, found none")
    return sorted(found)


def verify(
    folder: str | os.PathLike[str],
    runs: Iterable[Path] | None = None,
    device: torch.device | str = "cpu",
    data: Path | None = None,
    task: Task | None = None,
) -> Iterator[Check]:
    """Check one run after another, so that the caller can show progress. An experiment's data are loaded once.

    `task` measures the runs that belong to no experiment.
    """
    zoo = _Zoo(device, data, task)
    for run in find_runs(folder) if runs is None else runs:
        yield _check(run, str(run.relative_to(folder)), zoo)


def _check(run: Path, name: str, zoo: _Zoo) -> Check:
    if not (run / MODEL).exists():
        return Check(name, None, None, (f"expected {MODEL} beside {RESULT}, found none",))
    data = read_bytes(run / MODEL)
    if not (run / RESULT).exists():
        return Check(name, len(data), None, (f"expected {RESULT} beside {MODEL}, found none",))
    try:
        result = Result.load(run / RESULT)
    except SoftShareError as problem:
        return Check(name, len(data), None, (str(problem),))
    found: dict[str, Any] = {"file_bytes": len(data), **_place(run)}
    problems: list[str] = []
    not_checked: list[str] = []
    conditions: list[str] = []
    try:
        conditions = _other_conditions(result, zoo.model(result.experiment))
        measured, not_checked = _measure(data, result, zoo)
        found |= measured
    except SoftShareError as problem:
        problems.append(str(problem))
    for k, v in found.items():
        if not _agree(k, getattr(result, k), v):
            how = f" ({'; '.join(conditions)})" if k == "error_after" and conditions else ""
            problems.append(_difference(k, getattr(result, k), v) + how)
    error = found.get("error_after")
    return Check(name, len(data), error, tuple(problems), tuple(not_checked), result.metric, tuple(conditions))


def _place(run: Path) -> dict[str, Any]:
    """The fields that a folder EXPERIMENT/METHOD/seed-N gives a kept result. Other folders give none."""
    experiment, method, name = ("", "", *run.resolve().parts)[-3:]
    seed = name.removeprefix("seed-")
    if experiment not in EXPERIMENTS or not seed.isdecimal():
        return {}
    return {"experiment": experiment, "method": method, "seed": int(seed)}


def _measure(data: bytes, result: Result, zoo: _Zoo) -> tuple[dict[str, Any], list[str]]:
    """The fields of the result that the file gives, and what could not be measured, with the reason."""
    decoded = decode(data, like=zoo.model(result.experiment))
    state, partial = decoded.state_dict(), _drops(result)
    model = load_copy(zoo.model(result.experiment), state, strict=not partial)
    stored = [p for name, p in model.named_parameters() if name in state or not partial]
    n_weights = sum(p.numel() for p in stored)
    found: dict[str, Any] = {
        "n_weights": n_weights,
        "n_nonzero": sum(int(p.count_nonzero()) for p in stored),
        "n_components": decoded.n_components,
        "ratio": 4 * n_weights / len(data),
        "entropy_bytes": entropy_bits(decoded) / 8,
    }
    if result.published_ratio is not None:
        found["published_ratio"] = published_ratio(result.method, decoded)
    not_checked = []
    try:
        han_bytes = _han_bytes(decoded, result)
        found |= {"han_bytes": han_bytes, "han_ratio": 4 * n_weights / han_bytes}
    except ConfigError as problem:
        not_checked.append(f"han_bytes: {problem}")
    try:
        task = zoo.task(result.experiment)
        if task.dataset != result.dataset and result.dataset.startswith(task.dataset.partition(" (")[0]):
            not_checked.append(f"error: it was measured on {result.dataset}, but the data here are {task.dataset}")
        else:
            found |= {"dataset": task.dataset, "metric": task.metric, "error_after": final_error(task, model)}
    except NotAvailableError as problem:
        not_checked.append(f"error: {problem}")
    return found, not_checked


def _drops(result: Result) -> bool:
    """Whether the file leaves out tensors, which only the user's own task has: an experiment's network is untrained."""
    rules = result.config.get("prior", {}).get("rules", ())
    return result.experiment not in EXPERIMENTS and any(rule.get("drop") for rule in rules)


def _han_bytes(decoded: QuantizedWeights, result: Result) -> int:
    """The size in the paper's format, with the names and precisions that the result's config records."""
    try:
        config = EncodeConfig(**result.config["encode"])
    except (KeyError, TypeError, ConfigError) as problem:
        raise ConfigError(f"the result's config does not say how the file was encoded ({problem!r})") from None
    return len(encode(decoded, dataclasses.replace(config, codec="han")))


def _difference(field: str, said: Any, found: Any) -> str:
    return f"{field}: expected {said!r} by the result, got {found!r} from the file"


def _other_conditions(result: Result, model: nn.Module) -> list[str]:
    """What may have changed the rounding since the result was measured, where that is recorded."""
    now = {"device": device_name(model), "threads": torch.get_num_threads(), "torch": torch.__version__}
    then = {"device": result.device, "threads": result.threads, "torch": result.versions.get("torch")}
    return [f"{name} {then[name]} then, {now[name]} now" for name in now if then[name] not in (None, now[name])]


def _agree(field: str, said: Any, found: Any) -> bool:
    if found is None or field not in (*_ABSOLUTE, *_RELATIVE):
        return bool(said == found)
    scale = 1.0 if field in _ABSOLUTE else max(abs(found), 1.0)
    return bool(abs(said - found) <= TOLERANCE * scale)


class _Zoo:
    """The networks seen so far: a fresh model of each and, if its data are here, its task."""

    def __init__(self, device: torch.device | str, data: Path | None, own: Task | None) -> None:
        self.device, self.data, self.own = device, data, own
        self._models: dict[str, nn.Module] = {}
        self._tasks: dict[str, Task | NotAvailableError] = {}

    def model(self, name: str) -> nn.Module:
        if name not in EXPERIMENTS:
            return self._own(name).model
        if name not in self._models:
            with torch.random.fork_rng(devices=[]):
                self._models[name] = get_experiment(name).make_model().to(self.device)
        return self._models[name]

    def task(self, name: str) -> Task:
        if name not in EXPERIMENTS:
            return self._own(name)
        if name not in self._tasks:
            try:
                self._tasks[name] = make_task(name, self.device, data=self.data)
            except NotAvailableError as problem:
                self._tasks[name] = problem
        task = self._tasks[name]
        if isinstance(task, NotAvailableError):
            raise task
        return task

    def _own(self, name: str) -> Task:
        if self.own is None:
            raise ConfigError(f"a run of your own task {name!r}: give --task FILE.py:make_task")
        return self.own
