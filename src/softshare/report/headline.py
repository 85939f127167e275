"""The head of a run's page: the verdict, the figures that matter, and the facts of the run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from softshare._util.printable import printable, shorten
from softshare._util.run_folder import RESULT, finished_folder
from softshare._util.words import duration
from softshare.report.course import run_starts
from softshare.report.ruined import ruined_data, ruined_in_words
from softshare.report.run import Run
from softshare.result import Result
from softshare.target.limits import bound_of, in_unit_of
from softshare.task import Metric
from softshare.verdict import NOT_FOUND, verdict

MOST_RUINED = 8  # lines about layers, where a line may be about a repeated block


@dataclass(frozen=True)
class Lead:
    """What the page opens with. The fate decides about colour and sign."""

    fate: Literal["kept", "lost", "unknown", "live"]
    sentence: str
    warnings: tuple[str, ...] = ()
    share: float | None = None  # of the work, while the run is under way


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    done: int
    total: int
    seconds_left: float | None = None  # None until it can be known
    run: int = 1  # of a search that trains several times

    def text(self, counted: str) -> str:
        of_search = f", training {self.run}" if self.run > 1 else ""
        left = "" if self.seconds_left is None else f", about {duration(self.seconds_left)} left of this training"
        return f"{counted} {self.done} of {self.total}{of_search}{left}"


def lead(run: Run, progress: Progress | None = None) -> Lead:
    warnings = ruined_in_words(ruined_data(run), MOST_RUINED)
    if run.result:
        if not (run.result.outcome or {}).get("met", True):
            warnings.insert(0, NOT_FOUND)
        found = verdict(run.result)
        return Lead(found.fate, printable(found.sentence), tuple(warnings))
    if progress:
        share = progress.done / max(1, progress.total)
        return Lead("live", f"Under way: {progress.text(run.counted)}.", tuple(warnings), share)
    return Lead("unknown", "This run has no result: it is under way, or it was stopped.", tuple(warnings))


def cards(run: Run) -> dict[str, str]:
    """What a number is, and the number."""
    return _finished(run.result) if run.result else _under_way(run)


def _under_way(run: Run) -> dict[str, str]:
    last, metric, starts = run.history[-1], run.metric, run_starts(run.history)
    of_search = f" of training {len(starts)}" if len(starts) > 1 else ""
    return {
        f"{run.counted}{of_search}": f"{last['epoch'] - run.history[starts[-1]]['epoch']:g}",
        f"validation {metric.name}": metric.text(last["validation_error"]),
        "uncoded, estimated by the mixtures": f"{last['complexity_bits'] / 8000:.1f} kB",
        "components in use": f"{last['components_alive']:g}",
    }


def _finished(result: Result) -> dict[str, str]:
    metric = result.metric
    others = {name: " → ".join(map(_plain, pair)) for name, pair in (result.others or {}).items()}
    noise = "" if result.noise is None else f", noise {metric.text(result.noise)}"
    return {
        "bytes": f"{result.file_bytes:,}",
        "times smaller": f"{result.ratio:,.1f}",
        f"{metric.name}{noise}": f"{metric.number(result.error_before)} → {metric.text(result.error_after)}",
        **_validation(result),
        **others,
        "of all weights are not zero": f"{100 * result.n_nonzero / result.n_weights:.2f}%",
        "shared value" + "s" * (result.n_components != 1): f"{result.n_components}",
        **({"of the multiply-adds, shrunk": f"{100 * result.speed.macs_ratio:.3g}%"} if result.speed else {}),
        **_target(result.outcome or {}, metric),
    }


def _validation(result: Result) -> dict[str, str]:
    """Left out without a test set, because the figures are then the same."""
    metric, outcome = result.metric, result.outcome or {}
    before, after, noise = (outcome.get(name) for name in ("before", "after", "noise"))
    if before is None or after is None or noise is None:  # older results do not have them
        return {}
    if (before, after) == (result.error_before, result.error_after):
        return {}
    figures = f"{metric.number(before)} → {metric.text(after)}"
    return {f"validation {metric.name}, noise {metric.text(noise)}": figures}


def _target(outcome: Mapping[str, Any], metric: Metric) -> dict[str, str]:
    """Whether a target is met that is another than to lose nothing."""
    if not outcome.get("target") or outcome["target"].get("kind") == "WithinNoise":
        return {}
    kind = "MaxBytes" if "max_bytes" in outcome["target"] else str(outcome["target"].get("kind"))
    limit, reached = (in_unit_of(kind, metric, outcome[k]) for k in ("limit", "reached"))
    what = "" if kind in ("MaxBytes", "MaxMacs") else f" validation {metric.name}"
    limit = f"{bound_of(kind, metric)} {limit}{what}"
    return {f"target: {limit}; {reached} reached": "met" if outcome["met"] else "not met"}


def facts(run: Run) -> dict[str, str]:
    """What was compressed, on what, for how long, and by which program."""
    result = run.result
    if result is None:
        return {}
    training = result.config.get("retrain", {})
    lengths = [f"{training[name]:,} {name}" for name in ("epochs", "steps") if training.get(name)][:1]
    trainings = len(run_starts(run.history))
    if trainings > 1:
        lengths = [f"{trainings} trainings{f' of {lengths[0]}' if lengths else ''}"]
    count = f", {result.threads} thread{'s' if result.threads != 1 else ''}"
    threads = count if result.threads and result.device == "cpu" else ""
    found = {
        "Network": result.experiment,
        "Data": result.dataset,
        "Method": result.method,
        "Seed": str(result.seed),
        "Training": ", ".join([*lengths, duration(result.seconds)]),
        "Device": f"{result.device}{threads}",
        "Versions": ", ".join(f"{name} {version}" for name, version in sorted(result.versions.items())),
    }
    return {name: said(text) for name, text in found.items()}


def command(run: Run) -> tuple[str, str]:
    """What a command does, and the command: the recorded one, or one that repeats the run from its settings."""
    result = run.result
    if result is None or "retrain" not in result.config:
        return "", ""
    if result.command:
        return "Command", said(result.command, 2000)
    folder = finished_folder(run.folder)
    words = ["softshare", "compress", task_of(result), "--config", str(folder / RESULT)]
    words += ["--out", str(folder.with_name(f"{folder.name}-again"))]
    start = result.config.get("pretrain")
    if isinstance(start, dict) and "sha256" in start:
        words += ["--weights", str(start.get("weights"))]
    return "Repeat it with its settings", said(shlex.join(words), 2000)


def task_of(result: Result) -> str:
    """How the command line names the task. A name that the user has given to a task does not say where that is."""
    known = result.config.get("task") or _pretrained_here(result.config) or ".py:" in result.experiment
    return result.experiment if known else "FILE.py:make_task"


def _pretrained_here(config: Mapping[str, Any]) -> bool:
    """Only an experiment is pre-trained by softshare, or says that it was not."""
    start = config.get("pretrain", {})
    return start is None or (isinstance(start, dict) and "epochs" in start)


def report_command(folder: Path) -> str:
    return said(shlex.join(["softshare", "report", str(finished_folder(folder))]), 2000)


def said(text: str, most: int = 200) -> str:
    """A text from a file as people see it."""
    return shorten(printable(text), most)


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
