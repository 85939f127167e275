"""The command `softshare quantize`: compress a checkpoint without data."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softshare.cli.task_options import OverwriteOption, VerboseOption
from softshare.config import EncodeConfig
from softshare.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


def quantize(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="The checkpoint: safetensors, a folder of shards with its index, a Hugging Face or PEFT folder, GGUF, "
            "torch.save (.pt, .pth, .bin, .ckpt) or ONNX."
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="File to write. Default: the checkpoint's name with .sws. "
            "Of a folder: NAME-sws/model.sws. Configuration and tokenizer are copied beside it.",
        ),
    ] = None,
    bits: Annotated[
        float | None,
        typer.Option(help="Write at most this many bits per weight. The whole file counts."),
    ] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Write at most this many bytes. The whole file counts.")] = None,
    weight_error: Annotated[
        float | None,
        typer.Option(
            help="Allow at most this error in the weights of each tensor, relative to their root mean square. Default: "
            "0.05, unless another limit is given.",
        ),
    ] = None,
    loss_increase: Annotated[
        float | None,
        typer.Option(
            help="Allow at most this increase of the mean loss, with --calibrate. It is measured on every fourth "
            "batch, and these batches do not calibrate."
        ),
    ] = None,
    lossless: Annotated[
        bool, typer.Option("--lossless", help="Keep every bit of every tensor, in place of a limit.")
    ] = False,
    base: Annotated[
        Path | None,
        typer.Option(
            help="Describe only the differences from this checkpoint, a file or folder of any format, or an .sws file. "
            "`softshare decompress --base` puts both together."
        ),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION|PATH",
            help="Put errors where inputs feel them the least, with --bits, --max-bytes or --loss-increase. The "
            "function takes nothing and returns the network, which gets the weights of the checkpoint, some batches of "
            "its inputs and, if the loss is to be measured, a loss of outputs and labels. For a folder of Hugging "
            "Face, a file or a folder of texts or pictures will do.",
        ),
    ] = None,
    refine: Annotated[
        int,
        typer.Option(
            metavar="STEPS",
            min=0,
            help="With --calibrate, train the values of the codebooks, norms and biases for so many steps, towards the "
            "outputs of the network itself.",
        ),
    ] = 0,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write a page there, with a table of the tensors and a figure of bits against errors.",
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
    from rich.text import Text

    from softshare._util.files import require_other, require_plain, require_writable, written_together
    from softshare._util.run_folder import made_folder
    from softshare.cli.console import console
    from softshare.cli.file_table import print_file_table
    from softshare.cli.summary import after_a_file, checkpoint_panel
    from softshare.codec import inspect as inspect_file
    from softshare.datafree.compress_weights import ERROR, compress_weights
    from softshare.integrations.hf_folder import about, copy_beside, is_of_hub, require_absent, weights_stem

    out = console()
    if not checkpoint.exists():
        raise ConfigError(f"expected a checkpoint, but there is no file or folder {checkpoint}")
    of_hub = checkpoint.is_dir() and is_of_hub(checkpoint)
    if file is None and checkpoint.is_dir():
        own = checkpoint.resolve()
        file = own.with_name(f"{own.name}-sws") / f"{weights_stem(checkpoint)}.sws"
    file = file or checkpoint.with_suffix(".sws")
    if file == checkpoint and checkpoint.suffix == ".sws":
        raise ConfigError(f"{checkpoint} is a .sws file already; expected a checkpoint of another format")
    require_other(file, checkpoint)
    if file.is_dir():
        raise ConfigError(f"--out: expected the name of a file, but {file} is a folder")
    require_plain(file)
    if file.exists() and not overwrite:
        raise ConfigError(f"{file} already exists. Give --overwrite or another --out")
    if of_hub and not overwrite:
        require_absent(checkpoint, file.parent)
    start = time.perf_counter()
    rules = overrides.pop("rules", ())
    with made_folder(file.parent):
        require_writable(file.parent)
        source, batches, loss = (checkpoint, None, None) if calibrate is None else _network(checkpoint, calibrate)
        fitted = compress_weights(
            source,
            calibrate=batches,
            loss=loss,
            loss_increase=loss_increase,
            refine=refine,
            bits=bits,
            max_bytes=max_bytes,
            weight_error=weight_error,
            base=base,
            lossless=lossless,
            rules=rules,
            config=EncodeConfig(**overrides),
        )
        with written_together() as files:
            files.write(file, fitted.file.pieces())
            if of_hub:
                copy_beside(checkpoint, file.parent, files, about(file.name, fitted.bits_per_weight))
    out.print(checkpoint_panel(fitted, checkpoint, time.perf_counter() - start))
    if all(limit is None for limit in (bits, max_bytes, weight_error, loss_increase)) and not lossless:
        out.print(
            f"The default error of {100 * ERROR:g}% was used. Change it with --weight-error, --bits or --max-bytes."
        )
    out.print(after_a_file(file, base))
    if report is not None:
        from softshare.report.quantized_page import write_quantized_report

        out.print(f"Page: {write_quantized_report(fitted, report, checkpoint.name)}")
    if verbose:
        out.print()
        print_file_table(out, inspect_file(file), str(file))
        if fitted.errors:
            out.print(Text(f"Cost of each tensor:\n{fitted.table()}"))
            worst = max(fitted.errors, key=lambda name: fitted.errors[name])
            out.print(f"The tensor with the largest error is {worst}.")


def _network(checkpoint: Path, spec: str) -> tuple[nn.Module, Iterable[Any], Any]:
    """A network with the weights of the checkpoint, batches of its inputs, and a loss or None."""
    from softshare.cli.task_options import load_calibration
    from softshare.network.checkpoint import load_checkpoint

    if ".py:" not in spec:
        from softshare.integrations.hf_calibration import calibration

        return *calibration(checkpoint, Path(spec)), None
    model, batches, loss = load_calibration(spec)
    try:
        model.load_state_dict(load_checkpoint(checkpoint))
    except RuntimeError as problem:
        raise ConfigError(f"--calibrate: the network of {spec} cannot take the weights: {problem}") from None
    return model, batches, loss
