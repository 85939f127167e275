"""The files beside the weights in a folder of Hugging Face or PEFT: configuration and tokenizer.

The configuration of a folder with a `.sws` file says so, under `quantization_config`. Programs that know only the usual
files of weights name us in their error. The configuration of a folder with plain weights does not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from softshare._util.files import Together, cannot_read
from softshare._util.run_folder import MODEL
from softshare.errors import ConfigError, FormatError
from softshare.network.readers.folder import ADAPTER, beside

CONFIG = "config.json"
QUANTIZATION = "quantization_config"
METHOD = "softshare"
ADAPTER_STEM = "adapter_model"  # of the weights of an adapter, as PEFT names them
MOST_CONFIG = 1 << 26  # bytes


def weights_stem(folder: Path) -> str:
    """How the file of weights is called in this folder, without its ending."""
    return ADAPTER_STEM if (folder / ADAPTER).is_file() else Path(MODEL).stem


def is_of_hub(folder: Path) -> bool:
    return (folder / CONFIG).is_file() or (folder / ADAPTER).is_file()


def about(weights: str, bits: float) -> dict[str, Any]:
    """What the configuration says of a .sws file."""
    return {"quant_method": METHOD, "weights": weights, "bits_per_weight": round(bits, 3)}


def require_absent(source: Path, target: Path) -> None:
    """Raise if a file that `copy_beside` would write is there already."""
    present = [path.name for path in beside(source) if (target / path.name).exists()]
    if present and not _same(source, target):
        raise ConfigError(f"{target / present[0]} already exists. Give --overwrite or another folder")


def copy_beside(source: Path, target: Path, files: Together, described: dict[str, Any] | None = None) -> list[str]:
    """Copy configuration and tokenizer to another folder, together with the weights, and return their names.

    The copy of config.json describes the .sws file, or, without such a description, plain weights.
    """
    if _same(source, target):
        return []
    names = []
    for path in beside(source):
        try:
            data = path.read_bytes()
        except OSError as error:
            raise cannot_read(path, error) from error
        if path.name == CONFIG:
            data = _described(path, data, described)
        files.write(target / path.name, data)
        names.append(path.name)
    return names


def _described(path: Path, data: bytes, described: dict[str, Any] | None) -> bytes:
    if len(data) > MOST_CONFIG:
        raise FormatError(f"{path}: expected a configuration of at most {MOST_CONFIG} bytes, got {len(data)}")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not a configuration in JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(config, dict):
        raise FormatError(f"{path}: expected a configuration in JSON, got {type(config).__name__}")
    config.pop(QUANTIZATION, None)
    if described is not None:
        config[QUANTIZATION] = described
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode(errors="surrogatepass")


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()
