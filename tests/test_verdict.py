from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from paths import ROOT
from softshare.result import Result
from softshare.task import Metric
from softshare.verdict import Verdict, verdict

ERROR = Metric()
SCORE = Metric("F1", "", higher_is_better=True)


def of(before: float, after: float, noise: float | None, metric: Metric = ERROR, outcome: Any = None) -> Verdict:
    kept = Result.load(next(iter(sorted((ROOT / "results").rglob("result.json")))))
    return verdict(
        dataclasses.replace(kept, error_before=before, error_after=after, noise=noise, metric=metric, outcome=outcome)
    )


@pytest.mark.parametrize(
    ("before", "after", "noise", "metric", "fate", "sentence"),
    [
        (1.49, 1.70, 0.13, ERROR, "kept", "Kept its accuracy: error 1.49% -> 1.70% is within the noise of the "
         "evaluation, where one standard error is 0.13%."),
        (1.49, 1.30, 0.13, ERROR, "kept", "Kept its accuracy: error 1.49% -> 1.30% is no worse, where one standard "
         "error is 0.13%."),
        (0.33, 10.33, 0.33, ERROR, "lost", "Lost 10.00 points: error 0.33% -> 10.33%, where one standard error is "
         "0.33%."),
        (0.9, 0.5, 0.01, SCORE, "lost", "Lost 0.4 of F1: F1 0.9 -> 0.5, where one standard error is 0.01."),
        (0.9, 0.95, 0.01, SCORE, "kept", "Kept its accuracy: F1 0.9 -> 0.95 is no worse, where one standard error is "
         "0.01."),
        (1.49, 1.70, None, ERROR, "unknown", "Measured: error 1.49% -> 1.70%. How much of that is chance is "
         "not known."),
    ],
)  # fmt: skip
def test_without_validation_data(
    before: float, after: float, noise: float | None, metric: Metric, fate: Any, sentence: str
) -> None:
    assert of(before, after, noise, metric) == Verdict(fate, sentence)


def test_a_loss_on_the_data_that_chose_the_network_counts() -> None:
    said = of(1.5, 1.6, 0.13, outcome={"kept": False, "before": 2.0, "after": 2.5, "noise": 0.2})
    assert said == Verdict(
        "lost",
        "Lost 0.50 points on the validation data: error 2.00% -> 2.50%, where one standard error is 0.20%.",
    )
    assert of(1.5, 1.6, None, outcome={"kept": True}).fate == "kept"
    assert of(1.5, 1.6, 0.13, outcome={"kept": False}) == Verdict("lost", "Lost accuracy on the validation data.")


@pytest.mark.parametrize(
    ("kind", "met", "ending"),
    [
        ("MaxBytes", True, "The target is met."),
        ("MaxBytes", False, "The target is not met."),
        ("WithinNoise", True, ""),
    ],
)
def test_a_target_of_the_users_is_named(kind: str, met: bool, ending: str) -> None:
    said = of(1.5, 4.0, 0.13, outcome={"target": {"kind": kind}, "met": met})
    assert said.fate == "lost"
    assert said.sentence.endswith(f"0.13%. {ending}".rstrip())
