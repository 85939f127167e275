"""The command `softshare init`: a task of the user's own to start from."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from softshare._util.files import write_atomic
from softshare._util.run_folder import made_folder
from softshare.cli.task_options import OverwriteOption
from softshare.errors import ConfigError

out = Console(markup=False)


def init(
    file: Annotated[Path, typer.Argument(help="The Python file to write, as my_task.py.")],
    overwrite: OverwriteOption = False,
) -> None:
    """Write a template of a task, for your own network and data: a Python file that says what to put where.

    It works as it stands, on made-up data.
    """
    if file.suffix != ".py":
        raise ConfigError(f"expected a file that ends in .py, as my_task.py, got {file}")
    if file.exists() and not overwrite:
        raise ConfigError(f"{file} exists already; give --overwrite or another name")
    with made_folder(file.parent):
        write_atomic(file, _template(file).encode())
    command = shlex.join(["softshare", "compress", f"{file}:make_task"])
    out.print(f"{file} written. Try it: {command}", highlight=False, soft_wrap=True)


def _template(file: Path) -> str:
    """With commands in its docstrings that name the file."""
    text = files("softshare.cli").joinpath("template.py").read_text("utf-8")
    for old, new in (("my_task.py:make_task", f"{file.name}:make_task"), ("runs/my_task", f"runs/{file.stem}")):
        text = text.replace(old, shlex.quote(new).replace("\\", r"\\").replace('"', r"\""))
    return text
