"""Settings as text: one value, as in `--set tau=0.01`, or all of them as a TOML file with comments."""

from __future__ import annotations

import dataclasses
import json
import textwrap
import tomllib
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from softshare._util.calls import meant
from softshare._util.schema import from_plain
from softshare.config.fields import help_of
from softshare.config.hyperpriors import Beta, Dirichlet, Gamma
from softshare.config.settings import Rule
from softshare.config.stages import CompressConfig
from softshare.errors import ConfigError

STAGES: dict[str, Any] = {
    name: kind for name, kind in typing.get_type_hints(CompressConfig).items() if dataclasses.is_dataclass(kind)
}
HINTS: dict[str, Any] = {
    name: hint for kind in STAGES.values() for name, hint in typing.get_type_hints(kind).items()
}  # the type of every setting; names are unique across the stages
WIDTH = 100  # columns of the comments in a TOML file


# One value


def parse(name: str, text: str, shown: str | None = None) -> Any:
    """Convert a text to the type of a setting. An error calls the setting `shown`, by default its name."""
    shown = shown or name
    if name not in HINTS:
        raise ConfigError(f"unknown setting {name!r}; {meant(name, HINTS)}")
    hint = HINTS[name]
    members = typing.get_args(hint)
    if type(None) in members and text == "none":
        return None
    if Gamma in members or Beta in members:
        return _parse_hyperprior(shown, text, Gamma in members)
    if name == "rules":
        return tuple(parse_rule(part.strip(), shown) for part in text.split(","))
    if hint is bool:
        if text not in ("true", "false"):
            raise ConfigError(f"{shown}: expected true or false, got {text!r}")
        return text == "true"
    for kind, expected in ((int, "a whole number"), (float, "a number")):
        if hint is kind or kind in members:
            try:
                return kind(text)
            except ValueError:
                none = " or 'none'" if type(None) in members else ""
                raise ConfigError(f"{shown}: expected {expected}{none}, got {text!r}") from None
    if text not in members:
        raise ConfigError(f"{shown}: expected one of {', '.join(members)}, got {text!r}")
    return text


def parse_rule(text: str, shown: str = "rules") -> Rule:
    verb, colon, pattern = text.partition(":")
    if not (colon and pattern and verb in ("share", "keep", "drop")):
        raise ConfigError(f"{shown}: expected 'share:PATTERN', 'keep:PATTERN' or 'drop:PATTERN', got {text!r}")
    return Rule(pattern, share=verb == "share", drop=verb == "drop")


def _parse_hyperprior(name: str, text: str, is_gamma: bool) -> Gamma | Beta | Dirichlet:
    parts = [part.split("=") for part in text.split(",")]
    try:
        values = {key.strip(): float(number) for key, number in parts}
    except ValueError:
        values = {}
    try:
        match sorted(values) if len(values) == len(parts) else [], is_gamma:
            case ["alpha", "beta"], _:
                return (Gamma if is_gamma else Beta)(**values)
            case ["std", "strength"], True:
                return Gamma.from_std(**values)
            case ["free", "zero"], False:
                return Dirichlet(**values)
    except ConfigError as problem:
        raise ConfigError(f"{name}: {problem}") from None
    forms = ("alpha=A,beta=B", "std=S,strength=K") if is_gamma else ("alpha=A,beta=B", "zero=A,free=B")
    raise ConfigError(f"{name}: expected '{forms[0]}', '{forms[1]}' or 'none', got {text!r}")


# A file


def to_toml(config: CompressConfig) -> str:
    """Every setting, with its help as a comment. `from_toml` reads it back to the same config.

    If the length of the run is in epochs, the steps are a comment too.
    """
    return "\n".join(_lines(config)) + "\n"


def _lines(config: CompressConfig) -> Iterator[str]:
    yield from _comment("Settings for `softshare compress --config FILE`. You can leave out what you do not change.")
    yield f"version = {config.VERSION}"
    for stage, kind in STAGES.items():
        yield from ("", *_comment(kind.__doc__.partition("\n\n")[0]), f"[{stage}]")
        for field in dataclasses.fields(kind):
            yield from _comment(help_of(kind).get(field.name, "") + _choices(field.name))
            line = f"{field.name} = {_toml(getattr(getattr(config, stage), field.name))}"
            replaced = field.name == "steps" and config.retrain.epochs  # a file gives one length
            yield f"# {line}" if replaced else line


def _comment(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent="# ", subsequent_indent="# ")


def _choices(name: str) -> str:
    return f" One of: {', '.join(typing.get_args(HINTS[name]))}." if typing.get_origin(HINTS[name]) is Literal else ""


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'  # TOML has no null
    if isinstance(value, Gamma | Beta | Dirichlet):
        return "{ " + ", ".join(f"{k} = {v!r}" for k, v in dataclasses.asdict(value).items()) + " }"
    plain = [str(rule) for rule in value] if isinstance(value, tuple) else value
    # TOML writes these as JSON does, except that it forbids surrogate escapes and a plain DEL.
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", r"\u007f")


def from_toml(data: str, where: str) -> dict[str, Any]:
    """The settings that a file gives, by name. They may stand in a table of their stage or without a table."""
    try:
        values = tomllib.loads(data)
    except RecursionError:
        raise ConfigError(f"{where} is not a TOML file of settings: it is nested too deeply") from None
    except ValueError as problem:  # of the form, or a number of too many digits
        raise ConfigError(f"{where} is not a TOML file: {problem}") from None
    version = values.pop("version", CompressConfig.VERSION)
    if version != CompressConfig.VERSION:
        raise ConfigError(f"{where}: expected version {CompressConfig.VERSION} of the settings, got {version!r}")
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in STAGES and not isinstance(value, Mapping):
            raise ConfigError(f"{where}: expected a table [{name}], got {value!r}")
        table = value if name in STAGES else {name: value}
        for key, own in table.items():
            if name in STAGES and key not in typing.get_type_hints(STAGES[name]):
                known = typing.get_type_hints(STAGES[name])
                raise ConfigError(f"{where}: [{name}] has no setting {key!r}; {meant(key, known)}")
            if key in found:
                raise ConfigError(f"{where}: {key} is given twice. Remove one of the two")
            try:
                found[key] = _from_toml(key, own)
            except ConfigError as problem:
                raise ConfigError(f"{where}: {problem}") from None
    return found


def _from_toml(name: str, value: Any) -> Any:
    if isinstance(value, str) or name not in HINTS:
        return parse(name, value)
    if name == "rules" and isinstance(value, list) and all(isinstance(rule, str) for rule in value):
        return tuple(parse_rule(rule) for rule in value)
    return from_plain(HINTS[name], value, name)
