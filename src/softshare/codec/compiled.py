"""`@compiled`: by numba where it is installed; else the same function in plain Python, slower, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    try:
        from numba import njit
    except ImportError:
        return function
    try:
        return cast(Function, njit(cache=True)(function))
    except RuntimeError:  # no folder to keep the compiled code in
        return cast(Function, njit(function))
