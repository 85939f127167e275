"""What a failure of the loss becomes while it is captured. Captured training itself is tested in test_step.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from softshare._util.user_code import guarded
from softshare.errors import ConfigError, TaskError
from softshare.train import captured


def captured_loss(problem: Exception) -> captured._Graph:
    def loss(batch: Any) -> tuple[Tensor, Tensor]:
        raise problem

    return captured._Graph(guarded("Task.loss", loss), captured._Batch([], None), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("over", [False, True], ids=["as it is", "another over it"])
def test_a_failure_while_capturing(over: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A RuntimeError means that the loss cannot be captured. All else is a failure of the loss."""

    def capture(step: Callable[[], Any], stream: Any) -> Any:
        try:
            return step()
        except Exception:
            if over:
                raise RuntimeError("the capture has ended") from None
            raise

    monkeypatch.setattr(captured, "capture", capture)
    monkeypatch.setattr(captured, "tree_unflatten", lambda tensors, form: tensors)
    with pytest.raises(ConfigError, match=r"cannot be captured .* The cause: it waits") as refused:
        captured_loss(RuntimeError("it waits"))
    assert isinstance(refused.value.__cause__, RuntimeError)
    for problem in (KeyError("label"), torch.OutOfMemoryError("no room")):
        with pytest.raises(TaskError, match=r"^Task\.loss failed: ") as failed:
            captured_loss(problem)
        assert failed.value.__cause__ is problem
