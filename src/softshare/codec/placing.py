"""Dense tensors on their device. A GPU decodes large ones itself, straight into their targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

import torch
from torch import Tensor

from softshare.codec import sections
from softshare.codec.base import Base, restored
from softshare.codec.header import DTYPES, Entry, Header, Shared
from softshare.quantization.quantized import QuantizedTensor

NO_GPU = "cpu"  # a device that decodes nothing itself


def dense_on(
    where: torch.device,
    file: BinaryIO,
    header: Header,
    entries: Sequence[Entry],
    under: Base | None,
    threads: int | None,
    target: Callable[[Entry], Tensor | None] = lambda entry: None,  # where a tensor is wanted, of its shape and dtype
) -> Iterator[tuple[str, Tensor]]:
    """Tensors by name. Those that a GPU can decode come first, straight into their targets."""
    direct = [] if where.type == NO_GPU or under is not None else [e for e in entries if _on_gpu(e, where)]
    if direct:
        from softshare.codec.static import gpu

        pending = gpu.Pending(where)
        for entry in direct:
            out = target(entry)
            out = torch.empty(entry.shape, dtype=DTYPES[entry.kind.dtype], device=where) if out is None else out
            book = header.codebooks[entry.kind.codebook] if isinstance(entry.kind, Shared) else None
            with sections.within(entry):
                gpu.decode_into(sections.read(file, entry, entry.n_bytes), entry, book, out, pending)
            yield entry.name, out
        pending.check()
    others = [e for e in entries if e not in direct]
    for name, tensor in sections.decode(file, header, others, threads):
        yield name, as_dense(name, tensor, None if name in header.alone else under).to(where)


def _on_gpu(entry: Entry, where: torch.device) -> bool:
    if not entry.kind.static:
        return False
    from softshare.codec.static import gpu

    return gpu.decodes(entry, where)


def straight_into(
    target: Mapping[str, Tensor], aliases: Mapping[str, list[str]]
) -> tuple[torch.device, Callable[[Entry], Tensor | None]]:
    """The GPU that a model is on, if it is on one, and the model's own tensor where the file's can be decoded."""
    devices = {t.device for t in target.values()}
    where = devices.pop() if len(devices) == 1 else torch.device("cpu")

    def straight(entry: Entry) -> Tensor | None:
        own = target[aliases[entry.name][0]]
        fits = own.is_contiguous() and own.dtype == DTYPES[entry.kind.dtype]
        return own.detach() if fits else None

    return where, straight


def as_dense(name: str, tensor: QuantizedTensor | Tensor, base: Base | None) -> Tensor:
    """The tensor itself, where the file has its difference from the base's."""
    if isinstance(tensor, Tensor):
        return tensor
    if base is None:
        return tensor.dense()
    return restored(tensor, base.get(name))
