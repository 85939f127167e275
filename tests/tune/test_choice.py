"""Which trial of a study to take."""

from __future__ import annotations

from softshare.task import Metric
from softshare.tune.choice import by_front, choose
from softshare.tune.trials import Row, with_front


def row(trial: int, error: float | None, n_bytes: int | None, before: float = 1.5, state: str = "complete") -> Row:
    ratio = None if n_bytes is None else 1000 / n_bytes
    return Row(trial, state, "", before, error, n_bytes, ratio, ratio, 1.0, {})


def study(metric: Metric, *rows: Row) -> list[Row]:
    return with_front(rows, metric)


def test_it_is_the_smallest_file_within_the_noise() -> None:
    rows = study(Metric(), row(0, 1.4, 50), row(1, 1.6, 20), row(2, 2.0, 10), row(3, 1.6, 30))
    taken = choose(rows, Metric(), 0.2)
    assert taken is not None
    assert (taken.row.trial, taken.fate) == (1, "kept")
    assert taken.sentence == (
        "Take trial 1: 20 bytes, 50 times smaller. Its validation error 1.50% -> 1.60% is within the noise of 0.20%. "
        "No smaller file is as good."
    )
    unknown = choose(rows, Metric(), None)
    assert unknown is not None
    assert (unknown.row.trial, unknown.fate) == (0, "kept")
    assert "is no worse than before" in unknown.sentence


def test_if_none_is_as_good_it_is_the_nearest() -> None:
    taken = choose(study(Metric(), row(0, 3.0, 50), row(1, 4.0, 20)), Metric(), 0.2)
    assert taken is not None
    assert (taken.row.trial, taken.fate) == (0, "lost")
    assert taken.sentence.startswith("No trial is as good as before. Trial 0: 50 bytes")
    assert choose([row(0, None, None, state="pruned")], Metric(), 0.2) is None


def test_more_may_be_better() -> None:
    metric = Metric("accuracy", "%", higher_is_better=True)
    taken = choose(study(metric, row(0, 98.0, 50, 98.5), row(1, 90.0, 20, 98.5)), metric, 0.6)
    assert taken is not None
    assert (taken.row.trial, taken.fate) == (0, "kept")


def test_the_front_comes_first() -> None:
    rows = study(
        Metric(), row(0, None, None, state="pruned"), row(1, 3.0, 60), row(2, 1.0, 50), row(3, 2.0, 20), row(4, 9.0, 40)
    )
    assert [own.trial for own in by_front(rows)] == [3, 2, 4, 1, 0]
