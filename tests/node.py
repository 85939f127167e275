"""Asks the JavaScript decoder to read files, and says what Python makes of the same bytes."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from golden.make import digest
from softshare import codec
from softshare.codec.base import Base
from softshare.errors import ConfigError, FormatError, ModelError
from softshare.network.weights import layout
from softshare.quantization.quantized import QuantizedWeights

NODE = shutil.which("node")
NO_NODE = "no Node on this machine: apt-get install nodejs"
READ = Path(__file__).with_name("decoders") / "read.mjs"


def ask(requests: Sequence[dict[str, Any]], seconds: float = 300) -> list[dict[str, Any]]:
    """One answer for each request, from one process."""
    assert NODE is not None
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    ran = subprocess.run([NODE, str(READ)], input=lines, capture_output=True, text=True, timeout=seconds, check=True)
    return [json.loads(line) for line in ran.stdout.splitlines()]


def by_python(
    data: bytes, like: nn.Module | None = None, max_bytes: int | None = codec.MAX_BYTES, base: Base | None = None
) -> dict[str, Any]:
    """What Python makes of a file, as an answer of the JavaScript decoder."""
    try:
        state = codec.load(io.BytesIO(data), like=like, base=base, max_bytes=max_bytes)
    except FormatError as error:
        return {"error": "FormatError", "section": error.section, "offset": error.offset}
    except (ConfigError, ModelError) as error:
        return {"error": type(error).__name__, "section": None, "offset": None}
    return {"digests": {name: digest(tensor) for name, tensor in state.items()}}


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without its message, and without the order of tied names."""
    if "digests" in answer:
        return {"digests": dict(answer["digests"])}
    return {name: answer[name] for name in ("error", "section", "offset")}


def options(
    like: nn.Module | None, max_bytes: int | None = codec.MAX_BYTES, base: Base | None = None
) -> dict[str, Any]:
    """The options of a request for a file that may lack names, or hold differences from a base."""
    found: dict[str, Any] = {"maxBytes": max_bytes}
    if like is not None:
        tensors, tied = layout(like)
        found |= {"layout": [[name, list(t.shape)] for name, t in tensors.items()], "tied": tied}
    if base is not None:
        kept = {name: base[name].clone() for name in base.names}
        found["base"] = codec.encode(QuantizedWeights((), kept, {}, tuple(kept))).hex()
    return found
