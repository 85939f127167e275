"""The static code on the GPU, in Triton: a thread is a lane, and writes its weights where they belong.

A warp holds 32 lanes: one chunk of 32 lanes, or several chunks of fewer. A ballot tells each thread how many lanes
before it in its chunk take a word too. States never leave the registers (docs/format.md 13.3).
"""

from __future__ import annotations

import os

import triton
import triton.language as tl
from torch import Tensor

WARP = 32
WARPS = 4  # of a program, where there are many chunks
MANY = 1024  # warps
BALLOTS = os.environ.get("TRITON_INTERPRET") != "1"  # the interpreter has none

LEAST = tl.constexpr(65536)
SCALE_ORIGIN = tl.constexpr(256)  # where 0 is in the table of factors


@triton.jit
def _ranked(need, lane, LANES: tl.constexpr, SIZE: tl.constexpr, BALLOTS: tl.constexpr):
    """For each lane, how many lanes before it in its chunk need a word, and how many lanes of the chunk do."""
    if BALLOTS:
        votes = tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $1, 0; vote.sync.ballot.b32 $0, p, 0xffffffff; }",
            "=r,r", [need], tl.int32, False, 1,
        )  # fmt: skip
        if LANES < 32:
            own = tl.arange(0, SIZE) % 32 // LANES * LANES
            votes = (votes >> own) & ((1 << LANES) - 1)
        before = votes & ((1 << lane) - 1)
        rank = tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [before], tl.int32, True, 1)
        total = tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [votes], tl.int32, True, 1)
        return rank, total
    chunks = tl.reshape(need, (SIZE // LANES, LANES))
    rank = tl.reshape(tl.cumsum(chunks, 1), (SIZE,)) - need
    total = tl.broadcast_to(tl.sum(chunks, 1)[:, None], (SIZE // LANES, LANES))
    return rank, tl.reshape(total, (SIZE,))


@triton.jit
def _decode(
    units_ptr, offsets_ptr, lookup_ptr, classes_ptr, values_ptr, row_scales_ptr, column_scales_ptr, factors_ptr,
    out_ptr, status_ptr, n, cols, n_chunks, chunk, longest,
    AXIS: tl.constexpr, SCALED: tl.constexpr, NARROW: tl.constexpr, LANES: tl.constexpr, SIZE: tl.constexpr,
    BALLOTS: tl.constexpr,
):  # fmt: skip
    thread = tl.arange(0, SIZE)
    lane = thread % LANES
    number = tl.program_id(0).to(tl.int64) * (SIZE // LANES) + thread // LANES
    real = number < n_chunks
    begin = tl.load(offsets_ptr + number, mask=real, other=0)
    length = (tl.load(offsets_ptr + number + 1, mask=real, other=0) - begin).to(tl.int32)
    units = units_ptr + begin
    low = tl.load(units + 2 * lane, mask=real, other=0).to(tl.uint32) & 0xFFFF
    high = tl.load(units + 2 * lane + 1, mask=real, other=1).to(tl.uint32) & 0xFFFF
    state = low | high << 16
    bad = real & (state < LEAST)
    at = tl.zeros([SIZE], tl.int32) + 2 * LANES
    place = number * chunk + lane
    size = tl.minimum(n - number * chunk, chunk).to(tl.int32)
    row = place // cols
    column = (place - row * cols).to(tl.int32)
    nonzero = tl.zeros([SIZE], tl.int32)
    for first in range(0, longest, LANES):
        live = real & (first + lane < size)
        base = tl.zeros([SIZE], tl.int32)
        if AXIS == 1:
            base = tl.load(classes_ptr + row, mask=live, other=0).to(tl.int32) * 4096
        if AXIS == 2:
            base = tl.load(classes_ptr + column, mask=live, other=0).to(tl.int32) * 4096
        slot = (state & 4095).to(tl.int32)
        entry = tl.load(lookup_ptr + base + slot, mask=live, other=0).to(tl.uint32, bitcast=True)
        symbol = (entry & 255).to(tl.int32)
        state = tl.where(live, ((entry >> 8 & 4095) + 1) * (state >> 12) + (entry >> 20), state)
        need = live & (state < LEAST)
        rank, total = _ranked(need.to(tl.int32), lane, LANES, SIZE, BALLOTS)
        ahead = at + rank
        word = tl.load(units + ahead, mask=need & (ahead < length), other=0).to(tl.uint32) & 0xFFFF
        state = tl.where(need, state << 16 | word, state)
        at += total
        nonzero += (live & (symbol != 0)).to(tl.int32)
        value = tl.load(values_ptr + symbol, mask=live, other=0)
        if SCALED:
            exponent = tl.load(row_scales_ptr + row, mask=live, other=0).to(tl.int32)
            exponent += tl.load(column_scales_ptr + column, mask=live, other=0).to(tl.int32)
            product = value * tl.load(factors_ptr + exponent + SCALE_ORIGIN, mask=live, other=0)
            if out_ptr.dtype.element_ty == tl.int16:  # bfloat16, rounded to nearest, ties to even
                bits = product.to(tl.uint32, bitcast=True)
                value = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).to(tl.int16)
            else:
                value = product.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + place, value, mask=live)
        place += LANES
        if AXIS > 0 or SCALED:
            if NARROW:
                row = place // cols
                column = (place - row * cols).to(tl.int32)
            else:
                column += LANES
                over = column >= cols
                row += over.to(tl.int64)
                column = tl.where(over, column - cols, column).to(tl.int32)
    bad = bad | (real & ((state != LEAST) | (at != length)))
    tl.atomic_add(status_ptr, tl.sum(bad.to(tl.int64)))
    tl.atomic_add(status_ptr + 1, tl.sum(nonzero.to(tl.int64)))


def decode(
    units: Tensor,  # (units,) int16, of all chunks
    offsets: Tensor,  # (chunks + 1,) int64
    lookup: Tensor,  # (tables * 4096,) int32
    axis: int,
    classes: Tensor,  # uint8
    lanes: int,
    chunk: int,
    cols: int,
    values: Tensor,  # (V,) of the dtype of `out`; with scales float32
    scales: tuple[Tensor, Tensor, Tensor] | None,  # of the rows and columns, int8, and all factors
    out: Tensor,  # (n,) filled; with scales and bfloat16, its bits as int16
    status: Tensor,  # (2,) int64: the number of bad lanes and of symbols other than 0 are added
) -> None:
    n_chunks = len(offsets) - 1
    warps = triton.cdiv(n_chunks * lanes, WARP)
    per_program = WARPS if warps >= MANY else 1
    rows, columns, factors = scales or (classes, classes, values)
    programs = triton.cdiv(warps, per_program)
    sizes = {"LANES": lanes, "SIZE": WARP * per_program, "NARROW": cols < lanes, "AXIS": axis}
    ballots = BALLOTS and out.device.type == "cuda"
    _decode[(programs,)](
        units, offsets, lookup, classes, values, rows, columns, factors, out, status, out.numel(), cols, n_chunks,
        chunk, min(chunk, out.numel()), SCALED=scales is not None, BALLOTS=ballots, num_warps=per_program, **sizes,
    )  # fmt: skip
