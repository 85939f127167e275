"""A model of transformers in a folder: its own configuration, and its weights in a .sws file."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Protocol

import torch

from softshare._util.files import make_folder
from softshare._util.run_folder import MODEL
from softshare.codec import load_into_
from softshare.errors import ConfigError, NotAvailableError
from softshare.integrations.hf_folder import CONFIG, QUANTIZATION, about

GENERATION = "generation_config.json"  # as transformers names it


class Savable(Protocol):
    """A `Compressed`, or the `FittedWeights` of a checkpoint."""

    def save(self, path: str | os.PathLike[str]) -> int: ...


def save_pretrained(model: Any, compressed: Savable, folder: str | os.PathLike[str], tokenizer: Any = None) -> int:
    """Write the configuration of a model of transformers, its compressed weights and its tokenizer, if given:

        softshare.save_pretrained(model, softshare.quantize(model, bits=4), "small")

    Args:
        model: of transformers.
        compressed: what `compress`, a callback or `quantize` made of this model.
        folder: to write to. The weights are in its file model.sws.
        tokenizer: of the model, or None.

    Returns:
        The size of the .sws file in bytes.
    """
    if not hasattr(getattr(model, "config", None), "save_pretrained"):
        raise ConfigError(f"save_pretrained: expected a model of transformers, got {type(model).__name__}")
    dtypes = {tensor.dtype for tensor in model.state_dict().values() if tensor.is_floating_point()}
    if len(dtypes) > 1:
        raise ConfigError(
            f"save_pretrained: expected weights of one dtype, which the configuration names, got {_names(dtypes)}. "
            "Convert the model first, as by model.float()"
        )
    make_folder(folder := Path(folder))
    config = copy.deepcopy(model.config)  # the user's own stays as it is
    config.architectures = [type(model).__name__]
    field = "dtype" if hasattr(config, "dtype") else "torch_dtype"  # until version 4 of transformers
    setattr(config, field, dtypes.pop())
    size = compressed.save(folder / MODEL)
    setattr(config, QUANTIZATION, about(MODEL, 8 * size / sum(p.numel() for p in model.parameters())))
    config.save_pretrained(folder)
    if getattr(model, "generation_config", None) is not None and model.can_generate():
        model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return size


def from_pretrained(folder: str | os.PathLike[str], auto_class: Any = None) -> Any:
    """The model of a folder of `save_pretrained` or of `softshare quantize`, in evaluation mode:

        model = softshare.from_pretrained("small")

    Nothing is downloaded, and no code of the folder is run.

    Args:
        folder: with config.json and model.sws.
        auto_class: the class of transformers, such as `AutoModel`, if not the one that the configuration names.

    Returns:
        The model.
    """
    try:
        import transformers
    except ImportError as error:
        raise NotAvailableError("from_pretrained needs transformers: pip install 'softshare[huggingface]'") from error

    folder = Path(folder)
    missing = [name for name in (CONFIG, MODEL) if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{folder}: expected a folder of save_pretrained, but there is no {' and no '.join(missing)}")
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    described = getattr(config, QUANTIZATION, None)
    if described is not None:  # what is loaded is an ordinary model, and is saved as one
        delattr(config, QUANTIZATION)
    kind = auto_class or named_class(transformers, config)
    model = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    dtype = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if dtype is not None:
        model.to(dtype)
    load_into_(model, folder / MODEL)
    if (folder / GENERATION).is_file() and model.can_generate():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model.eval()


def named_class(transformers: Any, config: Any) -> Any:
    """The class that a configuration names. It must be a model of transformers."""
    [name] = config.architectures if len(config.architectures or ()) == 1 else [""]
    kind = getattr(transformers, name, None) if name else None
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ConfigError(
            f"from_pretrained: transformers has no model of the name {name!r}; give its class, as in "
            "from_pretrained(folder, AutoModelForCausalLM)"
        )
    return kind


def _names(dtypes: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
