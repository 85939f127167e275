"""Every public name explains itself in an editor: functions with arguments, returns and an example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import softshare as ss

FUNCTIONS = [name for name in ss.__all__ if inspect.isfunction(getattr(ss, name))]
CLASSES = [name for name in ss.__all__ if inspect.isclass(getattr(ss, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_arguments_returns_and_an_example(name: str) -> None:
    function = getattr(ss, name)
    text = inspect.getdoc(function) or ""
    assert "\nArgs:\n" in text
    assert f"softshare.{name}(" in text.partition("\nArgs:\n")[0]
    if inspect.signature(function).return_annotation != "None":
        assert "\nReturns:\n" in text
    if name != "compress":  # its two forms have their own arguments
        arguments = text.partition("\nArgs:\n")[2]
        assert [a for a in inspect.signature(function).parameters if f"\n    {a}: " not in f"\n{arguments}"] == []


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(cls).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod)):
            yield name, getattr(cls, name)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_and_its_methods_say_what_they_are(name: str) -> None:
    cls = getattr(ss, name)
    assert cls.__doc__
    assert not re.match(rf"{name}\(\w+: ", cls.__doc__)  # what a dataclass writes if nobody does
    assert [method for method, member in _members(cls) if not inspect.getdoc(member)] == []
