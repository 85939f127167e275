"""What makes a header one that no file can hold: for the writer and for the reader (docs/format.md 3, 4 and 7)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from softshare.codec.header import (
    MAX_DIMENSIONS,
    MAX_ENTRIES,
    MAX_NAME_BYTES,
    MAX_NAMES_BYTES,
    MAX_VALUES,
    Header,
    Shared,
    n_values,
)
from softshare.codec.symbols import MAX_CODEBOOK_VALUES
from softshare.errors import ModelError

_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")


def check_writable(header: Header) -> None:
    """Raise `ModelError` if the format cannot hold the header. The reader would refuse it."""
    check_names([e.name for e in header.entries], header.tied)
    problems = [shape_problem(e.shape) for e in header.entries]
    problems += [codebook_problem(codebook.values) for codebook in header.codebooks]
    problems += header_problems(header)
    _raise_first(problems)


def check_names(names: Sequence[str], tied: Collection[str]) -> None:
    """Raise `ModelError` if a file cannot hold these names of stored tensors, or these tied names."""
    every = [*names, *tied]
    _raise_first([*names_problems(names, tied), *(name_problem(n.encode(errors="surrogatepass")) for n in every)])


def _raise_first(problems: Sequence[str | None]) -> None:
    found = [problem for problem in problems if problem]
    if found:
        raise ModelError("; ".join(found[:5]))


def name_problem(name: bytes) -> str | None:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return f"expected a name in UTF-8, got {name[:40]!r}"
    if not 1 <= len(name) <= MAX_NAME_BYTES:
        return f"expected a name of 1 to {MAX_NAME_BYTES} bytes, got {len(name)}"
    if _CONTROL.search(text):
        return f"expected a name without control characters, got {text[:40]!r}"
    return None


def shape_problem(shape: tuple[int, ...]) -> str | None:
    if len(shape) > MAX_DIMENSIONS or n_values(shape) > MAX_VALUES:
        return f"expected at most {MAX_DIMENSIONS} sizes of at most {MAX_VALUES} values together, got {shape[:8]}"
    return None


def codebook_problem(values: npt.NDArray[np.float32]) -> str | None:
    magnitudes = np.abs(values)
    if len(values) > MAX_CODEBOOK_VALUES:
        return f"expected at most {MAX_CODEBOOK_VALUES} values, got {len(values)}"
    if not np.isfinite(values).all() or not magnitudes[1:].all() or (np.diff(magnitudes) < 0).any():
        return f"expected finite values other than 0, ordered by magnitude, got {values[1:9].tolist()}"
    return None


def header_problems(header: Header) -> list[str]:
    """Problems that concern more than one entry."""
    problems = []
    total = sum(n_values(e.shape) for e in header.entries)
    if total > MAX_VALUES:
        problems.append(f"expected at most {MAX_VALUES} values over all tensors, got {total}")
    if header.codec == "han" and any(isinstance(e.kind, Shared) and e.kind.bands for e in header.entries):
        problems.append("expected no bands with codec 'han', got some")
    return problems + names_problems([e.name for e in header.entries], header.tied)


def names_problems(stored: Sequence[str], tied: Collection[str]) -> list[str]:
    problems, names = [], [*stored, *tied]
    n_bytes = sum(len(name.encode(errors="surrogatepass")) for name in names)
    if max(len(stored), len(tied)) > MAX_ENTRIES or n_bytes > MAX_NAMES_BYTES:
        limit = f"{MAX_ENTRIES} names of {MAX_NAMES_BYTES} bytes together"
        problems.append(f"expected at most {limit}, got {len(names)} of {n_bytes}")
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        problems.append(f"expected each name once, got {twice[:3]} more than once")
    return problems
