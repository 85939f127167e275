"""Tensors with the static code on the GPU: their bytes are copied once, and decoded where they are wanted.

Nothing here waits for the GPU but `Pending.check`, which says after the last tensor whether one of them was bad.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softshare.codec import shared_section as shared
from softshare.codec.header import DTYPES, Codebook, Entry, Rest
from softshare.codec.planes import CODED, CONSTANT, RAW
from softshare.codec.static import layout
from softshare.codec.static.layout import UNIT, Layout
from softshare.codec.static.planes import read_constant, read_modes
from softshare.codec.static.tables import MOST_SYMBOLS
from softshare.codec.symbols import matrix_shape
from softshare.codec.wire import Reader
from softshare.errors import FormatError
from softshare.quantization.scales import FACTORS

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by itemsize: dtypes that hold bits
DECODED = (torch.float32, torch.float16, torch.bfloat16)


def decodes(entry: Entry, device: torch.device) -> bool:
    """Whether the GPU decodes this tensor itself. All others are decoded on the CPU."""
    if device.type != "cuda" or find_spec("triton") is None or not entry.n or not entry.n_bytes:
        return False
    if isinstance(entry.kind, Rest):
        return entry.kind.static and entry.kind.stored == entry.kind.dtype
    return entry.kind.static and DTYPES[entry.kind.dtype] in DECODED


@dataclass
class Pending:
    """Decoding that is under way on a device."""

    device: torch.device
    found: list[tuple[Entry, Tensor, int | None]] = field(default_factory=list)  # tensor, status, non-zeros
    kept: list[Tensor] = field(default_factory=list)  # host memory that is still being copied

    def check(self) -> None:
        """Wait, and raise `FormatError` if a code was bad."""
        if not self.found:
            return
        statuses = torch.stack([status for _, status, _ in self.found]).cpu().tolist()
        for (entry, _, expected), (bad, nonzero) in zip(self.found, statuses, strict=True):
            if bad or expected not in (None, nonzero):
                problem = f"expected chunks that end as they should, and {expected} weights that are not zero"
                got = f"{bad} bad lanes and {nonzero}"
                raise FormatError(f"{problem}; got {got}", f"tensor {entry.name!r}", entry.offset)
        self.found.clear()
        self.kept.clear()

    def uploaded(self, host: Tensor) -> Tensor:
        """A copy on the device. The host's memory is pinned, so that the copy need not be waited for."""
        if self.device.type != "cuda":
            return host
        pinned = host if host.is_pinned() else host.pin_memory()
        self.kept.append(pinned)
        return pinned.to(self.device, non_blocking=True)


def decode_into(
    data: bytes | memoryview,  # the section
    entry: Entry,
    codebook: Codebook | None,  # of a shared tensor
    target: Tensor,  # contiguous, of the shape and the dtype of the entry
    pending: Pending,
) -> None:
    reader = Reader(io.BytesIO(data), len(data))
    if isinstance(entry.kind, Rest):
        _rest_into(data, reader, entry, target, pending)
        return
    assert codebook is not None
    head = shared.read_head(reader, entry, entry.kind, codebook)
    code = layout.read(reader, *matrix_shape(entry.shape), len(codebook.values))
    if code.end != len(data):
        raise FormatError(f"expected a static code that ends at byte {len(data)} of its section, got {code.end}")
    values = torch.from_numpy(codebook.values)
    bits = BITS[target.element_size()]
    scales = None
    if head.rows is None and head.columns is None:
        values, out = values.to(target.dtype).view(bits), target.view(-1).view(bits)
    else:
        out = target.view(-1).view(torch.int16) if target.dtype == torch.bfloat16 else target.view(-1)
        sizes = matrix_shape(entry.shape)
        rows, columns = (
            pending.uploaded(torch.zeros(n, dtype=torch.int8) if s is None else s)
            for s, n in zip((head.rows, head.columns), sizes, strict=True)
        )
        scales = rows, columns, pending.uploaded(FACTORS)
    status = _decode(data, code, pending.uploaded(values), scales, out, pending)
    pending.found.append((entry, status, head.n_nonzero))


def _decode(
    data: bytes | memoryview,
    code: Layout,
    values: Tensor,
    scales: tuple[Tensor, Tensor, Tensor] | None,
    out: Tensor,
    pending: Pending,
) -> Tensor:
    """The status, which `Pending.check` reads."""
    from softshare.codec.static import decode_triton

    host = torch.empty((code.end - code.start) // UNIT, dtype=torch.int16, pin_memory=pending.device.type == "cuda")
    host.numpy()[:] = np.frombuffer(data, "<i2", len(host), code.start)
    status = torch.zeros(2, dtype=torch.int64, device=pending.device)
    arrays: list[npt.NDArray[np.generic]] = [code.offsets, code.lookup.view(np.int32), code.classes]
    offsets, lookup, classes = (pending.uploaded(torch.from_numpy(a)) for a in arrays)
    on_it = torch.cuda.device(pending.device) if pending.device.type == "cuda" else contextlib.nullcontext()
    with on_it:  # Triton launches on the current device
        decode_triton.decode(
            pending.uploaded(host), offsets, lookup, code.axis, classes, code.lanes, code.chunk, code.cols, values,
            scales, out, status,
        )  # fmt: skip
    return status


def _rest_into(data: bytes | memoryview, reader: Reader, entry: Entry, target: Tensor, pending: Pending) -> None:
    """Planes are decoded one by one, and put together by shifts of whole tensors."""
    itemsize, n = target.element_size(), entry.n
    bits = BITS[itemsize]
    modes = read_modes(reader, itemsize)
    flat = target.view(-1).view(bits)
    flat.zero_()
    identity = pending.uploaded(torch.arange(MOST_SYMBOLS, dtype=torch.uint8))
    for plane in range(itemsize - 1, -1, -1):
        if modes[plane] == CONSTANT:
            flat |= _signed(read_constant(reader) << (8 * plane), itemsize)
            continue
        if modes[plane] == RAW:
            octets = pending.uploaded(torch.from_numpy(np.frombuffer(bytearray(reader.take(n)), np.uint8)))
        elif modes[plane] == CODED:
            code = layout.read(reader, *matrix_shape(entry.shape), MOST_SYMBOLS)
            reader.take(code.end - code.start)
            octets = torch.empty(n, dtype=torch.uint8, device=pending.device)
            pending.found.append((entry, _decode(data, code, identity, None, octets, pending), None))
        else:
            continue
        flat |= octets.to(bits) << (8 * plane)
    reader.expect(not reader.remaining, "planes that end with their section", f"{reader.remaining} bytes more")
    if target.is_floating_point():  # rotate right by one bit
        top = _signed(1 << (8 * itemsize - 1), itemsize)
        sign = torch.where((flat & 1).bool(), top, 0).to(bits)
        flat.copy_((flat >> 1) & ~top | sign)


def _signed(bits: int, itemsize: int) -> int:
    """A number with these bits in two's complement."""
    return bits - (1 << (8 * itemsize)) if itemsize > 1 and bits >> (8 * itemsize - 1) else bits
