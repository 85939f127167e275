"""A `.sws` file to tensors: all of them, those of some names, some rows, one after another, or into a network.

Tensors are decoded one by one; threads share the work for a large network. Beside the network itself, memory holds a
few tensors at most.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Collection, Iterator
from typing import BinaryIO

import torch
from torch import Tensor, nn

from softshare.codec import sections
from softshare.codec.base import Base, BaseSource
from softshare.codec.budget import MAX_BYTES
from softshare.codec.header import DTYPES, Entry, Header, Shared
from softshare.codec.opening import (
    check_limits,
    names_of_each,
    open_header,
    required_base,
    unchanged_names,
    wanted_names,
)
from softshare.codec.parallel import parts_in_threads
from softshare.codec.placing import as_dense, dense_on, straight_into
from softshare.codec.reading import Source, checked_rows, decoded_part, is_open, name_of, opened, some_rows
from softshare.codec.sharing_out import decode_shards_
from softshare.distributed.shards import Sharded, is_sharded
from softshare.errors import ConfigError
from softshare.network.weights import check_fits, layout
from softshare.network.wrapped import under_names, unwrapped
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

_PARTIAL = "give strict=False to load it and to leave what is missing as it is in the model"


def decode(
    data: bytes, *, like: nn.Module | None = None, max_bytes: int | None = MAX_BYTES, threads: int | None = None
) -> QuantizedWeights:
    """The quantized weights in the bytes of a file. `like` and `max_bytes` are as in `load`."""
    file = io.BytesIO(data)
    header = open_header(file, like)
    check_limits(file, header, wanted_names(header, None), max_bytes)
    tensors = dict(sections.decode(file, header, header.entries, threads))
    quantized = tuple(t for t in tensors.values() if isinstance(t, QuantizedTensor))
    kept = {name: t for name, t in tensors.items() if isinstance(t, Tensor)}
    return QuantizedWeights(quantized, kept, header.tied, tuple(tensors), base=header.base, alone=header.alone)


def load(
    path: Source,
    names: Collection[str] | None = None,
    *,
    rows: range | None = None,
    device: torch.device | str | None = None,
    like: nn.Module | None = None,
    base: BaseSource | Base | None = None,
    max_bytes: int | None = MAX_BYTES,
    threads: int | None = None,
) -> dict[str, Tensor]:
    """The state dict that a file decodes to:

        model.load_state_dict(softshare.load("model.sws"))

    A tied name gives the same tensor object as the name it repeats. A file without names needs `like`, the network it
    was written for.

    `max_bytes` limits the bytes of the tensors, and a tied tensor counts under each of its names. The work of decoding
    is limited too, to 2^30 steps of about 10 ns and 128 for each byte of the file. A `max_bytes` above the default
    raises this limit in proportion. A file beyond a limit is refused before anything is decoded. None: no limit.

    With `names` and `rows`, only the blocks that hold these rows are read: `rows=range(100, 200)` of each tensor named.
    A tensor whose code has no blocks is decoded whole. The file may be any object with `read` and `seek`, such as one
    that fetches ranges over HTTP. Where parts are read so, the checksum of the whole cannot be compared.

    On a GPU, large dense tensors are copied as coded bytes and decoded there.

    Args:
        path: of the file, or an object with `read` and `seek`.
        names: decode only these tensors.
        rows: decode only these rows, the entries of the first dimension.
        device: where the tensors are put; by default the CPU.
        like: the network that a file without names was written for.
        base: the checkpoint that the file differs from: a network, its state dict or a path, as for `quantize`. It is
            needed by a file of differences alone, and must hold the very values that the file was made from.
        max_bytes: the most that the tensors may take.
        threads: that decode; by default as many as the file and the machine allow.

    Returns:
        The tensors by name.
    """
    where = torch.device(device or "cpu")
    with opened(path) as file:
        header = open_header(file, like, whole=rows is None and (names is None or not is_open(path)))
        if rows is not None:
            return _load_rows(file, header, names, rows, base is None, max_bytes, threads, where)
        under = required_base(header, base, max_bytes)
        wanted = wanted_names(header, names, under)
        stored = set(wanted.values())
        entries = [e for e in header.entries if e.name in stored]
        check_limits(file, header, wanted, max_bytes)
        state = dict(dense_on(where, file, header, entries, under, threads))
    if under is not None:
        state |= {name: under[name].clone().to(where) for name in stored if name not in state}
    return {name: state[stored] for name, stored in wanted.items()}


def _load_rows(
    file: BinaryIO,
    header: Header,
    names: Collection[str] | None,
    rows: range,
    alone: bool,
    max_bytes: int | None,
    threads: int | None,
    where: torch.device,
) -> dict[str, Tensor]:
    if names is None or header.base or not alone:
        raise ConfigError("rows: expected the names of the tensors too, and a file that stands alone")
    wanted = wanted_names(header, names)
    stored = {e.name: e for e in header.entries if e.name in set(wanted.values())}
    for entry in stored.values():
        checked_rows(entry, rows)
    decoded: dict[str, Entry] = {}
    for name, entry in stored.items():
        with sections.within(entry):
            decoded[name] = decoded_part(file, entry, rows)
    check_limits(file, header, wanted, max_bytes, decoded)
    if header.compact:
        whole = dict(sections.decode(file, header, list(stored.values()), threads))
        parts = {name: as_dense(name, t, None)[rows.start : rows.stop].clone().to(where) for name, t in whole.items()}
        return {name: parts[own] for name, own in wanted.items()}
    state = {}
    with parts_in_threads(sum(part.n for part in decoded.values()), threads) as run:
        for name, entry in stored.items():
            with sections.within(entry):
                book = header.codebooks[entry.kind.codebook] if isinstance(entry.kind, Shared) else None
                part = some_rows(file, entry, rows, book, header.codec, run)
                state[name] = as_dense(name, part, None).to(where)
    return {name: state[own] for name, own in wanted.items()}


def kinds(path: str | os.PathLike[str], *, base: Base | None = None) -> dict[str, Tensor]:
    """The tensors that a file decodes to, on the device `meta`, in the order of `stream`."""
    with opened(path) as file:
        header = open_header(file, None)
        under = required_base(header, base)
        stored = {e.name: torch.empty(e.shape, dtype=DTYPES[e.kind.dtype], device="meta") for e in header.entries}
        found = {name: stored[own] for own, names in names_of_each(header).items() for name in names}
        return found | {name: under[name].to("meta") for name in unchanged_names(header, under) if under}


def stream(
    path: str | os.PathLike[str], *, base: Base | None = None, max_bytes: int | None = MAX_BYTES
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of `load`, one after another: memory never holds all of them."""
    with opened(path) as file:
        header = open_header(file, None)
        under = required_base(header, base)
        check_limits(file, header, wanted_names(header, None), max_bytes)
        names = names_of_each(header)
        for name, tensor in sections.decode(file, header, header.entries, None):
            dense = as_dense(name, tensor, None if name in header.alone else under)
            for own in names[name]:
                yield own, dense
        if under is not None:
            for name in unchanged_names(header, under):
                yield name, under[name]


def load_into_(
    model: nn.Module,
    path: Source,
    *,
    strict: bool = True,
    base: BaseSource | Base | None = None,
    threads: int | None = None,
) -> None:
    """Copy a file's tensors into the model, in place and one by one:

        softshare.load_into_(model, "model.sws")

    No tensor is larger than the model's own. If the model is sharded, every process must call this. A tensor that
    is sharded by rows, and whose code can be read in parts, is decoded on each process as far as that process holds it.
    Any other is decoded by one of them, which sends its indices to the others.

    If any tensor does not fit, raise an error that lists all that do not, and copy none. With `strict=False` the file
    may lack tensors of the model, which stay as they are.

    Args:
        model: on any device, of the shapes that the file was written from.
        path: of the file.
        strict: whether the file must have every tensor of the model.
        base: as in `load`. It may be the model itself.
        threads: that decode; by default as many as the file and the machine allow.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"load_into_: expected a torch.nn.Module, then a file, got {type(model).__name__} first")
    with opened(path) as file:
        header = open_header(file, model)
        under = required_base(header, base)
        names = under_names(wanted_names(header, None, under), unwrapped(model).state_dict())
        for alias, name in layout(unwrapped(model))[1].items():  # a file need not name what the model ties
            known = names.get(name, names.get(alias))
            names = names if known is None else {alias: known, name: known, **names}
        stored = {e.name: torch.empty(e.shape, dtype=DTYPES[e.kind.dtype], device="meta") for e in header.entries}
        unchanged = [] if under is None else [name for name in set(names.values()) if name not in stored]
        stored |= {name: under[name].to("meta") for name in unchanged if under}
        fitting = {name: stored[s] for name, s in names.items()}
        target = check_fits(model, fitting, name_of(path), strict=strict, advice=_PARTIAL)
        aliases: dict[str, list[str]] = {}
        for name, s in names.items():
            aliases.setdefault(s, []).append(name)
        if any(map(is_sharded, target.values())):
            if header.base:
                raise ConfigError("expected a network that is whole, because the file holds differences from a base")
            decode_shards_(target, aliases, file, header, threads)
        else:
            where, straight = straight_into(target, aliases)
            decoded = dense_on(where, file, header, header.entries, under, threads, straight)
            for name, dense in itertools.chain(decoded, ((name, under[name]) for name in unchanged if under)):
                with torch.no_grad():
                    for alias in aliases[name]:
                        if target[alias].data_ptr() != dense.data_ptr():
                            target[alias].copy_(dense)
    Sharded(model).settle_()
