from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from paths import ROOT
from softshare.result import Result
from softshare.summary import as_text, facts
from softshare.task import Metric
from softshare.verdict import Verdict, harmed, verdict

ERROR = Metric()
PERPLEXITY = Metric("perplexity", "")
SCORE = Metric("F1", "", higher_is_better=True)


def result(before: float, after: float, noise: float | None, metric: Metric = ERROR, outcome: Any = None) -> Result:
    kept = Result.load(next(iter(sorted((ROOT / "results").rglob("result.json")))))
    return dataclasses.replace(
        kept, error_before=before, error_after=after, noise=noise, metric=metric, outcome=outcome
    )


def of(before: float, after: float, noise: float | None, metric: Metric = ERROR, outcome: Any = None) -> Verdict:
    return verdict(result(before, after, noise, metric, outcome))


@pytest.mark.parametrize(
    ("before", "after", "noise", "metric", "fate", "sentence"),
    [
        (1.49, 1.70, 0.13, ERROR, "kept", "Kept its accuracy: error 1.49% -> 1.70% is within the noise of the "
         "evaluation, where one standard error is 0.13%."),
        (1.49, 1.30, 0.13, ERROR, "kept", "Kept its accuracy: error 1.49% -> 1.30% is no worse, where one standard "
         "error is 0.13%."),
        (0.33, 10.33, 0.33, ERROR, "lost", "Lost 10.00 points: error 0.33% -> 10.33%, where one standard error is "
         "0.33%."),
        (0.9, 0.5, 0.01, SCORE, "lost", "Got worse by 0.4: F1 0.9 -> 0.5, where one standard error is 0.01."),
        (0.9, 0.95, 0.01, SCORE, "kept", "As good as before: F1 0.9 -> 0.95 is no worse, where one standard error is "
         "0.01."),
        (20.5, 24.0, 0.5, PERPLEXITY, "lost", "Got worse by 3.5: perplexity 20.5 -> 24, where one standard error is "
         "0.5."),
        (1.49, 1.70, None, ERROR, "unknown", "Measured: error 1.49% -> 1.70%. How much of that is chance is "
         "not known."),
    ],
)  # fmt: skip
def test_without_validation_data(
    before: float, after: float, noise: float | None, metric: Metric, fate: Any, sentence: str
) -> None:
    assert of(before, after, noise, metric) == Verdict(fate, sentence)


@pytest.mark.parametrize("noise", [None, 0.13, 0.01])
def test_the_summary_fits_a_terminal(noise: float | None) -> None:
    found = result(1.49, 1.70, noise)
    said, _, rows = as_text(found).partition("\n  ")
    assert said.replace("\n", " ") == verdict(found).sentence
    assert all(len(line) <= 80 for line in said.splitlines())
    assert [row.split()[0] for row in rows.splitlines()] == [*facts(found), "time"]


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


def test_a_broken_network_is_called_so() -> None:
    lost = {"broken": True, "kept": False, "before": 2.0, "after": 90.0, "noise": 0.2}
    assert of(2.0, 90.0, 0.1, outcome=lost).sentence.startswith("The network is broken. Lost 88.00 points: error 2.00%")
    assert of(2.0, 2.1, 0.1, outcome=lost).sentence.startswith("The network is broken. Lost 88.00 points on the valid")


@pytest.mark.parametrize(
    ("kind", "limit", "after", "expected"),
    [
        ("WithinNoise", 1.25, 1.7, False),  # two standard errors above 1.5
        ("WithinNoise", 1.25, 1.71, True),
        ("MaxErrorIncrease", 2.0, 2.69, False),  # 1 is allowed
        ("MaxErrorIncrease", 2.0, 2.71, True),
        ("MaxError", 0.5, 1.7, False),  # the network before was above the limit
        ("MaxBytes", 900, 60.0, False),
        ("MaxMacs", 0.5, 60.0, False),
        (None, None, 60.0, False),
    ],
)
def test_a_loss_on_the_test_data_that_nobody_allowed(kind: Any, limit: Any, after: float, expected: bool) -> None:
    """One standard error is 0.1, and the network before has 1.5% on test data and 1.0% on validation data."""
    target = kind and {"kind": kind}
    outcome = {"target": target, "limit": limit, "before": 1.0, "after": 1.0, "met": True, "kept": True}
    assert harmed(result(1.5, after, 0.1, outcome=outcome)) == expected
    assert harmed(result(1.5, after, None, outcome=outcome)) is False  # nobody knows
    assert harmed(result(1.5, after, 0.1, outcome={**outcome, "broken": True}))


def test_of_a_score_less_is_a_loss() -> None:
    outcome = {"target": {"kind": "MaxErrorIncrease"}, "limit": 0.85, "before": 0.9, "met": True}
    assert not harmed(result(0.92, 0.86, 0.01, SCORE, outcome))
    assert harmed(result(0.92, 0.84, 0.01, SCORE, outcome))


def test_without_an_outcome_nothing_was_promised() -> None:
    assert not harmed(result(1.5, 60.0, 0.1))
