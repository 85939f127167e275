from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.panel import Panel

import softshare as ss
from cli_results import RESULT
from softshare._util.words import duration, sizes
from softshare.cli.console import SafeConsole
from softshare.cli.summary import LATER, after_a_file, after_a_run, checkpoint_panel, result_panel
from softshare.result import Result
from softshare.simplify.speed import Speed
from softshare.task import Metric
from softshare.verdict import NOT_FOUND, verdict


def panel(result: Result, alarms: list[str] | None = None, width: int = 80) -> list[str]:
    return render(result_panel(result, verdict(result), 61.5, alarms or []), width)


def render(found: Panel, width: int = 80) -> list[str]:
    """The lines within the frame."""
    file = io.StringIO()
    SafeConsole(width=width, file=file, markup=False).print(found)
    lines = file.getvalue().splitlines()
    assert {len(line) for line in lines} == {width}
    return [line.strip("│ ").rstrip() for line in lines[1:-1]]


@pytest.mark.parametrize("width", [80, 120])
def test_the_verdict_comes_first(width: int) -> None:
    lines = panel(dataclasses.replace(RESULT, noise=0.14), width=width)
    at = lines.index("")
    assert " ".join(lines[:at]) == verdict(dataclasses.replace(RESULT, noise=0.14)).sentence
    assert lines[at + 1 :] == [
        "lenet-300-100 on MNIST",
        "error  1.89% -> 1.94% (noise 0.14%)",
        "bytes  1,066,440 -> 12,345 (86.4 times smaller)",
        "time   62 s",
    ]


@pytest.mark.parametrize(
    ("noise", "after", "colour"), [(0.14, 1.9351, "green"), (0.14, 5.0, "red"), (None, 1.9351, "none")]
)
def test_its_colour_is_the_fate(noise: float | None, after: float, colour: str) -> None:
    result = dataclasses.replace(RESULT, noise=noise, error_after=after)
    assert result_panel(result, verdict(result), 1.0).border_style == colour


@pytest.mark.parametrize(
    ("target", "limit", "reached", "metric", "text"),
    [
        ({"kind": "MaxBytes"}, 12_000, 12_345, Metric(), "target  at most 12,000 bytes, reached 12,345 bytes"),
        (
            {"kind": "MaxMacs"},
            0.5,
            0.481,
            Metric("F1", "", True),
            "target  at most 50.0% of the multiply-adds",
        ),
        ({"kind": "MaxError"}, 2.0, 1.9, Metric(), "target  at most 2.00%, reached 1.90% on validation data"),
        ({"kind": "MaxErrorIncrease"}, 0.5, 0.4, Metric("F1", "", True), "target  at least 0.5, reached 0.4 on vali"),
        ({"kind": "WithinNoise"}, 2.0, 1.9, Metric(), ""),
        (None, None, 1.9, Metric(), ""),
    ],
)
def test_a_target_of_the_users(target: Any, limit: Any, reached: float, metric: Metric, text: str) -> None:
    outcome = {"target": target, "limit": limit, "reached": reached, "met": True}
    lines = panel(dataclasses.replace(RESULT, outcome=outcome, metric=metric, noise=0.1))
    found = [line for line in lines if line.startswith("target")]
    assert len(found) == bool(text)
    assert all(line.startswith(text) for line in found)


@pytest.mark.parametrize("met", [True, False])
def test_a_target_that_is_not_met_is_said_in_red(met: bool) -> None:
    """Also if the network kept its accuracy, which is green."""
    outcome = {"target": {"kind": "MaxError"}, "limit": 0.5, "reached": 1.9, "met": met}
    result = dataclasses.replace(RESULT, outcome=outcome, noise=0.14)
    assert (NOT_FOUND in " ".join(panel(result))) == (not met)
    assert result_panel(result, verdict(result), 1.0).border_style == "green"


def test_other_measures_and_odd_names() -> None:
    others = {"loss": [0.123456, None], "[F1]": [0.5, 0.25]}
    result = dataclasses.replace(RESULT, others=others, experiment="/home/a/b/net.py:make_task", dataset="custom")
    text = panel(result)
    assert "loss   0.1235 -> -" in text
    assert "[F1]   0.5 -> 0.25" in text
    assert "net.py:make_task" in text  # without the folder
    assert "org/net" in panel(dataclasses.replace(result, experiment="org/net"))


def test_a_network_that_can_be_shrunk_says_what_that_saves() -> None:
    result = dataclasses.replace(RESULT, speed=Speed(1000, 250, 900, 23, ()))
    assert "shrunk  needs 2.56% of the multiply-adds (softshare export --shrunk)" in panel(result)


def test_a_dead_layer_is_red_and_many_are_few_lines() -> None:
    dead = [f"layers.{k}.weight is all zero." for k in range(10)]
    lines = panel(RESULT, dead)
    assert [line for line in lines if "layers" in line] == [
        *dead[:3],
        LATER,
        "To keep such layers, lower tau, zeroing or zero_mixing.",
    ]
    file = io.StringIO()
    console = SafeConsole(width=80, file=file, force_terminal=True, color_system="standard")
    console.print(result_panel(RESULT, verdict(RESULT), 1.0, dead))
    assert "\x1b[1;31mlayers.0.weight" in file.getvalue()


def test_what_to_do_next() -> None:
    assert after_a_run(Path("my runs/a"), Path("my runs/a/model.sws")).plain.splitlines() == [
        "See how it came about:    softshare report 'my runs/a'",
        "See what is in the file:  softshare inspect 'my runs/a/model.sws'",
        "Load it in Python:        softshare.load_into_(model, 'my runs/a/model.sws')",
    ]
    assert len(after_a_file(Path("m.sws")).plain.splitlines()) == 2
    assert after_a_file(Path("d.sws"), Path("a b.pt")).plain.endswith("load_into_(model, 'd.sws', base='a b.pt')")


def test_what_batches_have_shown_is_said() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    fitted = ss.quantize(model, bits=4, calibrate=[torch.randn(256, 64)])
    lines = render(checkpoint_panel(fitted, Path("m.pt"), 2.0))
    assert "Only the outputs on the batches were measured" in " ".join(lines)
    assert fitted.output_error is not None
    assert f"outputs  off by {100 * fitted.output_error:.2g}% on the batches" in lines


def test_a_checkpoint_has_its_size_and_its_ratio_before_and_after() -> None:
    torch.manual_seed(0)
    state = {"a.weight": torch.randn(40, 30, dtype=torch.float64).bfloat16(), "a.bias": torch.randn(40)}
    fitted = ss.compress_weights(state, weight_error=0.1)
    assert fitted.original_bytes == 2 * 1200 + 4 * 40
    assert fitted.ratio == fitted.original_bytes / len(fitted.data)
    lines = render(checkpoint_panel(fitted, Path("runs/m.safetensors"), 2.0))
    times = f"{fitted.ratio:.1f} times smaller"
    assert lines[0] == f"{times}. Nothing was measured: test the network before you use it."
    assert lines[2:4] == ["m.safetensors", f"bytes    2,560 -> {len(fitted.data)} ({times})"]


def test_a_file_that_is_larger_says_so() -> None:
    assert sizes(100, 40) == "100 -> 40 (2.5 times smaller)"
    assert sizes(70_000, 50) == "70,000 -> 50 (1,400.0 times smaller)"
    assert sizes(100, 150) == "100 -> 150 (1.5 times larger)"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (99.4, "99 s"), (100, "2 min"), (5990, "1 h 40 min"), (7199, "2 h 0 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
