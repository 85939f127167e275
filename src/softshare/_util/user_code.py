"""The code of a user: a failure in it says what was called and where in the run, and keeps the original exception."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from softshare.errors import ConfigError, SoftShareError, TaskError

P = ParamSpec("P")
R = TypeVar("R")
CALLED_WITH = {  # said if a function does not take what it gets
    "Task.loss": "the network and a batch",
    "Task.outputs": "the network and a batch",
    "Task.evaluate": "the network",
    "Task.test": "the network",
    "Task.noise": "the network",
}
_PLACES: ContextVar[tuple[str, ...]] = ContextVar("places", default=())
_OWN = str(Path(__file__).resolve().parents[1])
_STANDARD = {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")}


@contextmanager
def at(place: str) -> Iterator[None]:
    """Within, errors name this place: an epoch, a batch, the final measurement. Places may be nested."""
    token = _PLACES.set((*_PLACES.get(), place))
    try:
        yield
    finally:
        _PLACES.reset(token)


def here() -> str:
    """The present place in words: ' in epoch 3, batch 17'. Empty outside of all places."""
    places = _PLACES.get()
    return f" in {', '.join(places)}" if places else ""


def wrong(what: str, expected: str, got: str) -> ConfigError:
    """The error to raise if the user's code returned something else than it should."""
    return ConfigError(f"{what}{here()}: expected {expected}, got {got}")


def failed(what: str, problem: BaseException) -> TaskError:
    """The error to raise from an exception of the user's code."""
    if isinstance(problem, SystemExit):
        return TaskError(f"{what} called sys.exit({problem.code!r}){here()}. Remove the call")
    lines = str(problem).strip().splitlines() or [""]
    text = lines[0]
    if any(line.startswith("Original Traceback") for line in lines):  # from a worker of a DataLoader
        text = f"{text} {lines[-1].strip()}"
    said = f"{what} failed{here()}: {type(problem).__name__}: {text}".rstrip(": ")
    if isinstance(problem, TypeError) and what in CALLED_WITH:
        said += f". It is called with {CALLED_WITH[what]}"
    return TaskError(said)


def call(what: str, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Call a function of the user. Errors of softshare pass through, and so do interrupts."""
    try:
        return function(*args, **kwargs)
    except (SoftShareError, KeyboardInterrupt):
        raise
    except BaseException as problem:  # sys.exit too: it is the program that decides when it ends
        raise failed(what, problem) from problem


class Guarded(Generic[P, R]):
    """A function of the user. If it fails, the error has the name it has here. It is guarded only once."""

    def __init__(self, what: str, function: Callable[P, R]) -> None:
        self.what, self.function = what, function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return call(self.what, self.function, *args, **kwargs)

    def __repr__(self) -> str:
        return repr(self.function)


def guarded(what: str, function: Callable[P, R]) -> Callable[P, R]:
    return function if isinstance(function, Guarded) else Guarded(what, function)


def batches(source: Iterable[Any], what: str = "Task.train") -> Iterator[Any]:
    """The batches of the user's data. A failure names the number of the batch."""
    iterator = call(what, iter, source)
    end, n = object(), 0
    while True:
        n += 1
        with at(f"batch {n}"):
            batch = call(what, partial(next, iterator, end))
        if batch is end:
            return
        yield batch


def length_of(values: Any, what: str = "Task.train") -> int | None:
    """The number of batches or examples. None if they do not know it."""
    try:
        return len(values)
    except (TypeError, NotImplementedError):  # no length, or a DataLoader over a dataset without one
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        raise failed(f"the length of {what}", problem) from problem


def user_frames(problem: BaseException) -> str:
    """The traceback of an exception without the frames of softshare, of installed packages and of Python itself."""
    found = [frame for frame in traceback.extract_tb(problem.__traceback__) if _is_users(frame.filename)]
    lines = traceback.format_list(found)
    for block, path in re.findall(r'^(  File "([^"]+)".*\n(?:    .*\n)*)', str(problem), re.MULTILINE):
        lines += [block] if _is_users(path) else []  # of a worker of a DataLoader, whose traceback is a text
    if isinstance(problem, SyntaxError):
        lines += traceback.format_exception_only(problem)[:-1]  # where it is in the file
    return "".join(lines).rstrip("\n")


def _is_users(path: str) -> bool:
    if path.startswith("<"):
        return False
    folders = Path(path).resolve().parents
    installed = any(folder.name in ("site-packages", "dist-packages") for folder in folders)
    return not installed and not {_OWN, *_STANDARD} & {str(folder) for folder in folders}
