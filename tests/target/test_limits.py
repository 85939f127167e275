"""Targets and what came of them: their limits, their words, and what is recorded."""

from __future__ import annotations

import dataclasses
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

import softshare as ss
from softshare.cli.settings import recorded_target
from softshare.errors import ConfigError
from softshare.target.limits import check_target, default_target, limit_of
from softshare.train.first_look import FirstLook

ERROR, LOSS, ACCURACY = ss.Metric(), ss.Metric("loss", ""), ss.Metric("accuracy", "%", True)
TARGETS = [None, ss.WithinNoise(), ss.MaxBytes(900), ss.MaxError(3.0), ss.MaxErrorIncrease(0.5), ss.MaxMacs(0.5)]


def outcome(target: ss.Target | None, limit: float, after: float, metric: ss.Metric = ERROR) -> ss.Outcome:
    """Of a network with an error of 2%, or an accuracy of 98%, and a noise of 0.4%. The file has 1,000 bytes."""
    ratio = 0.25 if isinstance(target, ss.MaxMacs) else None
    return ss.Outcome(target, metric, 98.0 if metric.higher_is_better else 2.0, after, 0.4, limit, 1000, ratio)


@pytest.mark.parametrize(
    ("make", "value"),
    [
        *((ss.MaxBytes, value) for value in (0, 1e4, True)),
        *((ss.MaxError, value) for value in (math.inf, math.nan, "2", True)),
        *((ss.MaxErrorIncrease, value) for value in (-0.1, math.inf, math.nan, False, "2")),
        *((ss.MaxMacs, value) for value in (0, 1.0, 50, math.nan, True, "0.5")),
    ],
)
def test_bad_targets(make: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{make.__name__}: expected .*, got {value!r}"):
        make(value)


def test_a_metric_may_be_negative() -> None:
    assert ss.MaxError(-3).max_error == -3


def test_the_limit_of_each_target() -> None:
    limits = []
    for metric, before in ((ERROR, 2.0), (ACCURACY, 98.0)):
        task = ss.Task(nn.Linear(2, 2), [], lambda m, b: m(b), lambda m: 0.0, 1, metric=metric)
        limits.append([limit_of(target, task, FirstLook(before, 0.25)) for target in TARGETS])
    assert limits == [[math.inf, 2.25, 900, 3.0, 2.5, 0.5], [-math.inf, 97.75, 900, 3.0, 97.5, 0.5]]


def test_the_default_target_needs_a_hard_phase_and_zeroing() -> None:
    assert default_target(ss.CompressConfig()) == ss.WithinNoise()
    for config in (ss.CompressConfig.paper(), ss.CompressConfig().override(zeroing=0.0)):
        assert default_target(config) is None
        with pytest.raises(ConfigError, match="expected hard_from below 1 and zeroing above 0"):
            check_target(ss.WithinNoise(), config)


@pytest.mark.parametrize(
    ("target", "limit", "metric", "after", "met", "kept"),
    [
        (None, math.inf, ERROR, 90.0, True, False),
        (None, math.inf, ERROR, math.inf, True, False),
        (None, -math.inf, ACCURACY, 97.7, True, True),
        (ss.WithinNoise(), 2.4, ERROR, 2.4, True, True),
        (ss.WithinNoise(), 2.4, ERROR, 2.5, False, False),
        (ss.WithinNoise(), 97.6, ACCURACY, 97.6, True, True),
        (ss.WithinNoise(), 97.6, ACCURACY, 97.5, False, False),
        (ss.WithinNoise(), 97.6, ACCURACY, 99.0, True, True),
        (ss.MaxBytes(1000), 1000, ERROR, 50.0, True, False),
        (ss.MaxBytes(999), 999, ACCURACY, 98.0, False, True),
        (ss.MaxMacs(0.25), 0.25, ACCURACY, 50.0, True, False),
        (ss.MaxMacs(0.24), 0.24, ERROR, 2.0, False, True),
        (ss.MaxError(3.0), 3.0, ERROR, 3.0, True, False),
        (ss.MaxError(3.0), 3.0, ERROR, 3.1, False, False),
        (ss.MaxError(99.0), 99.0, ACCURACY, 98.0, False, True),
        (ss.MaxErrorIncrease(0.5), 2.5, ERROR, 2.5, True, False),
        (ss.MaxErrorIncrease(0.5), 97.5, ACCURACY, 97.0, False, False),
    ],
)
def test_whether_a_target_is_met_and_the_accuracy_kept(
    target: ss.Target | None, limit: float, metric: ss.Metric, after: float, met: bool, kept: bool
) -> None:
    found = outcome(target, limit, after, metric)
    assert found.lost == pytest.approx(98 - after if metric.higher_is_better else after - 2)
    assert (found.met, found.kept) == (met, kept)
    assert found.reached == (1000 if isinstance(target, ss.MaxBytes) else 0.25 if found.macs_ratio else after)


NOISE = "now on validation data, where the noise is 0.40%"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (outcome(None, math.inf, 2.3), f"kept its accuracy: error 2.00% before, 2.30% {NOISE}"),
        (outcome(None, math.inf, 5.0), f"lost 3.00%: error 2.00% before, 5.00% {NOISE}"),
        (outcome(None, math.inf, 2.3, LOSS), "as good as before: loss 2 before, 2.3 " + NOISE.replace("0.40%", "0.4")),
        (outcome(None, math.inf, 5.0, LOSS), "got worse by 3: loss 2 before, 5 " + NOISE.replace("0.40%", "0.4")),
        (outcome(ss.WithinNoise(), 2.4, 1.5), f"kept its accuracy: error 2.00% before, 1.50% {NOISE}"),
        (
            outcome(ss.WithinNoise(), 97.6, 90.0, ACCURACY),
            "no network without a loss was found, and the nearest lost 8.00%: accuracy 98.00% before, 90.00% " + NOISE,
        ),
        (
            outcome(ss.MaxBytes(1200), 1200, 2.0),
            "target met: 1,000 bytes, at most 1,200 bytes allowed; kept its accuracy: "
            f"error 2.00% before, 2.00% {NOISE}",
        ),
        (
            outcome(ss.MaxMacs(0.2), 0.2, 98.0, ACCURACY),
            "target not met: at most 20.0% of the multiply-adds allowed, the nearest that was found has 25.0% of the "
            f"multiply-adds; kept its accuracy: accuracy 98.00% before, 98.00% {NOISE}",
        ),
        (
            outcome(ss.MaxError(97.0), 97.0, 97.1, ACCURACY),
            "target met: 97.10%, at least 97.00% allowed; lost 0.90%: accuracy 98.00% before, 97.10% " + NOISE,
        ),
        (
            outcome(ss.MaxErrorIncrease(0.5), 2.5, 3.0),
            "target not met: at most 2.50% allowed, the nearest that was found has 3.00%; lost 1.00%: "
            f"error 2.00% before, 3.00% {NOISE}",
        ),
    ],
)
def test_the_words(found: ss.Outcome, words: str) -> None:
    assert str(found) == words


def test_a_broken_network_is_called_so() -> None:
    found = dataclasses.replace(outcome(None, math.inf, 90.0), broken=True)
    assert str(found) == f"broken, lost 88.00%: error 2.00% before, 90.00% {NOISE}"
    assert found.to_dict()["broken"] is True


def test_a_noise_that_is_a_guess_is_called_so() -> None:
    found = dataclasses.replace(outcome(None, math.inf, 2.3), guessed=True)
    assert str(found) == f"kept its accuracy: error 2.00% before, 2.30% {NOISE} (a guess)"
    assert found.to_dict()["guessed"] is True


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_a_recorded_target_is_read_back(target: ss.Target | None) -> None:
    """Through JSON, as a result keeps it."""
    found = outcome(target, math.inf if target is None else 3.0, 2.5)
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert recorded_target(SimpleNamespace(outcome=values)) == target  # type: ignore[arg-type]
    assert values["limit"] == (None if target is None else 3.0)
    assert {name: values[name] for name in ("before", "after", "noise")} == {"before": 2.0, "after": 2.5, "noise": 0.4}
    assert (values["met"], values["kept"], values["reached"]) == (found.met, found.kept, found.reached)


def test_results_without_the_kind_of_their_target_are_read() -> None:
    """As they were recorded before there were more than bytes and errors."""
    old: list[tuple[Any, ss.Target | None]] = [
        (None, None),
        ({"target": {"max_bytes": 900}}, ss.MaxBytes(900)),
        ({"target": {"max_error": 2.5}}, ss.MaxError(2.5)),
        ({"target": {"max_error_increase": 0.5}}, ss.MaxErrorIncrease(0.5)),
    ]
    for values, target in old:
        assert recorded_target(SimpleNamespace(outcome=values)) == target  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a target of `softshare compress` in the result"):
        recorded_target(SimpleNamespace(outcome={"target": {"kind": "Other"}}))  # type: ignore[arg-type]


def test_an_outcome_is_a_value() -> None:
    assert outcome(None, math.inf, 2.0) == dataclasses.replace(outcome(None, math.inf, 3.0), after=2.0)
