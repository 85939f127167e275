"""The head of the page: the verdict and the facts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from report_runs import compress
from softshare.report.headline import Progress, cards, command, facts, lead
from softshare.report.page import render_page
from softshare.report.run import Run
from softshare.result import Result
from softshare.verdict import NOT_FOUND, verdict


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.load(compress(tmp_path_factory.mktemp("head")))


def changed(run: Run, **values: Any) -> Run:
    assert run.result is not None
    return dataclasses.replace(run, result=dataclasses.replace(run.result, **values))


@pytest.mark.parametrize(
    ("after", "noise", "fate"), [(10.0, 1.0, "kept"), (20.0, 1.0, "lost"), (20.0, None, "unknown")]
)
def test_the_page_opens_with_the_verdict(run: Run, after: float, noise: float | None, fate: str) -> None:
    own = changed(run, error_before=10.0, error_after=after, noise=noise, outcome=None)
    assert own.result is not None
    found = lead(own)
    assert (found.fate, found.sentence) == (fate, verdict(own.result).sentence)
    header = render_page(own, {}).partition("</header>")[0]
    assert f'<div class="lead {fate}"' in header
    assert found.sentence.replace(">", "&gt;") in header
    assert header.index("lead") < header.index("cards")


def test_the_facts_are_those_of_the_result(run: Run) -> None:
    own = changed(run, seed=7, seconds=754.0, device="cpu", threads=3, versions={"torch": "1", "python": "2"})
    found = facts(own)
    assert found["Network"] == "<i>small"
    assert found["Data"] == "made up"
    assert (found["Seed"], found["Training"], found["Device"]) == ("7", "4 epochs, 13 min", "cpu, 3 threads")
    assert found["Versions"] == "python 2, torch 1"
    assert facts(dataclasses.replace(run, result=None)) == {}
    assert facts(changed(run, device="cpu", threads=1))["Device"] == "cpu, 1 thread"


def config_of(result: Result | None, **more: Any) -> dict[str, Any]:
    assert result is not None
    return {**result.config, **more}


def test_the_command_is_the_recorded_one_or_repeats_the_run(run: Run) -> None:
    run = dataclasses.replace(run, folder=Path("runs/a b"))
    again = "--config 'runs/a b/result.json' --out 'runs/a b-again'"
    for name, more, words in (
        ("<i>small", {}, f"softshare compress FILE.py:make_task {again}"),  # it does not say where that is
        ("net.py:task", {}, f"softshare compress net.py:task {again}"),
        ("lenet", {"pretrain": {"epochs": 3}}, f"softshare compress lenet {again}"),
        ("lenet", {"pretrain": None}, f"softshare compress lenet {again}"),
        (
            "net.py:task",
            {"pretrain": {"weights": "w.safetensors", "sha256": "0"}},
            f"softshare compress net.py:task {again} --weights w.safetensors",
        ),
    ):
        own = changed(run, experiment=name, config=config_of(run.result, **more), command=None)
        assert command(own)[1] == words
    assert command(changed(run, command="softshare compress lenet --tau 1")) == (
        "Command",
        "softshare compress lenet --tau 1",
    )
    assert command(changed(run, config={})) == ("", "")  # a rival has no such settings
    assert command(dataclasses.replace(run, result=None)) == ("", "")


def test_names_that_would_deceive_are_escaped(run: Run) -> None:
    own = changed(run, experiment="a\u202eb\x1b[31m", dataset="<script>", device="x" * 900, command="<script>\u202e")
    found = facts(own)
    assert found["Network"] == "a\\u202eb\\x1b[31m"
    assert len(found["Device"]) == 200
    page = render_page(own, {})
    assert "<script>" not in page.partition("</header>")[0]
    assert "\u202e" not in page.partition("<main")[0]


def test_an_older_result_has_a_page(run: Run) -> None:
    old = changed(run, outcome=None, noise=None, threads=None, others=None, config={}, versions={})
    history = tuple({name: v for name, v in row.items() if name != "hard"} for row in run.history)
    page = render_page(dataclasses.replace(old, history=history, frames=None, info=None), {})
    assert '<div class="lead unknown"' in page


def test_a_run_that_was_stopped_says_so(run: Run) -> None:
    found = lead(dataclasses.replace(run, result=None, folder=Path("runs/.a.unfinished")))
    assert (found.fate, found.sentence) == ("unknown", "This run has no result: it is under way, or it was stopped.")
    assert dataclasses.replace(run, result=None, folder=Path("runs/.a.unfinished")).name == "a"


def test_progress_in_words() -> None:
    assert Progress(0, 30).text("epoch") == "epoch 0 of 30"
    assert Progress(3, 30, 95).text("look") == "look 3 of 30, about 95 s left of this training"
    assert (
        Progress(3, 30, 9000, run=2).text("epoch")
        == "epoch 3 of 30, training 2, about 2 h 30 min left of this training"
    )


def of_search(run: Run) -> Run:
    """The same as if a first training of four epochs had come before."""
    later = tuple(row | {"epoch": row["epoch"] + 4} for row in run.history)
    return dataclasses.replace(run, history=(*run.history, *later))


def test_a_search_says_how_many_trainings_it_took(run: Run) -> None:
    steps = config_of(run.result, retrain={"steps": 1500})
    for own, training in (
        (of_search(changed(run, seconds=240.0)), "2 trainings of 4 epochs, 4 min"),
        (of_search(changed(run, seconds=240.0, config=steps)), "2 trainings of 1,500 steps, 4 min"),
        (of_search(changed(run, seconds=240.0, config={})), "2 trainings, 4 min"),
        (changed(run, seconds=240.0, config=steps), "1,500 steps, 4 min"),
    ):
        assert facts(own)["Training"] == training


def test_the_card_of_a_search_counts_as_its_progress_does(run: Run) -> None:
    begun = dataclasses.replace(of_search(run), result=None)
    begun = dataclasses.replace(begun, history=begun.history[:-1])
    assert cards(begun)["epoch of training 2"] == "3"
    assert lead(begun, Progress(3, 4, run=2)).sentence == "Under way: epoch 3 of 4, training 2."
    assert cards(dataclasses.replace(run, result=None))["epoch"] == "4"
    assert "uncoded, estimated by the mixtures" in cards(begun)


@pytest.mark.parametrize("target", [{"kind": "WithinNoise"}, {"kind": "MaxBytes", "max_bytes": 9}])
def test_a_target_that_is_not_met_is_said_as_in_the_terminal(run: Run, target: dict[str, Any]) -> None:
    outcome = {"target": target, "limit": 9, "reached": 10, "met": False, "kept": False}
    own = changed(run, outcome=outcome)
    assert lead(own).warnings == (NOT_FOUND,)
    assert NOT_FOUND in render_page(own, {}).partition("</header>")[0]
    assert lead(changed(run, outcome={**outcome, "met": True})).warnings == ()
