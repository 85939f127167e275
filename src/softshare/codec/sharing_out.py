"""What several processes do: each codes the tensors that it owns, and the others get them."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import torch
from torch import Tensor

from softshare.codec import sections
from softshare.codec.header import DTYPES, Entry, Header, Rest
from softshare.codec.parallel import Run, parts_in_threads
from softshare.codec.reading import some_rows
from softshare.distributed.group import Group, as_tensor, shared_out
from softshare.distributed.shards import group_of, has_some_rows, local, narrowed, spans
from softshare.quantization.quantized import QuantizedTensor, index_dtype


def exchanged(
    own: Iterator[tuple[Entry, bytes]], entries: Sequence[Entry], owners: Sequence[int], group: Group
) -> Iterator[tuple[Entry, bytes]]:
    """All sections in order, of which this process has coded its own. All are coded before the first one is sent."""
    if group.size == 1:
        yield from own
        return
    coded = deque(own)
    for entry, owner in zip(entries, owners, strict=True):
        found, data = coded.popleft() if owner == group.rank else (entry, b"")
        kind, section = group.first([dataclasses.asdict(found.kind), as_tensor(data)], owner)
        data = section.numpy().tobytes()
        yield dataclasses.replace(entry, n_bytes=len(data), kind=dataclasses.replace(entry.kind, **kind)), data


def decode_shards_(
    target: Mapping[str, Tensor],
    aliases: Mapping[str, list[str]],
    file: BinaryIO,
    header: Header,
    threads: int | None,
) -> None:
    """Each process decodes the rows that it holds, of tensors whose code can be cut there.

    The others are shared out: each is decoded whole by the process that owns it, and sent to the others.
    """
    group = group_of(target.values())
    targets = {entry.name: [target[alias] for alias in aliases[entry.name]] for entry in header.entries}
    if group.size == 1:
        decoded = sections.decode(file, header, header.entries, threads)
    else:
        threads = threads or 1
        cut = {entry.name for entry in header.entries if _is_cut(entry, header, targets[entry.name])}
        with parts_in_threads(sum(e.n for e in header.entries if e.name in cut) // group.size, threads) as run:
            for entry in header.entries:
                if entry.name in cut:
                    with sections.within(entry):
                        _decode_rows_(targets[entry.name], entry, file, header, run)
        decoded = _decode_own(file, header, [e for e in header.entries if e.name not in cut], threads, group)
    for name, tensor in decoded:
        for own in targets[name]:
            with torch.no_grad():
                local(own).copy_(_part(tensor, spans(own)))


def _is_cut(entry: Entry, header: Header, targets: Sequence[Tensor]) -> bool:
    """Whether rows can be decoded without those before them, and all targets have only some rows on each process."""
    kind = entry.kind
    by_rows = kind.static or (not kind.planes if isinstance(kind, Rest) else kind.bands)
    return by_rows and not header.compact and all(map(has_some_rows, targets))


def _decode_rows_(targets: Sequence[Tensor], entry: Entry, file: BinaryIO, header: Header, run: Run) -> None:
    book = None if isinstance(entry.kind, Rest) else header.codebooks[entry.kind.codebook]
    decoded: dict[range, QuantizedTensor | Tensor] = {}
    for target in targets:
        held = spans(target)
        rows = held[0]
        if local(target).numel():
            if rows not in decoded:
                decoded[rows] = some_rows(file, entry, rows, book, header.codec, run)
            with torch.no_grad():
                local(target).copy_(_part(decoded[rows], [range(len(rows)), *held[1:]]))


def _decode_own(
    file: BinaryIO, header: Header, entries: Sequence[Entry], threads: int, group: Group
) -> Iterator[tuple[str, QuantizedTensor | Tensor]]:
    """These tensors on each process. Each decodes those that it owns: one at a time, while the others do the same."""
    owners = shared_out([e.n for e in entries], group.size)
    owned = list(zip(entries, owners, strict=True))
    own_of_each = [[entry for entry, owner in owned if owner == k] for k in range(group.size)]
    mine = sections.decode(file, header, own_of_each[group.rank], threads)
    for turn in itertools.zip_longest(*own_of_each):
        held = next(mine)[1] if turn[group.rank] else None
        for owner, entry in enumerate(turn):
            if entry:
                yield entry.name, _sent(held if owner == group.rank else None, entry, header, group, owner)


def _sent(
    held: QuantizedTensor | Tensor | None, entry: Entry, header: Header, group: Group, owner: int
) -> QuantizedTensor | Tensor:
    if isinstance(entry.kind, Rest):
        dense = torch.empty(entry.shape, dtype=DTYPES[entry.kind.dtype]) if held is None else held
        assert isinstance(dense, Tensor)
        return group.send_(dense.contiguous(), owner)
    values = torch.from_numpy(header.codebooks[entry.kind.codebook].values)
    indices = torch.empty(entry.n, dtype=index_dtype(len(values)))
    if isinstance(held, QuantizedTensor):
        indices = held.indices.contiguous()
    scaled = entry.kind.row_scales or entry.kind.column_scales
    own = [held.row_scales, held.column_scales] if isinstance(held, QuantizedTensor) else None
    rows, columns = group.first(own, owner) if scaled else (None, None)
    indices = group.send_(indices, owner)
    return QuantizedTensor(entry.name, entry.shape, DTYPES[entry.kind.dtype], indices, values, rows, columns)


def _part(tensor: QuantizedTensor | Tensor, held: Sequence[range]) -> Tensor:
    """The values at these indices along each dimension."""
    if isinstance(tensor, Tensor):
        return narrowed(tensor, held)
    if tensor.row_scales is not None or tensor.column_scales is not None:
        return narrowed(tensor.dense(), held)
    indices = narrowed(tensor.indices.view(tensor.shape), held)
    part = dataclasses.replace(tensor, shape=tuple(indices.shape), indices=indices.reshape(-1))
    return part.dense()
