"""Functions compiled by numba where it is installed; else the same in plain Python, slower."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def compiler(folder: Path, modules: Sequence[str], **options: Any) -> Callable[[Function], Function]:
    """A decorator for functions whose compiled code depends on these modules of a folder.

    They keep no state between calls and let go of the interpreter's lock: threads run them at once. Numba keeps what it
    has compiled, but looks for a change only in a function's own file; so the name has a digest of them all. What one
    of them calls is inlined: a coder's state stays in registers; and a call would run other code before it is kept than
    after, whose last bits may differ.
    """
    options = {"nogil": True, "forceinline": True, **options}
    paths = [folder / f"{name}.py" for name in modules]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.exists())).hexdigest()[:16]

    def compiled(function: Function) -> Function:
        try:
            from numba import njit
        except ImportError:
            return function
        function.__qualname__ += f"_{digest}"  # numba names its cached files by it
        try:
            return cast(Function, njit(cache=True, **options)(function))
        except RuntimeError:  # no folder to keep the compiled code in
            return cast(Function, njit(**options)(function))

    return compiled
