"""What decoding may cost: a limit of bytes and a limit of work (docs/format.md 7).

Both are computed from the header and the first bytes of each section, and checked before anything is decoded. A small
file can declare a lot: weights that the models predict take almost no bytes, and a tied name takes four.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from softshare.codec import shared_section as shared
from softshare.codec import steps
from softshare.codec.header import DTYPES, Entry, Header, Rest, Shared
from softshare.codec.symbols import matrix_shape
from softshare.errors import FormatError

MAX_BYTES = 1 << 32  # of all decoded tensors, unless the caller says otherwise
MAX_WORK = 1 << 30  # steps of about 10 ns, beside those that the size of the file accounts for
WORK_PER_BYTE = 128  # steps; a dense network takes about 40 for each byte of its file


def check_budget(
    header: Header,
    names: Iterable[str],  # of the stored tensor, once for each name to decode: a tied name counts too
    file_bytes: int,
    first_bytes: Callable[[Entry], bytes],  # of a section
    max_bytes: int | None,
    parts: Mapping[str, Entry] = MappingProxyType({}),  # of tensors of which only some rows are decoded
) -> None:
    """Raise `FormatError` if the tensors take too many bytes or too much work. None: no limit."""
    if max_bytes is None:
        return
    sizes = {entry.name: parts.get(entry.name, entry).decoded_bytes for entry in header.entries}
    sizes |= {name: sizes[name] + _row_scales(entry) for entry in header.entries if (name := entry.name) in parts}
    wanted = list(names)
    total = sum(sizes[name] for name in wanted)
    if total > max_bytes:
        raise FormatError(
            f"expected at most {max_bytes:,} bytes of decoded tensors, got {total:,}, each tied name counted; raise "
            "max_bytes to allow it",
            "header",
            0,
        )
    limit = (MAX_WORK + WORK_PER_BYTE * file_bytes) * max(1.0, max_bytes / MAX_BYTES)
    stored = set(wanted)
    work = sum(
        _steps(header, entry, parts.get(entry.name, entry), first_bytes(entry))
        for entry in header.entries
        if entry.name in stored
    )
    if work > limit:
        raise FormatError(
            f"expected at most {limit:,.0f} steps of decoding from {file_bytes:,} bytes, got {work:,}; if you trust "
            f"the file, raise max_bytes to {math.ceil(max(max_bytes, MAX_BYTES) * work / limit):,}",
            "header",
            0,
        )


def _row_scales(entry: Entry) -> int:
    """Those of all rows are decoded, also for a part."""
    has_scales = isinstance(entry.kind, Shared) and entry.kind.row_scales and entry.n
    return matrix_shape(entry.shape)[0] if has_scales else 0


def _steps(header: Header, entry: Entry, part: Entry, first: bytes) -> int:
    """About how many steps a part of a section takes. A section that will be refused at once may count as less."""
    kind = entry.kind
    if isinstance(kind, Rest):
        itemsize = DTYPES[kind.stored].itemsize
        modes = int.from_bytes(first[: math.ceil(itemsize / 4)], "little") if kind.planes else 0
        coded = sum((modes >> (2 * plane)) & 3 == 2 for plane in range(itemsize))
        return steps.TENSOR + (steps.STATIC if kind.static else steps.PLANE_BYTE) * coded * part.n
    try:
        n_nonzero, _ = shared.read_n_nonzero(first)
    except FormatError:
        return steps.TENSOR
    n_columns = matrix_shape(entry.shape)[1] if entry.n else 0
    scales = steps.PLANE_BYTE * (_row_scales(entry) + kind.column_scales * n_columns)
    if kind.static and n_nonzero:
        return steps.TENSOR + scales + steps.STATIC * part.n
    if n_nonzero == 0 or header.codec == "han":
        return steps.TENSOR + scales + steps.han(part.n)
    n_values = len(header.codebooks[kind.codebook].values)
    return steps.TENSOR + scales + steps.adaptive(part.n, n_nonzero, n_values, kind.bands)
