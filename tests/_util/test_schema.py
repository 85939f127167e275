"""Typed dataclasses: every field has its annotated type, and plain values become objects and back."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from softshare._util.schema import Versioned, from_plain, require_types, to_plain
from softshare.errors import ConfigError


@dataclass(frozen=True)
class Point:
    x: float
    y: float


@dataclass(frozen=True)
class Circle:
    radius: float


@dataclass(frozen=True)
class Everything(Versioned):
    VERSION = 7

    flag: bool = False
    count: int = 1
    share: float = 0.5
    name: str = "a"
    kind: Literal["one", "two"] = "one"
    maybe: float | None = None
    shape: Point | Circle | None = None
    points: tuple[Point, ...] = ()
    table: dict[str, float] = dataclasses.field(default_factory=dict)
    extra: Any = None

    def __post_init__(self) -> None:
        require_types(self)


FULL = Everything(True, 3, 2, "b", "two", 1, Circle(0.5), (Point(1, 2.5), Point(3, 4)), {"a": 1.5}, [None, {"b": 1}])


def test_a_value_survives_the_way_through_plain_values() -> None:
    for value in (Everything(), FULL, Everything(shape=Point(1, 2))):
        plain = to_plain(value)
        assert from_plain(Everything, plain, "value") == value
        assert Everything.from_dict(value.to_dict()) == value
    assert to_plain(FULL)["points"] == [{"x": 1, "y": 2.5}, {"x": 3, "y": 4}]
    assert type(to_plain(FULL)["share"]) is int  # a whole number is a number, and stays one


BAD: list[tuple[str, Any, str]] = [
    ("flag", 1, "true or false, got 1"),
    ("count", True, "a whole number, got True"),
    ("count", 1.0, "a whole number, got 1.0"),
    ("share", "0.5", "a number, got '0.5'"),
    ("share", False, "a number, got False"),
    ("name", None, "text, got None"),
    ("kind", "three", "one of one, two, got 'three'"),
]


def test_a_wrong_type_is_refused_by_the_name_of_its_field() -> None:
    for name, value, message in BAD:
        with pytest.raises(ConfigError, match=f"^{name}: expected {message}$"):
            Everything(**{name: value})
        with pytest.raises(ConfigError, match=f"^value.{name}: expected {message}$"):
            from_plain(Everything, {name: value}, "value")
    more: list[tuple[str, Any, str]] = [
        ("maybe", "x", "a number or None"),
        ("shape", 3, "a Point or a Circle or None"),
        ("points", [Point(1, 2)], "a tuple of Point"),
        ("points", (1,), "a tuple of Point"),
        ("table", {1: 2.0}, "a mapping of names"),
    ]
    for name, value, expected in more:
        with pytest.raises(ConfigError, match=f"^{name}: expected {expected}, got "):
            Everything(**{name: value})


def test_what_does_not_fit_is_refused_with_its_path() -> None:
    for values, message in (
        ({"nothing": 1}, "^value: expected fields flag, .*, extra, got nothing$"),
        ({"points": [{"x": 1, "y": 2}, {"x": 1}]}, r"^value.points\[1\].y: expected a value, got none$"),
        ({"points": [{"x": 1, "y": "2"}]}, r"^value.points\[0\].y: expected a number, got '2'$"),
        ({"shape": {"x": 1, "radius": 2}}, "^value.shape: expected a Point or a Circle or None, got .'x': 1, 'rad"),
        ({"shape": {"radius": "2"}}, "^value.shape.radius: expected a number, got '2'$"),
        ({"flag": 1, "count": "x"}, "^value.flag: expected .*; value.count: expected "),
    ):
        with pytest.raises(ConfigError, match=message):
            from_plain(Everything, values, "value")


def test_a_single_value_is_checked_too() -> None:
    assert from_plain(int, 3, "epochs") == 3
    for kind, value, message in (
        (int, "3", "epochs: expected a whole number, got '3'"),
        (tuple[Point, ...], 3, "epochs: expected a tuple of Point, got 3"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}$"):
            from_plain(kind, value, "epochs")


def test_another_version_is_refused() -> None:
    for version in (6, "7", None):
        with pytest.raises(ConfigError, match=f"^config version: expected 7, got {version!r}$"):
            Everything.from_dict({**FULL.to_dict(), "version": version})
