"""JSON and npz files that someone else may have written. Nothing is run, and nothing is larger than it should be.

Every function raises `ValueError` for what it refuses. The caller names the file.
"""

from __future__ import annotations

import io
import json
import math
import tokenize
import zipfile
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_JSON = 1 << 24  # bytes
MAX_DEPTH = 32  # of lists and objects in one another
MAX_TEXT = 1 << 16  # characters of one text
MAX_WHOLE = 1 << 63  # beyond it, a whole number does not fit where numbers go
_KINDS = "fiuU"  # numbers and text; an array of objects would be a pickle


def read_json(data: bytes | str) -> Any:
    """The value of a JSON text. Numbers and texts have a size that a program can work with."""
    if len(data) > MAX_JSON:
        raise ValueError(f"expected at most {MAX_JSON:,} bytes of JSON, got {len(data):,}")
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError(f"expected JSON of at most {MAX_DEPTH} levels, got many more") from None
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"expected JSON of at most {MAX_DEPTH} levels, got more")
        level = [inner for outer in level for inner in _checked(outer)]
    return value


def _checked(value: Any) -> list[Any]:
    """The values inside a value. A single one must be of a usual size."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list):
        return value
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise ValueError(f"expected texts of at most {MAX_TEXT:,} characters, got one of {len(value):,}")
    if isinstance(value, int) and abs(value) >= MAX_WHOLE:
        raise ValueError("expected whole numbers below 2^63, got a larger one")
    return []


def read_arrays(data: bytes, most: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an npz file, of at most so many bytes together. Sizes are checked before anything is unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            if size > most:
                raise ValueError(f"expected at most {most:,} bytes of arrays, got {size:,}")
            return {member.filename.removesuffix(".npy"): _array(archive.read(member)) for member in members}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as problem:
        raise ValueError(str(problem)) from None


def _array(data: bytes) -> npt.NDArray[Any]:
    """One .npy file. Its header may say anything about its size, so that is compared with the bytes that are there."""
    file = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("expected arrays as numpy.savez writes them")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except (SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError) as problem:
        raise ValueError(f"the header of an array is wrong ({problem})") from None
    if dtype.kind not in _KINDS or fortran or min(shape, default=0) < 0:
        raise ValueError(f"expected arrays of numbers, got {dtype} of shape {shape}")
    values = data[file.tell() :]
    if math.prod(shape) * dtype.itemsize != len(values):
        raise ValueError(f"expected the bytes of {dtype} of shape {shape}, got {len(values):,}")
    return np.frombuffer(bytearray(values), dtype).reshape(shape) if len(values) else np.empty(shape, dtype)
