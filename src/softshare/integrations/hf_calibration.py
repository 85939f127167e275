"""A model of transformers from a folder, and batches to calibrate it on, from texts or pictures of the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from softshare._util.files import cannot_read
from softshare._util.user_code import call
from softshare.errors import ConfigError, NotAvailableError
from softshare.integrations.hf_folder import CONFIG, QUANTIZATION
from softshare.integrations.pretrained import named_class

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
TOKENS = 512  # of a window
MOST_WINDOWS, WINDOWS = 32, 4  # of all texts, and of a batch
MOST_PICTURES, PICTURES_OF_BATCH = 128, 16


def calibration(folder: Path, given: Path) -> tuple[Any, list[dict[str, Any]]]:
    """The model of a Hugging Face folder, and batches of a file or a folder of texts or pictures."""
    try:
        import transformers
    except ImportError as error:
        raise NotAvailableError(
            "--calibrate FOLDER needs transformers: pip install 'softshare[huggingface]'"
        ) from error
    if not (folder / CONFIG).is_file():
        raise ConfigError(
            f"--calibrate {given}: texts and pictures need a checkpoint that is a folder of Hugging Face, but "
            f"{folder} is none. Give FILE.py:FUNCTION instead"
        )
    files = _files(given)
    own: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(folder, **own)
    if getattr(config, QUANTIZATION, None) is not None:
        raise ConfigError(f"{folder}: expected weights that are not quantized, but config.json has {QUANTIZATION}")
    kind = named_class(transformers, config)
    model = call(f"the model of {folder}", kind.from_pretrained, folder, config=config, dtype="auto", **own).eval()
    if files[0].suffix.lower() in PICTURES:
        processor = call("the image processor", transformers.AutoImageProcessor.from_pretrained, folder, **own)
        return model, _of_pictures(processor, files)
    tokenizer = call("the tokenizer", transformers.AutoTokenizer.from_pretrained, folder, **own)
    return model, _of_texts(tokenizer, files, model)


def _files(given: Path) -> list[Path]:
    """Pictures if there are any, else all files. Hidden ones are left out."""
    if given.is_file():
        return [given]
    if not given.is_dir():
        raise ConfigError(f"--calibrate: there is no file or folder {given}")
    found = sorted(p for p in given.rglob("*") if p.is_file() and not p.name.startswith("."))
    pictures = [p for p in found if p.suffix.lower() in PICTURES]
    if not found:
        raise ConfigError(f"--calibrate: expected texts or pictures in {given}, found no file")
    return pictures or found


def _of_texts(tokenizer: Any, files: Sequence[Path], model: Any) -> list[dict[str, Any]]:
    """Windows of one length, evenly from all of the text, with the tokens that the model expects around them.

    For a model that predicts the next token they are the labels, too.
    """
    config = model.config
    text = "\n\n".join(_read(path) for path in files)
    length = min(TOKENS, getattr(config, "max_position_embeddings", None) or TOKENS)
    options = {"truncation": True, "max_length": length, "return_overflowing_tokens": True}
    found = call("the tokenizer", tokenizer, text, **options)["input_ids"]
    windows = [ids for ids in found if len(ids) == length]
    if not windows:
        raise ConfigError(f"--calibrate: expected at least {length} tokens of text, got {sum(map(len, found))}")
    step = max(1, len(windows) / MOST_WINDOWS)
    chosen = torch.tensor([windows[int(k * step)] for k in range(min(MOST_WINDOWS, len(windows)))])
    labels = model.can_generate() and not config.is_encoder_decoder  # a language model, which shifts them itself
    return [{"input_ids": part} | ({"labels": part} if labels else {}) for part in chosen.split(WINDOWS)]


def _of_pictures(processor: Any, files: Sequence[Path]) -> list[dict[str, Any]]:
    from PIL import Image

    step = max(1, len(files) / MOST_PICTURES)
    chosen = [files[int(k * step)] for k in range(min(MOST_PICTURES, len(files)))]
    batches = []
    for start in range(0, len(chosen), PICTURES_OF_BATCH):
        images = []
        for path in chosen[start : start + PICTURES_OF_BATCH]:
            try:
                images.append(Image.open(path).convert("RGB"))
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                raise ConfigError(f"--calibrate: {path} is not a picture that can be read: {error}") from None
        batches.append(dict(call("the image processor", processor, images=images, return_tensors="pt")))
    return batches


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise cannot_read(path, error) from error
    except UnicodeDecodeError:
        raise ConfigError(f"--calibrate: expected text in UTF-8, but {path} is none") from None
