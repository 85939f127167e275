"""The arg-max and the sums over each component on the GPU, in Triton: one launch for each tensor, no synchronising."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from softshare.prior.kernels.assign_torch import Summed
from softshare.prior.kernels.sweep_triton import LOG2_E, LOG_2PI, OPTIONS, tile

AT_ONCE = 8  # components whose constants are computed side by side
MOST_PROGRAMS = 1056  # that sum one tensor, each with its own row of sums
MOST_SUMS = 32  # components in one such program
CELLS = 4096  # sums that the threads of one such program hold

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _precision(log_var):
    """exp(-log_var) to float32's rounding. `tl.exp` would multiply that error by the size of its argument."""
    exponent = log_var.to(tl.float64) * -LOG2_E
    near = exponent.to(tl.float32)
    power = tl.exp2(near)
    return power + power * ((exponent - near.to(tl.float64)) * LN_2).to(tl.float32)


@triton.jit
def _assign(
    w_ptr, log_mixing_ptr, mean_ptr, log_var_ptr, index_ptr, kept_ptr, n, components,
    KEEP: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < n
    own = tl.load(w_ptr + at, mask=live, other=0.0)
    w = own.to(tl.float32)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    index = tl.zeros([BLOCK], tl.int32)
    for start in range(0, components, AT_ONCE):
        for k in tl.static_range(AT_ONCE):
            j = start + k
            real = j < components
            log_var = tl.load(log_var_ptr + j, mask=real, other=0.0)
            log_mixing = tl.load(log_mixing_ptr + j, mask=real, other=float("-inf")).to(tl.float64)
            constant = (log_mixing - 0.5 * (log_var.to(tl.float64) + LOG_2PI)).to(tl.float32)
            distance = w - tl.load(mean_ptr + j, mask=real, other=0.0)
            joint = constant - distance * distance * (0.5 * _precision(log_var))
            larger = joint > largest
            index = tl.where(larger, j, index)
            largest = tl.where(larger, joint, largest)
    tl.store(index_ptr + at, index, mask=live)
    if KEEP:
        tl.store(kept_ptr + at, own, mask=live)
        tl.store(w_ptr + at, tl.load(mean_ptr + index), mask=live)


def assign(
    w: Tensor, log_mixing: Tensor, mean: Tensor, log_var: Tensor, index: Tensor, kept: Tensor | None = None
) -> None:
    """An `Assign`."""
    if not len(w):
        return
    mixture = (log_mixing.contiguous(), mean.contiguous(), log_var.contiguous())
    arguments = (w, *mixture, index, w if kept is None else kept, len(w), len(mean))
    block = tile(len(w))
    sizes = {"KEEP": kept is not None, "AT_ONCE": AT_ONCE, "BLOCK": block}
    _assign[(triton.cdiv(len(w), block),)](*arguments, **sizes, **OPTIONS)


@triton.jit
def _add_sums(index_ptr, values_ptr, sums_ptr, n, width, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Program (p, c) adds the sums of its share of the values to row p, for WIDTH components."""
    j = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    sums = tl.zeros([WIDTH, BLOCK], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        live = at < n
        index = tl.load(index_ptr + at, mask=live, other=0).to(tl.int32)
        value = tl.load(values_ptr + at, mask=live, other=0.0).to(tl.float32)
        sums += tl.where(index[None, :] == j[:, None], value[None, :], 0.0)
    row = sums_ptr + tl.program_id(0) * width + j
    tl.store(row, tl.load(row) + tl.sum(sums, 1))


def sum_by_index(tensors: Sequence[Summed], out: Tensor) -> None:
    """A `SumByIndex`. The tensors of a row add to its partial sums one after the other; a last launch adds those up."""
    n_rows, components = out.shape
    at_once = min(MOST_SUMS, triton.next_power_of_2(components))
    block = min(1024, CELLS // at_once)
    columns = triton.cdiv(components, at_once)
    programs = [min(MOST_PROGRAMS, triton.cdiv(len(index), block)) for index, _, _ in tensors]
    width = columns * at_once
    partial = torch.zeros(n_rows, max(programs, default=1), width, device=out.device)
    for (index, values, row), n_programs in zip(tensors, programs, strict=True):
        arguments = (index, values, partial[row], len(index), width)
        _add_sums[(n_programs, columns)](*arguments, WIDTH=at_once, BLOCK=block, **OPTIONS)
    torch.sum(partial[:, :, :components], 1, out=out)
