"""The command-line reference: one section per command, its options in the panels of `--help`, from the commands."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import typer.main
from mkdocs.structure.pages import Page

from softshare.cli import app

PLACE = "<!-- commands -->"


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    return markdown.replace(PLACE, reference()) if page.file.src_uri == "cli.md" else markdown


def reference() -> str:
    """Every command, in the order of `softshare --help`."""
    program: Any = typer.main.get_command(app)
    own = _options(program.make_context("softshare", ["--help"], resilient_parsing=True), program)
    sections = [f"## softshare\n\n{own}"]
    for name, command in program.commands.items():
        context = command.make_context(f"softshare {name}", [], resilient_parsing=True)
        usage = " ".join([f"softshare {name}", *command.collect_usage_pieces(context)])
        text = (command.help or "").replace("\f", "")
        sections.append(f"## {name}\n\n```text\n{usage}\n```\n\n{text}\n\n{_options(context, command)}")
    return "\n\n".join(sections)


def _options(context: Any, command: Any) -> str:
    shown = [p for p in command.get_params(context) if not getattr(p, "hidden", False)]
    order = list(dict.fromkeys(map(_panel, shown)))
    shown.sort(key=lambda p: order.index(_panel(p)))
    tables = []
    for panel, parameters in groupby(shown, key=_panel):
        rows = [_row(context, p) for p in parameters]
        tables.append("\n".join([f"| {panel} | |", "|---|---|", *rows]))
    return "\n\n".join(tables)


def _panel(parameter: Any) -> str:
    kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
    return str(parameter.rich_help_panel or kind)


def _row(context: Any, parameter: Any) -> str:
    record = parameter.get_help_record(context)
    name, text = record if record else (parameter.make_metavar(context), parameter.help or "")
    return f"| `{name}` | {text.replace('|', chr(92) + '|')} |"
