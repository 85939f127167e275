"""What became of a network, in one sentence. The terminal, the report, notebooks and callbacks say it alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from softshare.result import Result
from softshare.target.limits import kept_in_words
from softshare.task import Metric

BROKEN = "The network is broken. "
NOT_FOUND = "No network within the target was found. This is the nearest. Try more --steps or another target."
BEYOND = 2.0  # standard errors: a smaller loss on the test set may be chance, which nothing was chosen by


@dataclass(frozen=True)
class Verdict:
    """`fate` decides about a colour and a sign; `sentence` says why."""

    fate: Literal["kept", "lost", "unknown"]
    sentence: str


def verdict(result: Result) -> Verdict:
    """Kept, unless the validation data or the test data show a loss.

    The run was chosen by its validation data, so there it must be within the noise (one standard error). The test data
    have decided nothing: there a loss counts if it is more than `BEYOND` standard errors.
    """
    metric, outcome = result.metric, result.outcome or {}
    lost, noise = metric.loss(result.error_before, result.error_after), result.noise
    figures = f"{metric.name} {metric.text(result.error_before)} -> {metric.text(result.error_after)}"
    if noise is None and "kept" not in outcome:
        return Verdict("unknown", f"Measured: {figures}. How much of that is chance is not known.")
    broken = BROKEN if outcome.get("broken") else ""
    if noise is not None and lost > BEYOND * noise:
        return Verdict("lost", f"{broken}{_lost(metric, lost)}: {figures}{_chance(metric, noise)}.{_target(outcome)}")
    if not outcome.get("kept", True):
        return Verdict("lost", f"{broken}{_of_validation(metric, outcome, noise)}{_target(outcome)}")
    how = "is no worse" if lost <= 0 else "is within the noise of the evaluation"
    kept = kept_in_words(metric).capitalize()
    return Verdict("kept", f"{kept}: {figures} {how}{_chance(metric, noise)}.{_target(outcome)}")


def harmed(result: Result) -> bool:
    """Whether the network is broken, or lost more on the test data than chance explains and than was allowed.

    A limit on the metric allows what it allows on validation data. A limit on the size, or none, allows any loss.
    """
    metric, outcome = result.metric, result.outcome or {}
    kind = (outcome.get("target") or {}).get("kind")
    limit, before, noise = outcome.get("limit"), outcome.get("before"), result.noise
    if outcome.get("broken"):
        return True
    if kind not in ("WithinNoise", "MaxError", "MaxErrorIncrease") or limit is None or before is None or noise is None:
        return False
    allowed = 0.0 if kind == "WithinNoise" else max(0.0, metric.loss(before, limit))
    return metric.loss(result.error_before, result.error_after) > allowed + BEYOND * noise


def _of_validation(metric: Metric, outcome: Mapping[str, Any], noise: float | None) -> str:
    before, after = outcome.get("before"), outcome.get("after")
    if before is None or after is None:
        return "Lost accuracy on the validation data."
    figures = f"{metric.name} {metric.text(before)} -> {metric.text(after)}"
    own = outcome.get("noise")
    chance = _chance(metric, own) if noise is not None or own is None else f", where {metric.text(own)} may be chance"
    return f"{_lost(metric, metric.loss(before, after))} on the validation data: {figures}{chance}."


def _lost(metric: Metric, lost: float) -> str:
    """A percentage has lost points. A loss of more loss would be read as a gain, so others got worse."""
    return f"Lost {metric.number(lost)} points" if metric.unit == "%" else f"Got worse by {metric.text(lost)}"


def _chance(metric: Metric, noise: float | None) -> str:
    return "" if noise is None else f", where one standard error is {metric.text(noise)}"


def _target(outcome: Mapping[str, Any]) -> str:
    """Of a target that the user gave. That of nothing lost is the verdict itself."""
    target = outcome.get("target")
    if target is None or target.get("kind") == "WithinNoise":
        return ""
    return " The target is met." if outcome.get("met") else " The target is not met."
