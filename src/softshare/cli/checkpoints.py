"""The command `softshare quantize`: compress a checkpoint without data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from softshare.cli.task_options import OverwriteOption, VerboseOption
from softshare.config import EncodeConfig
from softshare.errors import ConfigError


def quantize(
    checkpoint: Annotated[
        Path, typer.Argument(help="The checkpoint, a file of safetensors or torch.save (.pt, .pth, .bin, .ckpt).")
    ],
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File to write. Default: the checkpoint's name with .sws."),
    ] = None,
    bits: Annotated[
        float | None,
        typer.Option(help="Write at most this many bits per weight. The whole file counts."),
    ] = None,
    weight_error: Annotated[
        float | None,
        typer.Option(
            help="Allow at most this error in the weights of each tensor, relative to their root mean square. Default: "
            "0.05, unless --bits is given.",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
    verbose: VerboseOption = False,
    *,
    overrides: dict[str, Any],
) -> None:
    """Compress a checkpoint without data or training: fit a mixture to the weights of each tensor.

    At the same accuracy the file is larger than one from `softshare compress`. Measure the network before you ship it.
    """
    from softshare._util.files import require_plain, require_writable
    from softshare._util.run_folder import made_folder
    from softshare.cli.console import console
    from softshare.cli.file_table import file_table
    from softshare.cli.summary import after_a_file, checkpoint_panel
    from softshare.codec import inspect as inspect_file
    from softshare.datafree.compress_weights import ERROR, compress_weights

    out = console()
    if not checkpoint.is_file():
        raise ConfigError(f"expected a checkpoint, but there is no file {checkpoint}")
    file = file or checkpoint.with_suffix(".sws")
    if file == checkpoint:
        raise ConfigError(f"{checkpoint} is a .sws file already; expected a checkpoint of safetensors or torch.save")
    if file.is_dir():
        raise ConfigError(f"--out: expected the name of a file, but {file} is a folder")
    require_plain(file)
    if file.exists() and not overwrite:
        raise ConfigError(f"{file} already exists. Give --overwrite or another --out")
    start = time.perf_counter()
    rules = overrides.pop("rules", ())
    with made_folder(file.parent):
        require_writable(file.parent)
        fitted = compress_weights(
            checkpoint, bits=bits, weight_error=weight_error, rules=rules, config=EncodeConfig(**overrides)
        )
        fitted.save(file)
    out.print(checkpoint_panel(fitted, checkpoint, time.perf_counter() - start))
    if bits is None and weight_error is None:
        out.print(f"The default error of {100 * ERROR:g}% was used. Change it with --weight-error or --bits.")
    out.print(after_a_file(file), soft_wrap=True)
    if verbose:
        out.print()
        out.print(file_table(inspect_file(file), str(file), out.width), soft_wrap=True)
        worst = max(fitted.errors, key=lambda name: fitted.errors[name])
        out.print(f"The tensor with the largest error is {worst}.", soft_wrap=True)
