"""What decoding may cost: a limit of bytes and a limit of work (docs/format.md 7).

Both are computed from the header and the first bytes of each section, and checked before anything is decoded. A small
file can declare a lot: weights that the models predict take almost no bytes, and a tied name takes four.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from softshare.codec import shared_section as shared
from softshare.codec.header import DTYPES, Entry, Header, Rest
from softshare.codec.symbols import FAST_ABOVE
from softshare.errors import FormatError

MAX_BYTES = 1 << 32  # of all decoded tensors, unless the caller says otherwise
MAX_WORK = 1 << 30  # steps of about 10 ns, beside those that the size of the file accounts for
WORK_PER_BYTE = 128  # steps; a dense network takes about 40 for each byte of its file
FIRST_BYTES = 9  # of a section: enough for n_nonzero and for the modes of all planes

# Steps, by measurement (2.0 GHz x86): 65 ns a weight of the full model, 10 ns of the fast one and of Han's codec, 45 ns
# a bit of an index, 21 ns a bit of a coded plane. Tables and calls take up to 0.2 ms a tensor.
_TENSOR = 1 << 14
_FULL, _FAST, _INDEX_BIT, _PLANE_BYTE = 6, 1, 5, 16


def check_budget(
    header: Header,
    names: Iterable[str],  # of the stored tensor, once for each name to decode: a tied name counts too
    file_bytes: int,
    first_bytes: Callable[[Entry], bytes],  # of a section
    max_bytes: int | None,
) -> None:
    """Raise `FormatError` if the tensors take too many bytes or too much work. None: no limit."""
    if max_bytes is None:
        return
    sizes = {entry.name: entry.decoded_bytes for entry in header.entries}
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
    steps = sum(_steps(header, entry, first_bytes(entry)) for entry in header.entries if entry.name in stored)
    if steps > limit:
        raise FormatError(
            f"expected at most {limit:,.0f} steps of decoding from {file_bytes:,} bytes, got {steps:,}; if you trust "
            f"the file, raise max_bytes to {math.ceil(max(max_bytes, MAX_BYTES) * steps / limit):,}",
            "header",
            0,
        )


def _steps(header: Header, entry: Entry, first: bytes) -> int:
    """About how many steps a section takes. A section that will be refused at once may count as less."""
    if isinstance(entry.kind, Rest):
        itemsize = DTYPES[entry.kind.stored].itemsize
        modes = int.from_bytes(first[: math.ceil(itemsize / 4)], "little") if entry.kind.planes else 0
        coded = sum((modes >> (2 * plane)) & 3 == 2 for plane in range(itemsize))
        return _TENSOR + _PLANE_BYTE * coded * entry.n
    try:
        n_nonzero, _ = shared.read_n_nonzero(first)
    except FormatError:
        return _TENSOR
    if n_nonzero == 0 or header.codec == "han":  # the bytes of Han's code account for its entries
        return _TENSOR + _FAST * entry.n
    bits = (len(header.codebooks[entry.kind.codebook].values) - 2).bit_length()
    weights = (_FULL if entry.n <= FAST_ABOVE else _FAST) * entry.n
    return _TENSOR + weights + _INDEX_BIT * bits * min(n_nonzero, entry.n)
