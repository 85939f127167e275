"""Files of safetensors."""

from __future__ import annotations

import itertools
import os

import safetensors
import torch
from torch import Tensor

from softshare._util.files import cannot_read, no_safetensors, require_readable
from softshare.network.readers.lazy import LazyTensors, read_span


def open_safetensors(path: str | os.PathLike[str]) -> LazyTensors:
    """The header is read once. A tensor is read when you ask for it, as a copy.

    Tensors from an open `safe_open` would be views of the mapped file, and everything read from them would stay in
    memory.
    """
    require_readable(path)
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
            names, order = file.keys(), file.offset_keys()
            kinds = {name: torch.empty_like(file.get_tensor(name), device="meta") for name in names}
        start = os.path.getsize(path) - sum(kind.nbytes for kind in kinds.values())  # the data has no gaps
    except OSError as error:
        raise cannot_read(path, error) from error
    except safetensors.SafetensorError as error:
        raise no_safetensors(path, error) from None
    starts = dict(zip(order, itertools.accumulate((kinds[k].nbytes for k in order), initial=start), strict=False))

    def read(name: str) -> Tensor:
        kind = kinds[name]
        return torch.from_numpy(read_span(path, starts[name], kind.nbytes)).view(kind.dtype).reshape(kind.shape)

    return LazyTensors(kinds, read, metadata)
