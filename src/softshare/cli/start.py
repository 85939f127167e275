"""The command `softshare init`: write a template of a task."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from softshare._util.files import write_atomic
from softshare._util.run_folder import made_folder
from softshare.cli.console import console
from softshare.cli.task_options import OverwriteOption
from softshare.errors import ConfigError

out = console()


def init(
    file: Annotated[Path, typer.Argument(help="The Python file to write, for example my_task.py.")],
    overwrite: OverwriteOption = False,
) -> None:
    """Write a Python file with a task: a template for your own network and data.

    The file runs unchanged, on made-up data. Its comments say what to replace.
    """
    if file.suffix != ".py":
        raise ConfigError(f"expected a name that ends in .py, for example my_task.py, got {file}")
    if file.exists() and not overwrite:
        raise ConfigError(f"{file} already exists. Give --overwrite or another name")
    with made_folder(file.parent):
        write_atomic(file, _template(file).encode())
    command = shlex.join(["softshare", "compress", f"{file}:make_task"])
    out.print(f"Wrote {file}. Try it: {command}")


def _template(file: Path) -> str:
    """The template, with the name of the file in the commands of its docstrings."""
    text = files("softshare.cli").joinpath("template.py").read_text("utf-8")
    for old, new in (("my_task.py:make_task", f"{file.name}:make_task"), ("runs/my_task", f"runs/{file.stem}")):
        text = text.replace(old, shlex.quote(new).replace("\\", r"\\").replace('"', r"\""))
    return text
