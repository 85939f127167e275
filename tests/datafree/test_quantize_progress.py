"""`quantize` says how far it is, in every way that it has."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import softshare as ss
from softshare._util import work_stages
from softshare.errors import ConfigError

TENSORS = "3 of 3 tensors"


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 4))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(32, 16, generator=g), torch.randint(0, 4, (32,), generator=g)) for _ in range(4)]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    terminal = Console(file=file, force_terminal=True, width=100, color_system=None, legacy_windows=False)
    monkeypatch.setattr(work_stages, "Console", lambda **_: terminal)
    return file


def ended(file: io.StringIO) -> dict[str, str]:
    """The last state of every stage, in order."""
    text = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", file.getvalue())
    return dict(re.findall(r"([a-z][\w :]*?)  (\d+ of \d+ \w+)", text))


WAYS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "error": ({}, {"read": TENSORS, "quantize": TENSORS}),
    "bits": ({"bits": 5}, {"read": TENSORS, "quantize": TENSORS}),
    "lossless": ({"lossless": True}, {"store": "6 of 6 tensors"}),
    "refine": (
        {"bits": 5, "calibrate": batches(), "loss": nn.CrossEntropyLoss(), "refine": 3},
        {
            "measure the loss": "1 of 1 batches",
            "follow the inputs": "3 of 3 batches",
            "calibrate": TENSORS,
            "refine": "3 of 3 steps",
        },
    ),
    "loss": (
        {"loss_increase": 0.5, "calibrate": batches(), "loss": nn.CrossEntropyLoss()},
        {"try 1 of at most 6: calibrate": TENSORS, "try 1 of at most 6: measure the loss": "1 of 1 batches"},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_stage_is_shown_to_its_end(way: str, screen: io.StringIO) -> None:
    given, expected = WAYS[way]
    ss.quantize(net(), **given)
    found = ended(screen)
    assert {name: found.get(name) for name in expected} == expected
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h")


def test_quiet_shows_nothing_and_writes_the_same_file(screen: io.StringIO) -> None:
    loud = ss.quantize(net(), bits=5)
    written = screen.getvalue()
    assert written
    assert ss.quantize(net(), bits=5, quiet=True).data == loud.data
    assert screen.getvalue() == written


def test_a_pipe_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    ss.quantize(net(), bits=5)
    assert capfd.readouterr() == ("", "")


def test_quiet_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match=r"quiet: expected True or False, got 'yes'"):
        ss.quantize(net(), quiet="yes")  # type: ignore[arg-type]
