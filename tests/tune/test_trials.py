from __future__ import annotations

import csv
import dataclasses
import io
import math
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from softshare.errors import NotAvailableError
from softshare.task import Metric
from softshare.tune.trials import Row, chance, front, rank_correlations, to_csv, with_front


def row(trial: int, error: float | None, n_bytes: int | None, state: str = "complete", **settings: float) -> Row:
    ratio = None if n_bytes is None else 1000 / n_bytes
    return Row(trial, state, "", 1.5, error, n_bytes, ratio, ratio, 2.5, settings)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=12))
def test_the_front_is_what_no_other_beats(values: list[tuple[int, int]]) -> None:
    rows = with_front([row(k, float(error), n) for k, (error, n) in enumerate(values)], Metric())
    for one in rows:
        beaten = any(
            (e, n) != (one.validation_error, one.file_bytes)
            and e <= (one.validation_error or 0)
            and n <= (one.file_bytes or 0)
            for e, n in values
        )
        twin = any(
            (other.validation_error, other.file_bytes) == (one.validation_error, one.file_bytes)
            for other in rows[: one.trial]
        )
        assert one.on_front == (not beaten and not twin)
    sizes = [one.file_bytes for one in front(rows)]
    assert sizes == sorted(sizes, key=lambda n: n or 0)


def test_the_front_of_a_metric_that_should_be_high() -> None:
    accuracy = Metric("accuracy", "%", higher_is_better=True)
    rows = with_front([row(0, 90.0, 10), row(1, 95.0, 20), row(2, 92.0, 30), row(3, 80.0, 10)], accuracy)
    assert [one.on_front for one in rows] == [True, True, False, False]


def test_pruned_trials_are_on_no_front() -> None:
    rows = with_front(
        [row(0, 2.0, 100), row(1, 50.0, 10, state="pruned"), row(2, None, None, state="pruned")], Metric()
    )
    assert [one.on_front for one in rows] == [True, False, False]
    assert front(with_front([row(0, 50.0, 10, state="pruned")], Metric())) == []


def test_the_table() -> None:
    rows = with_front(
        [row(0, 2.0, 100, tau=0.05, components=4), row(1, None, None, "pruned", tau=1 / 3, components=8)], Metric()
    )
    rows[1] = dataclasses.replace(rows[1], reason='diverged, "nan"')
    read = list(csv.DictReader(io.StringIO(to_csv(rows).decode())))
    assert [r["trial"] for r in read] == ["0", "1"]
    assert (
        read[0] | {"state": "complete", "file_bytes": "100", "ratio": "10", "on_front": "True", "tau": "0.05"}
        == read[0]
    )
    assert read[1] | {"reason": 'diverged, "nan"', "file_bytes": "", "tau": "0.333333", "components": "8"} == read[1]


def test_rank_correlations_are_spearmans() -> None:
    draw = random.Random(0)
    rows = [
        row(
            k,
            float(draw.randint(1, 5)),
            draw.randint(1, 500),
            tau=draw.random(),
            components=draw.randint(1, 3),
            width=1.0,
        )
        for k in range(30)
    ]
    rows.append(row(30, 99.0, 1, state="pruned", tau=5.0, components=1, width=2.0))  # has no part
    found = rank_correlations(rows)
    assert list(found) == ["tau", "components", "width"]
    for name in ("tau", "components"):
        for place, figure in enumerate(("validation_error", "file_bytes")):
            xs, ys = [r.settings[name] for r in rows[:30]], [getattr(r, figure) for r in rows[:30]]
            assert found[name][place] == pytest.approx(spearmanr(xs, ys).statistic)
    assert found["width"] == (0.0, 0.0)  # it was the same throughout
    assert rank_correlations([]) == {}


def test_without_scipy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(NotAvailableError, match=r"scipy: pip install 'softshare\[tune\]'"):
        rank_correlations([row(0, 2.0, 100, tau=0.05)])


def test_what_chance_gives() -> None:
    draw = random.Random(1)
    n, inside = 40, 0
    for _ in range(400):
        rows = [row(k, draw.random() + 0.1, 1, tau=draw.random()) for k in range(n)]
        inside += abs(rank_correlations(rows)["tau"][0]) < chance(n)
    assert inside / 400 == pytest.approx(0.95, abs=0.03)
    assert chance(1) == chance(2) == 1.0
    assert math.isclose(chance(101), 0.196)
