"""Command-line options made from the config's fields, so that the two cannot drift apart."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import typer

from softshare.config.text import HINTS, STAGES, parse, parse_rule
from softshare.errors import ConfigError

PANELS = {
    "prior": "Prior",
    "retrain": "Retraining",
    "merge": "Merging",
    "simplify": "Simplifying",
    "encode": "File",
}
FIRST = ("epochs", "seed")  # settings that stand among a command's own options
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change one setting by its name. Can be repeated."),
]


def with_file_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's parameter `overrides` by `--rule` and the options of the file."""
    return _with_options(command, ("rules", *(f.name for f in dataclasses.fields(STAGES["encode"]))), [])


def with_config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's parameter `overrides` by `--set` and one option for each setting.

    An option wins over `--set`.
    """
    by_set = inspect.Parameter("assignments", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=SetOption)
    return _with_options(command, tuple(HINTS), [by_set])


def _with_options(
    command: Callable[..., None], names: Sequence[str], others: list[inspect.Parameter]
) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    fields = [(stage, field) for stage, kind in STAGES.items() for field in dataclasses.fields(kind)]
    settings = [_parameter(stage, field) for stage, field in fields if field.name in names]
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


def _parameter(stage: str, field: dataclasses.Field[Any]) -> inspect.Parameter:
    hint = HINTS[field.name]
    kind = hint if hint in (int, float, bool) else str  # what is not always a number or a switch is read as text
    flag = "rule" if field.name == "rules" else field.name.replace("_", "-")
    default = "" if field.default in (None, ()) else f" Default: {field.default}."
    choices = f" One of: {', '.join(typing.get_args(hint))}." if typing.get_origin(hint) is Literal else ""
    option = typer.Option(
        f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
        help=f"{field.metadata['help']}{choices}{default}",
        rich_help_panel=None if field.name in FIRST else PANELS[stage],
        show_default=False,
    )
    annotation = Annotated[list[str] | None, option] if field.name == "rules" else Annotated[kind | None, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set: expected NAME=VALUE, as tau=0.01, got {text!r}")
    return name.strip(), parse(name.strip(), value.strip())


def _value(name: str, given: Any) -> Any:
    if name == "rules":
        return tuple(parse_rule(text, "--rule") for text in given)
    return parse(name, given, f"--{name.replace('_', '-')}") if isinstance(given, str) else given
