"""Hooks that fail do not end a run."""

from __future__ import annotations

from typing import Any

import pytest

from softshare.cli.spared import spared, spared_hook
from softshare.errors import ConfigError
from softshare.train.hooks import Hook

CALLS: dict[str, tuple[Any, ...]] = {
    "on_prior": (None,),
    "on_start": (3, 4),
    "on_step": (1, 2),
    "on_epoch": (object(),),
    "on_return": (1,),
    "on_end": (),
    "on_result": (object(), object()),
}


class Recorder(Hook):
    """Notes every call, and fails in those that are named."""

    def __init__(self, *failing: str) -> None:
        self.calls: list[tuple[Any, ...]] = []
        for name in CALLS:
            setattr(self, name, self._noting(name, name in failing))

    def _noting(self, name: str, fails: bool) -> Any:
        def call(*args: Any) -> None:
            self.calls.append((name, *args))
            if fails:
                raise ValueError("no")

        return call


def test_every_call_reaches_the_hook() -> None:
    assert set(CALLS) == {name for name in vars(Hook) if name.startswith("on_")}
    hook = Recorder()
    for name, args in CALLS.items():
        getattr(spared_hook(hook), name)(*args)
    assert hook.calls == [(name, *args) for name, args in CALLS.items()]


def test_a_failure_is_said_once_and_the_hook_is_called_again(capsys: pytest.CaptureFixture[str]) -> None:
    hook = Recorder(*CALLS)
    watched = spared_hook(hook)
    for name, args in CALLS.items():
        getattr(watched, name)(*args)
    assert len(hook.calls) == len(CALLS)
    assert capsys.readouterr().err == "softshare: Recorder failed (ValueError: no). The run goes on without it\n"


def test_an_interrupt_is_no_failure() -> None:
    with pytest.raises(KeyboardInterrupt), spared("it"):
        raise KeyboardInterrupt


def test_an_error_of_ours_is_told_in_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    with spared("the film", "The rest is written"):
        raise ConfigError("cannot write a: the disk is full")
    assert capsys.readouterr().err == (
        "softshare: the film failed (cannot write a: the disk is full). The rest is written\n"
    )
