"""Folders of a checkpoint: one file of weights, or shards with an index, as Hugging Face and PEFT write them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from softshare._util.files import cannot_read
from softshare.errors import ConfigError, FormatError
from softshare.network.readers.lazy import LazyTensors

INDEX = ".index.json"
ENDINGS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".onnx")
PREFERRED = (  # if a folder has several
    "model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin",
)  # fmt: skip
ADAPTER = "adapter_config.json"  # what makes a folder one of PEFT
BESIDE = (  # files that belong to a network, beside its weights. A name, or how it begins
    "config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", "modules.json",
    "config_sentence_transformers.json", "sentence_bert_config.json", ADAPTER, "tokenizer", "vocab", "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "spiece.model", "sentencepiece", "chat_template", "LICENSE",
)  # fmt: skip
_SHARD = re.compile(r"-\d{5}-of-(\d{5})\.[a-z]+$")
MOST_BESIDE = 1 << 28  # bytes of such a file
MOST_INDEX = 1 << 28


def weights_file(folder: Path) -> Path:
    """The file of weights in a folder, or the index of its shards."""
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise cannot_read(folder, error) from error
    indices = [name for name in names if name.endswith(INDEX)]
    plain = [name for name in names if name.endswith(ENDINGS)]
    for found in (PREFERRED[:2], indices, PREFERRED[2:], plain):
        known = [name for name in found if name in names]
        best = [name for name in known if "safetensors" in name] or known
        if len(best) == 1:
            if (part := _SHARD.search(best[0])) and int(part[1]) > 1:
                raise ConfigError(f"{folder} has only one of {int(part[1])} shards, {best[0]}, and no index of them")
            return folder / best[0]
        if best:
            some = ", ".join(best[:10])
            raise ConfigError(f"{folder} has several checkpoints: {some}. Name the file that you want")
    raise ConfigError(
        f"cannot read {folder}: expected a file of weights in it ({', '.join(ENDINGS)}) or the index of its shards, "
        f"found {', '.join(names[:10]) or 'nothing'}"
    )


def shards(index: Path) -> dict[str, list[str]]:
    """The names of the tensors in each file of an index."""
    try:
        if index.stat().st_size > MOST_INDEX:
            raise FormatError(f"{index}: expected an index of at most {MOST_INDEX} bytes, got {index.stat().st_size}")
        content = json.loads(index.read_bytes())
    except OSError as error:
        raise cannot_read(index, error) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{index} is not an index of shards: {str(error).splitlines()[0]}") from None
    where = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(where, dict) or not where:
        raise FormatError(f"{index} is not an index of shards: expected a weight_map of tensors to files")
    files: dict[str, list[str]] = {}
    for name, file in where.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", "..") or "\0" in file:
            raise FormatError(f"{index}: expected {name!r} in a file of the same folder, got {file!r}")
        files.setdefault(file, []).append(name)
    return files


def joined(index: Path, parts: Mapping[str, Mapping[str, Tensor]], names: Mapping[str, list[str]]) -> LazyTensors:
    """The tensors of all shards, in the order of the index's files."""
    kinds: dict[str, Tensor] = {}
    home: dict[str, Mapping[str, Tensor]] = {}
    for file, part in parts.items():
        listed = set(names[file])
        missing = [name for name in names[file] if name not in part]
        extra = [name for name in part if name not in listed]
        if missing or extra:
            where = "is not in it" if missing else "is in it too"
            some = ", ".join((missing or extra)[:3])
            raise FormatError(f"{index}: expected the tensors of {file} that the index names, but {some} {where}")
        for name, tensor in _kinds(part).items():
            kinds[name], home[name] = tensor, part
    return LazyTensors(kinds, lambda name: home[name][name])


def _kinds(part: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return part.kinds if isinstance(part, LazyTensors) else {name: tensor.to("meta") for name, tensor in part.items()}


def beside(folder: str | os.PathLike[str]) -> list[Path]:
    """Files of configuration and of the tokenizer in a folder, to copy with the weights. Links are left out."""
    return [
        path
        for path in sorted(Path(folder).iterdir())
        if path.name.startswith(BESIDE)
        and not path.name.endswith((*ENDINGS, ".py"))
        and path.is_file()
        and not path.is_symlink()
        and path.stat().st_size <= MOST_BESIDE
    ]
