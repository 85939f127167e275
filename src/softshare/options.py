"""Command-line options made from the config's fields, so that the two cannot drift apart."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from softshare.config import CompressConfig, Rule
from softshare.errors import ConfigError
from softshare.hyperpriors import Beta, Dirichlet, Gamma

_STAGES = {
    "prior": "Prior",
    "retrain": "Retraining",
    "merge": "Merging",
    "codebook": "Codebook",
    "simplify": "Simplifying",
    "encode": "File",
}


def with_config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's parameter `overrides` by one option for each field of `CompressConfig`'s stages."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "overrides"]
    options = [_parameter(stage, field) for stage in _STAGES for field in _fields(stage)]

    def wrapper(**kwargs: Any) -> None:
        given = {p.name: kwargs.pop(p.name) for p in options}
        overrides = {name: _parse(name, value) for name, value in given.items() if value not in (None, [])}
        command(overrides=overrides, **kwargs)

    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *options)]
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _stage_type(stage: str) -> Any:
    return typing.get_type_hints(CompressConfig)[stage]


def _fields(stage: str) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(_stage_type(stage))


def _hint(name: str) -> Any:
    return next(hints[name] for s in _STAGES if name in (hints := typing.get_type_hints(_stage_type(s))))


def _parameter(stage: str, field: dataclasses.Field[Any]) -> inspect.Parameter:
    hint = _hint(field.name)
    kind = _plain_type(hint)
    flag = "rule" if field.name == "rules" else field.name.replace("_", "-")
    default = "" if field.default in (None, ()) else f" Default: {field.default}."
    choices = f" One of: {', '.join(typing.get_args(hint))}." if typing.get_origin(hint) is Literal else ""
    metavar = {int: "INT", float: "FLOAT", bool: "FLAG"}.get(kind, "TEXT")
    option = typer.Option(
        f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
        help=f"{field.metadata['help']}{choices}{default}",
        rich_help_panel=_STAGES[stage],
        metavar=metavar,
        show_default=False,
    )
    is_list = typing.get_origin(hint) is tuple
    annotation = Annotated[list[str] | None, option] if is_list else Annotated[kind | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _plain_type(hint: Any) -> Any:
    """What the command line itself reads: a number or a switch where the field is always one, else text."""
    return hint if hint in (int, float, bool) else str


def _parse(name: str, value: Any) -> Any:
    hint = _hint(name)
    if name == "rules":
        return tuple(_parse_rule(text) for text in value)
    if Gamma in typing.get_args(hint) or Beta in typing.get_args(hint):
        return _parse_hyperprior(name, value, Gamma in typing.get_args(hint))
    if hint == (float | None):
        return _parse_number(name, value)
    return value


def _parse_number(name: str, text: str) -> float | None:
    try:
        return None if text == "none" else float(text)
    except ValueError:
        raise ConfigError(f"--{name.replace('_', '-')}: expected a number or 'none', got {text!r}") from None


def _parse_rule(text: str) -> Rule:
    verb, colon, pattern = text.partition(":")
    if not (colon and pattern and verb in ("share", "keep")):
        raise ConfigError(f"--rule: expected 'share:PATTERN' or 'keep:PATTERN', got {text!r}")
    return Rule(pattern, verb == "share")


def _parse_hyperprior(name: str, text: str, is_gamma: bool) -> Gamma | Beta | Dirichlet | None:
    if text == "none":
        return None
    flag, parts = f"--{name.replace('_', '-')}", [part.split("=") for part in text.split(",")]
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
        raise ConfigError(f"{flag}: {problem}") from None
    forms = ("alpha=A,beta=B", "std=S,strength=K") if is_gamma else ("alpha=A,beta=B", "zero=A,free=B")
    raise ConfigError(f"{flag}: expected '{forms[0]}', '{forms[1]}' or 'none', got {text!r}")
