"""What the tests of loading into a sharded network run in each of several processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import softshare as ss
from samples import shared
from softshare import codec
from softshare.codec.adaptive import bands
from softshare.codec.opening import open_header
from softshare.config import EncodeConfig
from softshare.distributed.group import Group, world
from softshare.distributed.shards import whole
from softshare.distributed.wrap import shard_
from softshare.quantization.quantized import QuantizedWeights

ROWS, COLUMNS = 301, 300  # two processes cannot share the rows out evenly
# Smaller ones would have other codes.
CONFIGS = {
    "static": EncodeConfig(speed="fastest"),
    "bands": EncodeConfig(speed="balanced"),
    "adaptive": EncodeConfig(speed="smallest"),
}


class Matrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Linear(COLUMNS, ROWS, bias=False) for _ in range(2))


def weights(code: str) -> QuantizedWeights:
    """A matrix that is shared, with scales of its rows, and one that is not."""
    own = shared("first.weight", (ROWS, COLUMNS), density=0.6 if code == "static" else 0.1)
    own = dataclasses.replace(own, row_scales=torch.arange(ROWS).remainder(5).to(torch.int8))
    draw = torch.Generator().manual_seed(1)
    kept = torch.randn(ROWS, COLUMNS, generator=draw)
    if code == "bands":  # stored raw: no code is smaller
        bits = torch.randint(-(2**31), 2**31, (ROWS, COLUMNS), generator=draw).to(torch.int32)
        finite = bits.view(torch.float32).isfinite()
        kept = torch.where(finite, bits, bits & ~(1 << 23)).view(torch.float32)
    return QuantizedWeights((own,), {"last.weight": kept}, {})


def runs(folder: Path) -> dict[str, Any]:
    """By the code of a file: how its tensors are stored, what was sent to load it, and the network's tensors."""
    found = {}
    for code, config in CONFIGS.items():
        path, model = folder / f"{code}.sws", shard_(Matrices())
        with mock.patch.object(bands, "FROM", 1 << 10):
            codec.save(weights(code), path, config, group=world())
        with path.open("rb") as file:
            kinds = {entry.name: entry.kind for entry in open_header(file, None).entries}
        with mock.patch.object(Group, "send_", autospec=True, side_effect=Group.send_) as sending:
            ss.load_into_(model, path)
        sent = sum(call.args[1].nbytes for call in sending.call_args_list)
        found[code] = {
            "kinds": kinds,
            "sent": sent,
            "loaded": {name: whole(w, world()) for name, w in model.state_dict().items()},
        }
    return found
