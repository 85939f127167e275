"""What a setting is made of: a default, a range to search, and a text that explains it."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Range:
    """Where a search looks for a number: from `low` to `high`, both included, evenly or evenly in the logarithm.

    If both ends are whole numbers, so are the values between them.
    """

    low: float
    high: float
    log: bool = False


def option(default: Any, range: Range | dict[str, Range] | None = None) -> Any:
    """A field, which the text below it explains (see `help_of`).

    `softshare tune` searches it if it has a range; a hyper-prior has one for each of its two numbers.
    """
    return field(default=default, metadata={"range": range})


def help_of(kind: type) -> dict[str, str]:
    """The texts below the fields of a class, by name. Editors and the API reference show the same ones."""
    return _texts(kind.__module__).get(kind.__name__, {})


@functools.cache
def _texts(module: str) -> dict[str, dict[str, str]]:
    """Of all classes in a module, from its source. Empty if that is not installed."""
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:
        return {}
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_below(node)) for node in classes}


def _below(node: ast.ClassDef) -> list[tuple[str, str]]:
    return [
        (line.target.id, inspect.cleandoc(text.value.value).replace("\n", " "))
        for line, text in itertools.pairwise(node.body)
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    ]
