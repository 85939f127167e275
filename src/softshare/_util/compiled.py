"""Functions compiled by numba. Without numba they run as plain Python, more slowly."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def compiler(folder: Path, modules: Sequence[str], **options: Any) -> Callable[[Function], Function]:
    """A decorator for functions whose compiled code depends on these modules of a folder.

    The functions keep no state between calls and release the interpreter's lock, so threads run them in parallel.

    Numba caches compiled code on disk, but checks only a function's own file for changes. So the name of a function
    contains a digest of all the modules.

    Functions that call each other are inlined. This keeps a coder's state in registers. It also keeps results equal:
    without inlining, numba runs different code before and after caching, and the last bits may differ.
    """
    options = {"nogil": True, "forceinline": True, **options}
    paths = [folder / f"{name}.py" for name in modules]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths if path.exists())).hexdigest()[:16]

    def compiled(function: Function) -> Function:
        try:
            from numba import njit
        except ImportError:
            return function
        function.__qualname__ += f"_{digest}"  # numba names its cache files after it
        try:
            return cast(Function, njit(cache=True, **options)(function))
        except RuntimeError:  # there is no folder for the cache
            return cast(Function, njit(**options)(function))

    return compiled
