"""Where the hard phase was, and when a layer died."""

from __future__ import annotations

import pytest

from softshare.report.course import died, hard_spans, is_hard, run_starts


def rows(*epochs: float, **columns: list[float]) -> list[dict[str, float]]:
    return [{"epoch": e, **{name: column[k] for name, column in columns.items()}} for k, e in enumerate(epochs)]


def test_the_history_says_which_phase_it_was() -> None:
    history = rows(0, 1, 2, 3, hard=[0, 0, 1, 1])
    assert is_hard(history, {"hard_from": 0.9}) == [False, False, True, True]
    assert list(hard_spans(history, [False, False, True, True])) == [(1, 3)]


@pytest.mark.parametrize(("hard_from", "first"), [(0.0, 1), (0.2, 3), (0.5, 6), (1.0, None)])
def test_an_older_history_follows_its_settings(hard_from: float, first: int | None) -> None:
    found = is_hard(rows(*range(11)), {"hard_from": hard_from})
    assert found == [first is not None and k >= first for k in range(11)]


def test_without_settings_nothing_is_claimed() -> None:
    assert is_hard(rows(0, 1, 2), {}) == [False, False, False]
    assert is_hard([], {}) == []


def test_each_run_of_a_search_has_its_phases() -> None:
    history = rows(0, 1, 2, 2, 3, 4)
    assert run_starts(history) == [0, 3]
    found = is_hard(history, {"hard_from": 0.5})
    assert found == [False, False, True, False, False, True]
    assert list(hard_spans(history, found)) == [(1, 2), (3, 4)]
    assert list(hard_spans(history, [True] * 6)) == [(0, 2), (2, 4)]


def test_a_tensor_dies_when_its_last_zeros_begin() -> None:
    columns: dict[str, list[float]] = {"density/w": [0, 0.5, 0, 0], "density/v": [1, 1, 1, 1]}
    history = rows(0, 1, 2, 3, **columns)
    assert died(history, "w") == 2
    assert died(history, "w", last=2) == 2
    assert died(history, "w", last=1) is None
    assert died(history, "v") is None
    assert died(history, "unknown") is None
