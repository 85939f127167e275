"""Command-line options, generated from the fields of the config so that the two agree."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from softshare.config.fields import help_of
from softshare.config.text import HINTS, STAGES, parse, parse_rule
from softshare.errors import ConfigError

PANELS = {
    "prior": "Prior",
    "retrain": "Retraining",
    "merge": "Merging",
    "simplify": "Simplifying",
    "encode": "File",
}
FIRST = ("steps", "epochs", "seed")  # settings in the first panel, among a command's own options
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change one setting, for example tau=0.01. Can be repeated."),
]


def with_file_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `overrides` of a command by `--rule` and the options of the file."""
    names = ("rules", *(f.name for f in dataclasses.fields(STAGES["encode"])))
    return _with_options(command, names, [], {"prior": PANELS["encode"], "encode": PANELS["encode"]})


def with_config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `overrides` of a command by `--set` and one option for each setting.

    An option takes precedence over `--set`.
    """
    by_set = inspect.Parameter("assignments", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=SetOption)
    return _with_options(command, tuple(HINTS), [by_set], PANELS)


def _with_options(
    command: Callable[..., None], names: Sequence[str], others: list[inspect.Parameter], panels: Mapping[str, str]
) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    settings = [
        _parameter(field, help_of(kind).get(field.name, ""), panels[stage])
        for stage, kind in STAGES.items()
        for field in dataclasses.fields(kind)
        if field.name in names
    ]
    parameters = []
    for own in signature.parameters.values():
        first = [p for p in settings if p.name in FIRST]
        parameters += [*first, *others] if own.name == "overrides" else [own]
    parameters += [p for p in settings if p.name not in FIRST]

    def wrapper(**kwargs: Any) -> None:
        given = {p.name: kwargs.pop(p.name) for p in settings}
        overrides = dict(_assignment(text) for text in kwargs.pop("assignments", None) or ())
        overrides |= {name: _value(name, value) for name, value in given.items() if value not in (None, [])}
        command(overrides=overrides, **kwargs)

    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    wrapper.__signature__ = signature.replace(parameters=keyword)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in keyword}
    return wrapper


def _parameter(field: dataclasses.Field[Any], help: str, panel: str) -> inspect.Parameter:
    hint = HINTS[field.name]
    kind = hint if hint in (int, float, bool) else str  # any other type is parsed from text
    flag = "rule" if field.name == "rules" else field.name.replace("_", "-")
    default = "" if field.default == () else f" Default: {_shown(field.default)}."
    choices = f" One of: {', '.join(typing.get_args(hint))}." if typing.get_origin(hint) is Literal else ""
    option = typer.Option(
        f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
        help=f"{help}{choices}{default}",
        rich_help_panel=None if field.name in FIRST else panel,
        show_default=False,
        metavar="RULE"
        if field.name == "rules"
        else next((f"<{k.__name__}>" for k in (int, float) if k in typing.get_args(hint)), None),
    )
    annotation = Annotated[list[str] | None, option] if field.name == "rules" else Annotated[kind | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "none" if default is None else str(default)


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set: expected NAME=VALUE, for example tau=0.01, got {text!r}")
    return name.strip(), parse(name.strip(), value.strip())


def _value(name: str, given: Any) -> Any:
    if name == "rules":
        return tuple(parse_rule(text, "--rule") for text in given)
    return parse(name, given, f"--{name.replace('_', '-')}") if isinstance(given, str) else given
