"""The fields of config objects: checked by their types, and to plain values and back."""

from __future__ import annotations

import builtins
import dataclasses
import json
import types
import typing
from dataclasses import MISSING
from typing import Any, Self

from softshare.errors import ConfigError

_PLAIN: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _is_a(kind: Any, value: Any) -> bool:
    """Whether a value is of a field's type: a plain one, a choice, a union, a tuple of one kind, another dataclass."""
    if kind in _PLAIN:
        accepted = (int, float) if kind is float else kind
        return isinstance(value, accepted) and isinstance(value, bool) == (kind is bool)  # a bool is an int too
    match typing.get_origin(kind):
        case typing.Literal:
            return value in typing.get_args(kind)
        case types.UnionType | typing.Union:
            return any(_is_a(member, value) for member in typing.get_args(kind))
        case builtins.tuple:
            return isinstance(value, tuple) and all(_is_a(typing.get_args(kind)[0], v) for v in value)
    return isinstance(value, kind)


def _describe(kind: Any) -> str:
    match typing.get_origin(kind):
        case typing.Literal:
            return "one of " + ", ".join(typing.get_args(kind))
        case types.UnionType | typing.Union:
            return " or ".join(_describe(member) for member in typing.get_args(kind))
        case builtins.tuple:
            return f"a tuple of {_describe(typing.get_args(kind)[0])}"
    return _PLAIN.get(kind) or ("None" if kind is type(None) else f"a {kind.__name__}")


def require_types(config: Any) -> None:
    for name, kind in typing.get_type_hints(type(config)).items():
        require(_is_a(kind, getattr(config, name)), name, _describe(kind), getattr(config, name))


def require(condition: bool, name: str, expected: str, value: object) -> None:
    if not condition:
        raise ConfigError(f"{name}: expected {expected}, got {value!r}")


class Versioned:
    """A dataclass that a result records."""

    VERSION = 1  # of its fields

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they come back from JSON: lists, not tuples."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(typing.cast(Any, self))))
        return {"version": self.VERSION, **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        values = dict(values)
        version = values.pop("version", None)
        require(version == cls.VERSION, "config version", str(cls.VERSION), version)
        return typing.cast(Self, _build(cls, values, "config"))


def _build(kind: Any, value: Any, path: str) -> Any:
    """The inverse of `dataclasses.asdict` for the types used here, with the path of the offending leaf in errors."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        members = typing.get_args(kind)
        if value is None and type(None) in members:
            return None
        fits = [
            m
            for m in members
            if m is not type(None)
            and dataclasses.is_dataclass(m) == isinstance(value, dict)
            and (not isinstance(value, dict) or {f.name for f in dataclasses.fields(m)} == set(value))
        ]
        require(bool(fits), path, f"one of {kind}", value)
        return _build(fits[0], value, path)
    if typing.get_origin(kind) is tuple:
        require(isinstance(value, list | tuple), path, "a list", value)
        return tuple(_build(typing.get_args(kind)[0], v, f"{path}[{i}]") for i, v in enumerate(value))
    if not dataclasses.is_dataclass(kind):
        require(_is_a(kind, value), path, _describe(kind), value)
        return value
    require(isinstance(value, dict), path, "a mapping of fields", value)
    hints = typing.get_type_hints(kind)
    unknown = set(value) - set(hints)
    require(not unknown, path, "fields " + ", ".join(hints), sorted(unknown))
    needed = {f.name for f in dataclasses.fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    require(needed <= set(value), path, "fields " + ", ".join(hints), value)
    return typing.cast(Any, kind)(**{name: _build(hints[name], v, f"{path}.{name}") for name, v in value.items()})
