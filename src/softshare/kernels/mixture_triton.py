"""The mixture's loss and all its gradients in one sweep on the GPU, in Triton.

One warp works alone: each thread holds one weight and the terms of all components in registers, so that nothing is
exchanged between threads until the sums at the end. A weight and a component take 12 instructions and one exponential,
and the next weights are loaded while these are computed. Programs walk over the weights in a fixed order and write
their sums apart; a second kernel adds those up in float64: the same bits in every run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32  # weights of a program at a time: one per thread of its one warp
PROGRAMS_PER_SM = 64
MOST_IN_REGISTERS = 32  # components beside the first that a thread can hold
TILE = 2048  # weights of a program of the kernel for more of them
ROWS = 128  # of partial sums at a time
FAST = os.environ.get("TRITON_INTERPRET") != "1"  # single instructions for exp2 and 1 / x; the interpreter has none

LOG2_E = tl.constexpr(1.4426950408889634)
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
def _parameters(log_mixing_ptr, mean_ptr, log_var_ptr, j, components):
    """log2 of the largest density, mean, and the root of half the precision, in log2 units; each rounded once."""
    live = j < components
    log_var = tl.load(log_var_ptr + j, mask=live, other=0.0).to(tl.float64)
    log_mixing = tl.load(log_mixing_ptr + j, mask=live, other=-1e30).to(tl.float64)
    constant = ((log_mixing - 0.5 * (log_var + LOG_2PI)) * LOG2_E).to(tl.float32)
    root = tl.sqrt(tl.exp(-log_var) * (0.5 * LOG2_E)).to(tl.float32)
    return constant, tl.load(mean_ptr + j, mask=live, other=0.0), root


@triton.jit
def _sweep_in_registers(
    w_ptr, grad_ptr, log_mixing_ptr, mean_ptr, log_var_ptr, out_ptr, n, components,
    FREE: tl.constexpr, BLOCK: tl.constexpr, GRAD: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """With y = (w - mean) root, log2 of a term is constant - y^2. Sums of a program: r, r y, r (p d^2 - 1), log2 p."""
    WIDTH: tl.constexpr = FREE + 1
    j = 1 + tl.arange(0, FREE)
    constant0, mean0, root0 = _parameters(log_mixing_ptr, mean_ptr, log_var_ptr, 0, components)
    constant, mean, root = _parameters(log_mixing_ptr, mean_ptr, log_var_ptr, j, components)
    constant, mean, root = constant[:, None], mean[:, None], root[:, None]
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
        joint0 = constant0 - y0 * y0
        joint = constant - y * y
        largest = tl.maximum(tl.max(joint, 0), joint0)
        term0 = _exp2(joint0 - largest, FAST)
        term = _exp2(joint - largest[None, :], FAST)
        total = tl.sum(term, 0) + term0
        evidence += tl.where(live, largest + _log2(total, FAST), 0.0)
        if GRAD:
            inverse = tl.where(live, _inverse(total, FAST), 0.0)
            ty0 = term0 * y0
            ty = term * y
            grad = (root0 * ty0 + tl.sum(root * ty, 0)) * (inverse * TO_NATS)
            tl.store(grad_ptr + at, grad, mask=live)
            sum_r0 += term0 * inverse
            sum_y0 += ty0 * inverse
            sum_yy0 += (ty0 * y0) * inverse
            sum_r += term * inverse[None, :]
            sum_y += ty * inverse[None, :]
            sum_yy += (ty * y) * inverse[None, :]

    row = out_ptr + program * (3 * WIDTH + 1)
    tl.store(row + 3 * WIDTH, tl.sum(evidence, 0))
    if GRAD:
        tl.store(row, tl.sum(sum_r0, 0))
        tl.store(row + WIDTH, tl.sum(sum_y0, 0))
        tl.store(row + 2 * WIDTH, tl.sum(sum_yy0 * TO_NATS - sum_r0, 0))
        tl.store(row + j, tl.sum(sum_r, 1))
        tl.store(row + WIDTH + j, tl.sum(sum_y, 1))
        tl.store(row + 2 * WIDTH + j, tl.sum(sum_yy * TO_NATS - sum_r, 1))


@triton.jit
def _sweep_in_tiles(
    w_ptr, grad_ptr, log_mixing_ptr, mean_ptr, log_var_ptr, out_ptr, n, components,
    TILE: tl.constexpr, GRAD: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The same for any number of components: one tile of weights a program, each component three times."""
    program = tl.program_id(0)
    at = program * TILE + tl.arange(0, TILE)
    live = at < n
    w = tl.load(w_ptr + at, mask=live, other=0.0).to(tl.float32)
    largest = tl.full([TILE], float("-inf"), tl.float32)
    for j in range(components):
        constant, mean, root = _parameters(log_mixing_ptr, mean_ptr, log_var_ptr, j, components)
        y = (w - mean) * root
        largest = tl.maximum(largest, constant - y * y)
    total = tl.zeros([TILE], tl.float32)
    for j in range(components):
        constant, mean, root = _parameters(log_mixing_ptr, mean_ptr, log_var_ptr, j, components)
        y = (w - mean) * root
        total += _exp2(constant - y * y - largest, FAST)
    row = out_ptr + program * (3 * components + 1)
    tl.store(row + 3 * components, tl.sum(tl.where(live, largest + _log2(total, FAST), 0.0), 0))
    if GRAD:
        inverse = tl.where(live, _inverse(total, FAST), 0.0)
        grad = tl.zeros([TILE], tl.float32)
        for j in range(components):
            constant, mean, root = _parameters(log_mixing_ptr, mean_ptr, log_var_ptr, j, components)
            y = (w - mean) * root
            r = inverse * _exp2(constant - y * y - largest, FAST)
            grad += root * r * y * TO_NATS
            tl.store(row + j, tl.sum(r, 0))
            tl.store(row + components + j, tl.sum(r * y, 0))
            tl.store(row + 2 * components + j, tl.sum(r * (y * y * TO_NATS - 1.0), 0))
        tl.store(grad_ptr + at, grad, mask=live)


@triton.jit
def _add_up(in_ptr, log_var_ptr, out_ptr, rows, width, components, ROWS: tl.constexpr):
    """Component j, of one program: sums of r, r p d and r (p d^2 - 1) over the rows; past the last one: the loss."""
    j = tl.program_id(0)
    stride = 3 * width + 1
    i = tl.arange(0, ROWS)
    if j == components:
        loss = tl.zeros([ROWS], tl.float64)
        for start in range(0, rows, ROWS):
            at = start + i
            loss += tl.load(in_ptr + at * stride + 3 * width, mask=at < rows, other=0.0).to(tl.float64)
        tl.store(out_ptr + 3 * components, -tl.sum(loss, 0) / LOG2_E)
    else:
        r = tl.zeros([ROWS], tl.float64)
        ry = tl.zeros([ROWS], tl.float64)
        excess = tl.zeros([ROWS], tl.float64)
        for start in range(0, rows, ROWS):
            at = start + i
            row = in_ptr + at * stride + j
            r += tl.load(row, mask=at < rows, other=0.0).to(tl.float64)
            ry += tl.load(row + width, mask=at < rows, other=0.0).to(tl.float64)
            excess += tl.load(row + 2 * width, mask=at < rows, other=0.0).to(tl.float64)
        root = tl.sqrt(tl.exp(-tl.load(log_var_ptr + j).to(tl.float64)) * (0.5 * LOG2_E))
        tl.store(out_ptr + j, tl.sum(r, 0))
        tl.store(out_ptr + components + j, root * tl.sum(ry, 0) * TO_NATS)
        tl.store(out_ptr + 2 * components + j, tl.sum(excess, 0))


def sweep(
    weights: Sequence[Tensor],
    log_mixing: Tensor,  # (J,)
    mean: Tensor,  # (J,)
    log_var: Tensor,  # (J,)
    grads: Sequence[Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """A `Sweep`. Nothing here waits for the GPU, so it can be captured into a graph."""
    components = len(mean)
    in_registers = components - 1 <= MOST_IN_REGISTERS
    width = 1 + triton.next_power_of_2(max(1, components - 1)) if in_registers else components
    mixture = [t.detach().contiguous() for t in (log_mixing, mean, log_var)]
    flats = [w.detach().reshape(-1) for w in weights]
    rows = [_programs(len(flat), mean.device, in_registers) for flat in flats]
    partial = torch.empty(sum(rows), 3 * width + 1, device=mean.device)
    first = 0
    for k, (flat, n_rows) in enumerate(zip(flats, rows, strict=True)):
        if n_rows == 0:
            continue
        grad = flat if grads is None else grads[k].view(-1)
        arguments = (flat, grad, *mixture, partial[first : first + n_rows], len(flat), components)
        if in_registers:
            _sweep_in_registers[(n_rows,)](
                *arguments, FREE=width - 1, BLOCK=BLOCK, GRAD=grads is not None, FAST=FAST, num_warps=1
            )
        else:
            _sweep_in_tiles[(n_rows,)](*arguments, TILE=TILE, GRAD=grads is not None, FAST=FAST)
        first += n_rows
    out = torch.empty(3 * components + 1, dtype=torch.float64, device=mean.device)
    _add_up[(components + 1,)](partial, mixture[2], out, first, width, components, ROWS=ROWS)
    return out[-1], out[:-1].view(3, components)


def _programs(n: int, device: torch.device, in_registers: bool) -> int:
    blocks = -(-n // (BLOCK if in_registers else TILE))
    return min(blocks, PROGRAMS_PER_SM * _multiprocessors(device)) if in_registers else blocks


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 2
