from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from softshare.config import Range
from softshare.errors import NotAvailableError
from softshare.report.style import styled, to_png, to_svg
from softshare.task import Metric
from softshare.tune.plots import Others, Points, draw_front, draw_settings, front_data, loss_label, settings_data
from softshare.tune.study_folder import write_summary
from softshare.tune.trials import Row, with_front

SPACE = {"tau": Range(0.001, 0.1, log=True), "hard_from": Range(0.0, 0.5)}


def row(trial: int, error: float, ratio: float, han: float, tau: float, hard: float, state: str = "complete") -> Row:
    settings = {"tau": tau, "hard_from": hard}
    return Row(trial, state, "", 1.5, error, round(1_066_440 / ratio), ratio, han, 9.0, settings)


STOPPED = Row(3, "pruned", "diverged", None, None, None, None, None, None, {"tau": 0.1, "hard_from": 0.0})
ROWS = with_front(
    [
        row(0, 2.0, 200.0, 150.0, 0.01, 0.5),
        row(1, 1.75, 100.0, 90.0, 0.001, 0.25),
        row(2, 2.25, 180.0, 160.0, 0.1, 0.0),  # beaten as a file, not in the paper's format
        STOPPED,
        row(4, 9.0, 900.0, 700.0, 0.1, 0.0, state="pruned"),
    ],
    Metric(),
)
ROWS[1] = dataclasses.replace(ROWS[1], test_error_before=1.6, test_error=1.9)


OTHERS = Others(file={"them": [(74.0, 0.46), (108.0, 0.75)]}, paper={"the paper": [(64.0, 0.05)]})


def flat(points: Points) -> list[float]:
    return [value for point in points for value in point]


def test_a_point_a_trial_in_each_accounting() -> None:
    data = front_data("net", ROWS, Others(), Metric())
    assert data.order == [0, 1, 2]
    assert data.file.trials == [(200.0, 0.5), (100.0, 0.25), (180.0, 0.75)]
    assert data.paper.trials == [(150.0, 0.5), (90.0, 0.25), (160.0, 0.75)]
    assert data.file.pruned == [(900.0, 7.5)]
    assert flat(data.file.tested) == pytest.approx([100, 0.3])


def test_each_accounting_has_its_own_front() -> None:
    data = front_data("net", ROWS, Others(), Metric())
    assert flat(data.file.front) == pytest.approx([200, 0.5, 100, 0.25])
    assert flat(data.paper.front) == pytest.approx([160, 0.75, 150, 0.5, 90, 0.25])


def test_published_figures_stand_only_beside_their_like() -> None:
    data = front_data("net", ROWS, OTHERS, Metric())
    assert data.file.published == OTHERS.file
    assert data.paper.published == OTHERS.paper
    assert "real bytes" in data.file.label
    assert "estimated bits" in data.paper.label
    alone = front_data("net", ROWS, Others(), Metric())
    assert alone.file.published == alone.paper.published == {}
    assert "others" not in alone.file.label + alone.paper.label


def test_the_settings_of_complete_trials_by_their_place_in_the_range() -> None:
    data = settings_data("net", ROWS, SPACE, Metric())
    assert data.names == ["tau", "hard_from"]
    assert [p for line in data.lines for p in line] == pytest.approx([0.5, 1, 0, 0.5, 1, 0])
    assert data.on_front == [True, True, False]
    assert [c for pair in data.correlations for c in pair] == pytest.approx([1, -0.5, -0.5, -0.5])
    assert data.chance == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("others", [Others(), OTHERS], ids=["alone", "beside others"])
def test_both_are_drawn(others: Others) -> None:
    for figure in (
        draw_front(front_data("net", ROWS, others, Metric())),
        draw_settings(settings_data("net", ROWS, SPACE, Metric())),
    ):
        assert to_png(figure).startswith(b"\x89PNG")
        assert to_svg(figure, "").startswith("<?xml")


def test_no_legend_covers_a_point() -> None:
    front, settings = (
        draw_front(front_data("net", ROWS, OTHERS, Metric())),
        draw_settings(settings_data("net", ROWS, SPACE, Metric())),
    )
    for figure in (front, settings):
        figure.draw_without_rendering()  # lays it out
        legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
        assert legends
        for legend in legends:
            for axes in figure.axes:
                assert not legend.get_window_extent().overlaps(axes.get_window_extent())


@pytest.mark.slow
def test_a_single_trial_can_be_drawn() -> None:
    one = with_front([ROWS[0]], Metric())
    assert to_png(draw_front(front_data("net", one, Others(), Metric()))).startswith(b"\x89PNG")
    assert to_png(draw_settings(settings_data("net", one, SPACE, Metric()))).startswith(b"\x89PNG")
    assert all(math.isfinite(place) for place in settings_data("net", one, SPACE, Metric()).lines[0])


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotAvailableError, match=r"pip install 'softshare\[report\]'"):
        draw_front(front_data("net", ROWS, Others(), Metric()))


def test_what_is_lost_of_another_metric() -> None:
    """A trial that loses accuracy is as far up as one whose error rises by as much."""
    accuracy = Metric("accuracy", "%", higher_is_better=True)
    turned = [
        dataclasses.replace(
            row,
            **{name: 100 - value for name in FIGURES if (value := getattr(row, name)) is not None},
        )
        for row in ROWS
    ]
    ours, theirs = front_data("net", turned, Others(), accuracy), front_data("net", ROWS, Others(), Metric())
    for mine, other in ((ours.file, theirs.file), (ours.paper, theirs.paper)):
        for name in ("trials", "pruned", "front", "tested"):
            assert flat(getattr(mine, name)) == pytest.approx(flat(getattr(other, name)))
    assert (ours.loss, theirs.loss) == ("accuracy lost, percent points", "accuracy lost, percent points")
    assert loss_label(Metric("PSNR", "dB", higher_is_better=True)) == "PSNR lost, dB"
    assert loss_label(Metric("loss", "")) == "rise of the loss"
    settings = settings_data("net", turned, SPACE, accuracy)
    assert settings.metric == "accuracy"
    assert "with the accuracy" in to_svg(draw_settings(settings), "s")


FIGURES = ("validation_error_before", "validation_error", "test_error_before", "test_error")


def test_names_with_dollars_are_no_formulas(tmp_path: Path) -> None:
    """matplotlib read such a metric as a formula, and a study ended in a traceback after its last trial."""
    odd = Metric("$\\frac{$ loss", "$x$_{")
    write_summary(ROWS, tmp_path, "$\\bad$ <net>", SPACE, OTHERS, odd)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["front.png", "settings.png", "summary.csv"]
    with styled():
        svg = to_svg(draw_front(front_data("$\\bad$ <net>", ROWS, OTHERS, odd)), "x")
    assert "$\\bad$ &lt;net&gt;" in svg
