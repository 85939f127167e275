"""Typed dataclasses: check fields by their type hints, and convert plain values (JSON, TOML) to objects and back."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from softshare.errors import ConfigError

if typing.TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")
_PLAIN: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _is_a(kind: Any, value: Any) -> bool:
    """Whether a value has a field's type: a plain type, a choice, a union, a tuple, a mapping, or a class."""
    if kind is Any:
        return True
    if kind in _PLAIN:
        accepted = (int, float) if kind is float else kind
        return isinstance(value, accepted) and isinstance(value, bool) == (kind is bool)  # a bool is an int in Python
    members = typing.get_args(kind)
    match typing.get_origin(kind):
        case typing.Literal:
            return value in members
        case types.UnionType | typing.Union:
            return any(_is_a(member, value) for member in members)
        case builtins.tuple:
            return isinstance(value, tuple) and all(_is_a(members[0], v) for v in value)
        case builtins.dict:
            return isinstance(value, dict) and all(_is_a(members[0], k) and _is_a(members[1], value[k]) for k in value)
    return isinstance(value, kind)


def _describe(kind: Any) -> str:
    members = typing.get_args(kind)
    match typing.get_origin(kind):
        case typing.Literal:
            return "one of " + ", ".join(members)
        case types.UnionType | typing.Union:
            return " or ".join(_describe(member) for member in members)
        case builtins.tuple:
            return f"a tuple of {members[0].__name__}"
        case builtins.dict:
            return "a mapping of names"
    return _PLAIN.get(kind) or ("None" if kind is type(None) else f"a {kind.__name__}")


def require_types(value: Any) -> None:
    """Raise unless every field of a dataclass has its annotated type."""
    owner: Any = type(value)
    for name, kind in _hints(owner).items():
        require(_is_a(kind, getattr(value, name)), name, _describe(kind), getattr(value, name))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def require(condition: bool, name: str, expected: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{name}: expected {expected}, got {value!r}")


def to_plain(value: Any) -> Any:
    """A dataclass as mappings, lists and plain values: what JSON returns after a round trip."""
    return json.loads(json.dumps(dataclasses.asdict(value), allow_nan=False))


def from_plain(kind: type[T], values: Any, what: str) -> T:
    """The inverse of `to_plain`. An error names the path of the value that does not fit."""
    import cattrs

    try:
        return _converter().structure(values, kind)
    except cattrs.BaseValidationError as group:
        problems = (text.rpartition(" @ ") for text in cattrs.transform_error(group, what, _format))
        raise ConfigError("; ".join(f"{path}: {text}" for text, _, path in problems)) from None
    except ConfigError as problem:
        raise ConfigError(f"{what}: {problem}") from None
    except TypeError:  # not a list
        raise ConfigError(f"{what}: expected {_describe(kind)}, got {values!r}") from None


@functools.cache
def _converter() -> Converter:
    """Reads nested dataclasses and tuples. It refuses unknown fields and converts no plain value to another type."""
    from cattrs import Converter

    converter = Converter(forbid_extra_keys=True)
    for kind in _PLAIN:
        converter.register_structure_hook(kind, _checked)
    converter.register_structure_hook_func(_is_choice, _checked)
    converter.register_structure_hook_func(_has_several, _member)
    return converter


def _checked(value: Any, kind: Any) -> Any:
    if not _is_a(kind, value):
        raise ConfigError(f"expected {_describe(kind)}, got {value!r}")
    return value


def _member(values: Any, kind: Any) -> Any:
    """A value of a union of dataclasses: a mapping becomes the one that has its fields."""
    for member in _dataclasses(kind):
        if isinstance(values, Mapping) and set(values) == {field.name for field in dataclasses.fields(member)}:
            return _converter().structure(values, member)
    return _checked(values, kind)


def _is_choice(kind: Any) -> bool:
    return typing.get_origin(kind) is typing.Literal


def _dataclasses(kind: Any) -> list[Any]:
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return [member for member in typing.get_args(kind) if dataclasses.is_dataclass(member)] if is_union else []


def _has_several(kind: Any) -> bool:
    return len(_dataclasses(kind)) > 1


def _format(problem: BaseException, kind: type | None) -> str:
    from cattrs import ForbiddenExtraKeysError

    if isinstance(problem, ForbiddenExtraKeysError):
        known = ", ".join(f.name for f in dataclasses.fields(problem.cl))
        return f"expected fields {known}, got {', '.join(sorted(problem.extra_fields))}"
    if isinstance(problem, KeyError):
        return "expected a value, got none"
    if isinstance(problem, ConfigError):
        return str(problem)
    return f"expected {_describe(kind) if kind else 'another value'} ({problem})"


class Versioned:
    """A base for dataclasses of settings that a result records."""

    VERSION = 1  # of the fields

    def to_dict(self) -> dict[str, Any]:
        return {"version": self.VERSION, **to_plain(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        values = dict(values)
        version = values.pop("version", None)
        require(version == cls.VERSION, "config version", str(cls.VERSION), version)
        return from_plain(cls, values, "config")
