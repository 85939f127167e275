"""Files of `torch.save`: .pt, .pth, .bin and Lightning's .ckpt. Only tensors are read, and no code of the file runs."""

from __future__ import annotations

import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from softshare._util.files import cannot_read, require_readable
from softshare.errors import FormatError
from softshare.network.wrapped import WRAPPERS

ZIP, PICKLE = b"PK\x03\x04", b"\x80"  # how a file of torch.save begins: today's, and that of before 2020
LIGHTNING = "pytorch-lightning_version"  # in every checkpoint of Lightning
MOST_LEVELS = 3  # of dicts and tuples in one another
MOST_PARTS = 100  # of a tuple or list that are looked at


def is_torch_file(path: str | os.PathLike[str]) -> bool:
    """Whether it begins as such a file does. The header of a safetensors file begins at byte 8."""
    require_readable(path)
    try:
        with open(path, "rb") as file:
            start = file.read(9)
    except OSError as error:
        raise cannot_read(path, error) from error
    return start[8:] != b"{" and start.startswith((ZIP, PICKLE))


def load_torch_file(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The state dict in a file, wherever in it that is, with its names as in the bare network.

    A file of today's form is mapped, not read: a tensor comes into memory when it is used.
    """
    content = _loaded(path)
    found = dict(_states(content))
    if isinstance(content, Mapping) and LIGHTNING in content:
        found = {place: state for place, state in found.items() if place == "['state_dict']"}
    if not found:
        raise FormatError(f"{os.fspath(path)}: expected the state dict of a network in it, found {_kind(content)}")
    if len(found) > 1:
        parts = ", ".join(f"{place} ({len(state)} tensors)" for place, state in found.items())
        raise FormatError(
            f"{os.fspath(path)} has several state dicts: {parts}. Save the one that you want: "
            f"torch.save(torch.load({os.fspath(path)!r}, weights_only=True){next(iter(found))}, 'weights.pt')"
        )
    return _bare(next(iter(found.values())))


def _loaded(path: str | os.PathLike[str]) -> Any:
    try:
        is_zip = zipfile.is_zipfile(path)
        if is_zip:
            _require_stored(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about TorchScript, which is refused below
            return torch.load(os.fspath(path), map_location="cpu", weights_only=True, mmap=is_zip)
    except OSError as error:
        raise cannot_read(path, error) from error
    except FormatError:
        raise
    except pickle.UnpicklingError as error:
        raise _no_weights(path, error) from None
    except Exception as error:  # a damaged file fails in many ways
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise FormatError(f"{os.fspath(path)} is not a file of torch.save, or it is damaged ({problem})") from None


def _require_stored(path: str | os.PathLike[str]) -> None:
    """Raise for TorchScript, and for a packed file: torch.save packs nothing, and a small file could become huge."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(member.filename.endswith("/constants.pkl") for member in members):
        raise FormatError(
            f"{os.fspath(path)} is a TorchScript program. Save its weights: "
            f"torch.save(torch.jit.load({os.fspath(path)!r}).state_dict(), 'weights.pt')"
        )
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise FormatError(f"{os.fspath(path)} is not a file of torch.save: it is packed")


def _no_weights(path: str | os.PathLike[str], error: Exception) -> FormatError:
    """A whole network was saved, or something else beside the weights."""
    name = re.search(r"(?:GLOBAL|global:?) ([\w.]+\.\w+)", str(error))
    what = f"an object of {name[1]}" if name else "objects that are not tensors"
    return FormatError(
        f"{os.fspath(path)} holds {what}, and to read that would run code of the file. Save the weights alone, where "
        "the network is made: torch.save(model.state_dict(), 'weights.pt'). If you trust the file, "
        f"torch.load({os.fspath(path)!r}, weights_only=False) gives you the network, or a dict with it"
    )


def _states(value: Any, place: str = "", levels: int = MOST_LEVELS) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The state dicts in a value, by how they are reached: "['model']". Those of optimizers do not count."""
    if isinstance(value, tuple | list):
        value = dict(enumerate(value[:MOST_PARTS]))
    if not isinstance(value, Mapping) or "param_groups" in value:
        return
    if _is_state(value):
        yield place, dict(value)
    elif levels:
        for name, inner in value.items():
            yield from _states(inner, f"{place}[{name!r}]", levels - 1)


def _is_state(value: Mapping[Any, Any]) -> bool:
    """Only tensors by names, and not only numbers or states of random generators."""
    tensors = [t for name, t in value.items() if isinstance(name, str) and isinstance(t, Tensor)]
    return len(tensors) == len(value) and any(t.is_floating_point() and t.dim() for t in tensors)


def _bare(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefix that DataParallel or torch.compile has given to every name."""
    while prefix := next((f"{w}." for w in WRAPPERS if all(name.startswith(f"{w}.") for name in state)), ""):
        state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(str, value)) or 'nothing'}"
    return "a tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
