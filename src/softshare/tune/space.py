"""What a search may change of a config, and between which ends: from the ranges of the config's own fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from softshare.config import Beta, CompressConfig, Gamma, Range
from softshare.errors import ConfigError

Space = dict[str, Range]  # a hyper-prior's two numbers are NAME.PART
_HYPERPRIORS: dict[str, Callable[..., Any]] = {
    "mixing_prior": Beta.from_mode,
    "zero_precision_prior": Gamma.from_std,
    "free_precision_prior": Gamma.from_std,
}


def search_space(config: CompressConfig, held: Collection[str] = ()) -> Space:
    """The range of every setting that has one and has a part in this config; those named in `held` stay as they are."""
    space: Space = {}
    for field, value in _settings(config):
        ranges = field.metadata["range"]
        if ranges is None or field.name in held or not _has_part(config, field.name, value):
            continue
        if field.name == "mixing_prior" and not isinstance(value, Beta):
            raise ConfigError(f"mixing_prior: a search expects a Beta, got {value!r}; give a Beta, or hold it")
        space |= {field.name: ranges} if isinstance(ranges, Range) else _parts(field.name, ranges)
    return space


def known_ranges() -> Space:
    """The range of every setting that has one, whatever the config."""
    found: Space = {}
    for field, _ in _settings(CompressConfig()):
        ranges = field.metadata["range"]
        if ranges is not None:
            found |= {field.name: ranges} if isinstance(ranges, Range) else _parts(field.name, ranges)
    return found


def with_values(config: CompressConfig, values: Mapping[str, float]) -> CompressConfig:
    """The config with a point of the space in it."""
    changes: dict[str, Any] = {name: value for name, value in values.items() if "." not in name}
    for name, make in _HYPERPRIORS.items():
        if parts := {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}:
            changes[name] = make(**parts)
    return config.override(**changes)


def values_in(config: CompressConfig, space: Space) -> dict[str, float]:
    """The config's own point of the space."""
    values = {field.name: value for field, value in _settings(config)}
    point: dict[str, float] = {}
    for key in space:
        name, _, part = key.partition(".")
        point[key] = getattr(values[name], part) if part else values[name]
    return point


def require_inside(config: CompressConfig, space: Space) -> None:
    """A search starts from its base, so every setting of the base must lie in its range."""
    point = values_in(config, space)
    outside = {name: range for name, range in space.items() if not range.low <= point[name] <= range.high}
    if outside:
        found = "; ".join(f"{k}: expected {r.low:g} to {r.high:g}, got {point[k]:g}" for k, r in outside.items())
        names = ", ".join(dict.fromkeys(name.partition(".")[0] for name in outside))
        raise ConfigError(f"the base is outside what is searched ({found}); hold {names}, or start from other values")


def _settings(config: CompressConfig) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    for stage in vars(config).values():
        for field in dataclasses.fields(stage):
            yield field, getattr(stage, field.name)


def _has_part(config: CompressConfig, name: str, value: Any) -> bool:
    """What is switched off is not searched: the paper has neither widths nor a hard phase."""
    if name in ("hard_from", "zeroing"):
        return config.retrain.hard_from < 1 and bool(value)
    if name == "steps":
        return config.retrain.epochs is None
    return value is not None


def _parts(name: str, ranges: Mapping[str, Range]) -> Space:
    return {f"{name}.{part}": range for part, range in ranges.items()}
