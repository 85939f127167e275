"""The mixture's loss and all its gradients in one sweep on the GPU, in Triton.

Each warp works alone. A thread holds one weight and the terms of all components in registers, so threads exchange
nothing until the sums at the end. A weight and a component take 10 instructions and one exponential. The next weights
are loaded while these are computed. Programs walk over the weights in a fixed order, and each writes its own sums. A
second kernel adds those up in float64, so every run gives the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32  # weights of a program at a time: one for each thread of its one warp
PROGRAMS_PER_SM = 64
MOST_IN_REGISTERS = 32  # components beside the first that a thread can hold
TILE = 2048  # weights of a program in the kernel for more components
REGISTERS = {16: 128}  # of a thread, by free components: 16 warps on a multiprocessor are worth a few spilled registers
ROWS = 128  # rows of partial sums at a time
OPTIONS = {"enable_fp_fusion": True}  # not every version of Triton has this default
FAST = os.environ.get("TRITON_INTERPRET") != "1"  # single instructions for exp2 and 1 / x; the interpreter has none

LOG2_E = tl.constexpr(1.4426950408889634)
FAINT_BITS = tl.constexpr(0x0D800000)  # the float 2^-100
LOG_2PI = tl.constexpr(1.8378770664093453)
TO_NATS = tl.constexpr(1.3862943611198906)  # 2 log 2


@triton.jit
def _exp2(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return tl.exp2(x)


@triton.jit
def _log2(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return tl.log2(x)


@triton.jit
def _inverse(x, FAST: tl.constexpr):
    if FAST:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return 1.0 / x


@triton.jit
def _prepare(log_mixing_ptr, mean_ptr, log_var_ptr, out_ptr, components, WIDTH: tl.constexpr):
    """log2 of each highest density, the mean, and the root of half the precision in log2 units, each rounded once."""
    j = tl.arange(0, WIDTH)
    live = j < components
    log_var = tl.load(log_var_ptr + j, mask=live, other=0.0).to(tl.float64)
    log_mixing = tl.load(log_mixing_ptr + j, mask=live, other=-1e30).to(tl.float64)
    tl.store(out_ptr + j, ((log_mixing - 0.5 * (log_var + LOG_2PI)) * LOG2_E).to(tl.float32))
    tl.store(out_ptr + WIDTH + j, tl.load(mean_ptr + j, mask=live, other=0.0))
    tl.store(out_ptr + 2 * WIDTH + j, tl.sqrt(tl.exp(-log_var) * (0.5 * LOG2_E)).to(tl.float32))


@triton.jit
def _store_grad(grad_ptr, at, grad, scale_ptr, mask, ADD: tl.constexpr):
    if ADD:
        grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32) + tl.load(scale_ptr) * grad
    tl.store(grad_ptr + at, grad, mask=mask)


@triton.jit
def _sweep_in_registers(
    w_ptr, grad_ptr, scale_ptr, times_ptr, mixture_ptr, out_ptr, n,
    FREE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    GRAD: tl.constexpr, ADD: tl.constexpr, TIMES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """With y = (w - mean) root, log2 of a term is constant - y^2. A program sums r, r y, r (p d^2 - 1) and log2 p.

    The highest density replaces the largest term, which saves two instructions for each term. If some weight is so far
    from every component that its total is faint, its block is computed again with the largest term.
    """
    j = 1 + tl.arange(0, FREE)
    constant0, mean0, root0 = tl.load(mixture_ptr), tl.load(mixture_ptr + WIDTH), tl.load(mixture_ptr + 2 * WIDTH)
    constant = tl.load(mixture_ptr + j)
    mean = tl.load(mixture_ptr + WIDTH + j)[:, None]
    root = tl.load(mixture_ptr + 2 * WIDTH + j)[:, None]
    highest = tl.maximum(tl.max(constant, 0), constant0)
    constant0 -= highest
    constant = (constant - highest)[:, None]
    sum_r0 = tl.zeros([BLOCK], tl.float32)
    sum_y0 = tl.zeros([BLOCK], tl.float32)
    sum_yy0 = tl.zeros([BLOCK], tl.float32)
    sum_r = tl.zeros([FREE, BLOCK], tl.float32)
    sum_y = tl.zeros([FREE, BLOCK], tl.float32)
    sum_yy = tl.zeros([FREE, BLOCK], tl.float32)
    evidence = tl.zeros([BLOCK], tl.float32)

    program = tl.program_id(0)
    step = tl.num_programs(0) * BLOCK
    lane = tl.arange(0, BLOCK)
    at = program * BLOCK + lane
    ahead = tl.load(w_ptr + at, mask=at < n, other=0.0)
    for start in range(program * BLOCK, n, step):
        at = start + lane
        live = at < n
        w = ahead.to(tl.float32)
        ahead = tl.load(w_ptr + at + step, mask=at + step < n, other=0.0)
        y0 = (w - mean0) * root0
        y = (w[None, :] - mean) * root
        term0 = _exp2(constant0 - y0 * y0, FAST)
        term = _exp2(constant - y * y, FAST)
        total = tl.sum(term, 0) + term0
        largest = tl.zeros([BLOCK], tl.float32)
        if tl.min(total.to(tl.int32, bitcast=True), 0) < FAINT_BITS:
            joint0 = constant0 - y0 * y0
            joint = constant - y * y
            largest = tl.maximum(tl.max(joint, 0), joint0)
            term0 = _exp2(joint0 - largest, FAST)
            term = _exp2(joint - largest[None, :], FAST)
            total = tl.sum(term, 0) + term0
        times = tl.load(times_ptr + at, mask=live, other=0.0) if TIMES else 1.0
        evidence += tl.where(live, times * (highest + largest + _log2(total, FAST)), 0.0)
        if GRAD or TIMES:
            inverse = tl.where(live, times * _inverse(total, FAST), 0.0)
            ty0 = term0 * y0
            ty = term * y
            if GRAD:
                grad = (root0 * ty0 + tl.sum(root * ty, 0)) * (inverse * TO_NATS)
                _store_grad(grad_ptr, at, grad, scale_ptr, live, ADD)
            sum_r0 += term0 * inverse
            sum_y0 += ty0 * inverse
            sum_yy0 += (ty0 * y0) * inverse
            sum_r += term * inverse[None, :]
            sum_y += ty * inverse[None, :]
            sum_yy += (ty * y) * inverse[None, :]

    row = out_ptr + program * (3 * WIDTH + 1)
    tl.store(row + 3 * WIDTH, tl.sum(evidence, 0))
    if GRAD or TIMES:
        tl.store(row, tl.sum(sum_r0, 0))
        tl.store(row + WIDTH, tl.sum(sum_y0, 0) * root0 * TO_NATS)
        tl.store(row + 2 * WIDTH, tl.sum(sum_yy0 * TO_NATS - sum_r0, 0))
        tl.store(row + j, tl.sum(sum_r, 1))
        tl.store(row + WIDTH + j, tl.sum(sum_y * (root * TO_NATS), 1))
        tl.store(row + 2 * WIDTH + j, tl.sum(sum_yy * TO_NATS - sum_r, 1))


@triton.jit
def _sweep_in_tiles(
    w_ptr, grad_ptr, scale_ptr, times_ptr, mixture_ptr, out_ptr, n, components,
    WIDTH: tl.constexpr, TILE: tl.constexpr,
    GRAD: tl.constexpr, ADD: tl.constexpr, TIMES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The same for any number of components. A program takes one tile of weights and each component three times."""
    program = tl.program_id(0)
    at = program * TILE + tl.arange(0, TILE)
    live = at < n
    w = tl.load(w_ptr + at, mask=live, other=0.0).to(tl.float32)
    largest = tl.full([TILE], float("-inf"), tl.float32)
    for j in range(components):
        y = (w - tl.load(mixture_ptr + WIDTH + j)) * tl.load(mixture_ptr + 2 * WIDTH + j)
        largest = tl.maximum(largest, tl.load(mixture_ptr + j) - y * y)
    total = tl.zeros([TILE], tl.float32)
    for j in range(components):
        y = (w - tl.load(mixture_ptr + WIDTH + j)) * tl.load(mixture_ptr + 2 * WIDTH + j)
        total += _exp2(tl.load(mixture_ptr + j) - y * y - largest, FAST)
    times = tl.load(times_ptr + at, mask=live, other=0.0) if TIMES else 1.0
    row = out_ptr + program * (3 * WIDTH + 1)
    tl.store(row + 3 * WIDTH, tl.sum(tl.where(live, times * (largest + _log2(total, FAST)), 0.0), 0))
    if GRAD or TIMES:
        inverse = tl.where(live, times * _inverse(total, FAST), 0.0)
        grad = tl.zeros([TILE], tl.float32)
        for j in range(components):
            root = tl.load(mixture_ptr + 2 * WIDTH + j)
            y = (w - tl.load(mixture_ptr + WIDTH + j)) * root
            r = inverse * _exp2(tl.load(mixture_ptr + j) - y * y - largest, FAST)
            pull = r * y * root * TO_NATS
            grad += pull
            tl.store(row + j, tl.sum(r, 0))
            tl.store(row + WIDTH + j, tl.sum(pull, 0))
            tl.store(row + 2 * WIDTH + j, tl.sum(r * (y * y * TO_NATS - 1.0), 0))
        if GRAD:
            _store_grad(grad_ptr, at, grad, scale_ptr, live, ADD)


@triton.jit
def _add_up(in_ptr, out_ptr, rows, components, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Program k adds up the k-th of 3 * components sums over the rows, in float64. The last one adds up the loss."""
    k = tl.program_id(0)
    i = tl.arange(0, ROWS)
    column = tl.where(k == 3 * components, 3 * WIDTH, k // components * WIDTH + k % components)
    total = tl.zeros([ROWS], tl.float64)
    for start in range(0, rows, ROWS):
        at = start + i
        total += tl.load(in_ptr + at * (3 * WIDTH + 1) + column, mask=at < rows, other=0.0).to(tl.float64)
    tl.store(out_ptr + k, tl.sum(total, 0) * tl.where(k == 3 * components, -1.0 / LOG2_E, 1.0))


def sweep(
    weights: Sequence[Tensor],
    log_mixing: Tensor,  # (J,)
    mean: Tensor,  # (J,)
    log_var: Tensor,  # (J,)
    grads: Sequence[Tensor] | None,
    scale: Tensor | None = None,
    times: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """A `Sweep`. Nothing here waits for the GPU, so a graph can capture it."""
    components = len(mean)
    in_registers = components - 1 <= MOST_IN_REGISTERS
    free = triton.next_power_of_2(max(1, components - 1))
    width = triton.next_power_of_2(free + 1)
    mixture = torch.empty(3, width, device=mean.device)
    _prepare[(1,)](
        log_mixing.contiguous(), mean.contiguous(), log_var.contiguous(), mixture, components, WIDTH=width, **OPTIONS
    )
    rows = [_programs(len(w), mean.device, in_registers) for w in weights]
    only_loss = grads is None and times is None  # the sums are then 0
    partial = (torch.zeros if only_loss else torch.empty)(sum(rows), 3 * width + 1, device=mean.device)
    kinds = {"GRAD": grads is not None, "ADD": scale is not None, "TIMES": times is not None, "FAST": FAST, **OPTIONS}
    first = 0
    for k, (w, n_rows) in enumerate(zip(weights, rows, strict=True)):
        if n_rows == 0:
            continue
        given = (w, grads[k] if grads else w, mean if scale is None else scale, times[k] if times else w)
        arguments = (*given, mixture, partial[first : first + n_rows], len(w))
        if in_registers:
            sizes = {"FREE": free, "WIDTH": width, "BLOCK": BLOCK}
            _sweep_in_registers[(n_rows,)](*arguments, **sizes, **kinds, num_warps=1, maxnreg=REGISTERS.get(free, 255))
        else:
            _sweep_in_tiles[(n_rows,)](*arguments, components, WIDTH=width, TILE=tile(len(w)), **kinds)
        first += n_rows
    out = torch.empty(3 * components + 1, dtype=torch.float64, device=mean.device)
    _add_up[(3 * components + 1,)](partial, out, first, components, WIDTH=width, ROWS=ROWS, **OPTIONS)
    return out[-1], out[:-1].view(3, components)


def _programs(n: int, device: torch.device, in_registers: bool) -> int:
    blocks = -(-n // (BLOCK if in_registers else tile(n)))
    return min(blocks, PROGRAMS_PER_SM * _multiprocessors(device)) if in_registers else blocks


def tile(n: int) -> int:
    """Few weights, such as a table's points, take smaller tiles, so that every multiprocessor has some."""
    return TILE if n > 2**18 else 128


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 2
