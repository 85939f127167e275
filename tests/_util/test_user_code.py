"""A failure of the user's code: its name, its place, its cause, and which frames of its traceback are shown."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from softshare._util.user_code import at, batches, call, guarded, here, length_of, user_frames
from softshare.errors import ConfigError, TaskError


def fails() -> None:
    raise ValueError("no data\nand a second line")


def stops() -> None:
    raise SystemExit(3)


def interrupts() -> None:
    raise KeyboardInterrupt


def refuses() -> None:
    raise ConfigError("not this one")


def test_a_failure_is_one_line_with_the_name_and_the_place_and_keeps_its_cause() -> None:
    message = r"^Task\.loss failed in epoch 3, batch 17: ValueError: no data$"
    with pytest.raises(TaskError, match=message) as caught, at("epoch 3"), at("batch 17"):
        call("Task.loss", fails)
    assert isinstance(caught.value.__cause__, ValueError)
    assert here() == ""
    with pytest.raises(TaskError, match=r"^Task\.loss failed: AssertionError$"):
        call("Task.loss", failing(AssertionError()))


def failing(problem: Exception) -> Callable[[], None]:
    def function() -> None:
        raise problem

    return function


def test_an_exit_is_a_failure() -> None:
    message = r"^Task\.loss called sys\.exit\(3\) in epoch 2\. Remove the call$"
    with pytest.raises(TaskError, match=message) as caught, at("epoch 2"):
        call("Task.loss", stops)
    assert isinstance(caught.value.__cause__, SystemExit)


@pytest.mark.parametrize(("function", "kind"), [(interrupts, KeyboardInterrupt), (refuses, ConfigError)])
def test_an_interrupt_and_an_error_of_ours_pass_through(
    function: Callable[[], None], kind: type[BaseException]
) -> None:
    with pytest.raises(kind) as caught:
        call("Task.loss", function)
    assert type(caught.value) is kind
    assert caught.value.__cause__ is None


def test_a_function_is_guarded_once_and_survives_pickle() -> None:
    once = guarded("Task.test", fails)
    assert guarded("Task.evaluate", once) is once
    for copied in (once, copy.deepcopy(once), pickle.loads(pickle.dumps(once))):
        with pytest.raises(TaskError, match=r"Task\.test failed"):
            copied()


class Broken:
    def __iter__(self) -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    def __len__(self) -> int:
        raise OSError("no index")


def consume(source: Iterator[int], found: list[int]) -> None:
    for value in source:
        found.append(value)


def test_the_batch_that_cannot_be_read_is_named() -> None:
    found: list[int] = []
    with pytest.raises(TaskError, match=r"^Task\.train failed in batch 3: OSError: the disk is gone$"):
        consume(batches(Broken()), found)
    assert found == [1, 2]
    with pytest.raises(TaskError, match=r"^val_loader failed: TypeError: 'int' object is not iterable$"):
        list(batches(3, "val_loader"))  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"^the length of Task\.train failed: OSError: no index$"):
        length_of(Broken())
    assert list(batches([1, 2])) == [1, 2]
    assert (length_of([1, 2]), length_of(iter([1]))) == (2, None)


def test_the_frames_are_the_users(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import torch\n\n\ndef loss():\n    return torch.nn.Linear(2, 1)(torch.ones(3))\n")
    values: dict[str, Callable[[], None]] = {}
    exec(compile(path.read_text(), path, "exec"), values)
    with pytest.raises(TaskError) as caught:
        call("Task.loss", values["loss"])
    assert caught.value.__cause__ is not None
    frames = user_frames(caught.value.__cause__)
    assert f'File "{path}", line 5, in loss\n    return torch.nn.Linear(2, 1)(torch.ones(3))' in frames
    assert frames.count("File ") == 1


def test_a_syntax_error_is_shown_with_its_line() -> None:
    with pytest.raises(TaskError) as caught:
        call("the import of mine.py", compile, "x = = 3", "mine.py", "exec")
    assert caught.value.__cause__ is not None
    frames = user_frames(caught.value.__cause__)
    assert 'File "mine.py", line 1' in frames
    assert "x = = 3" in frames


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> torch.Tensor:
        if k == 3:
            raise KeyError("row 3")
        return torch.ones(1)


@pytest.mark.slow
def test_a_failure_in_a_worker_of_a_loader() -> None:
    """It comes with a text of many lines in place of a traceback."""
    with pytest.raises(TaskError) as caught:
        list(batches(DataLoader(Rows(), batch_size=2, num_workers=1)))
    text = str(caught.value)
    assert text.startswith("Task.train failed in batch 2: KeyError: ")
    assert "row 3" in text
    assert "\n" not in text
    assert caught.value.__cause__ is not None
    frames = user_frames(caught.value.__cause__)
    assert "in __getitem__" in frames
    assert "site-packages" not in frames
