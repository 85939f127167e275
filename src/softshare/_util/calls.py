"""Names that a user wrote: arguments of a call, settings. A wrong one gets the name that was probably meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

from softshare.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


def meant(name: str, known: Iterable[str]) -> str:
    """'did you mean tau?', or all the names if none is near."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"


def check_call(usage: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise unless the function takes these arguments. `usage` shows a call that it takes."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as problem:
        said = f"{usage.partition('(')[0]}: {problem}"
        if unknown := [name for name in kwargs if name not in signature.parameters]:
            said += f"; {meant(unknown[0], signature.parameters)}"
        raise ConfigError(f"{said}{'' if said.endswith('?') else '.'} Call {usage}") from None


def checked(usage: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function raise a `ConfigError` if it is called with arguments that it does not take."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            check_call(usage, function, args, kwargs)
            return function(*args, **kwargs)

        return call

    return decorated
