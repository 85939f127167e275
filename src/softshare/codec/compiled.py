"""`@compiled`: by numba where it is installed; else the same function in plain Python, slower, with the same result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def _digest() -> str:
    """Of all compiled code. Numba looks for a change only in a function's own file, not in what is inlined into it."""
    paths = [Path(__file__).with_name(f"{name}.py") for name in ("logistic", "rangecoder", "model", "fast", "planes")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.exists())).hexdigest()[:16]


DIGEST = _digest()


def compiled(function: Function) -> Function:
    """Compiled functions keep no state between calls and let go of the interpreter's lock: threads run them at once.

    `forceinline` keeps the coder's state in registers.
    """
    try:
        from numba import njit
    except ImportError:
        return function
    function.__qualname__ += f"_{DIGEST}"  # numba names its cached files by it
    try:
        return cast(Function, njit(cache=True, nogil=True, forceinline=True)(function))
    except RuntimeError:  # no folder to keep the compiled code in
        return cast(Function, njit(nogil=True, forceinline=True)(function))
