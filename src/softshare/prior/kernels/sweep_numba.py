"""The mixture's loss and all its gradients in one sweep on the CPU, compiled by numba.

Weights are read in blocks that stay in the cache. The loops over a block are plain enough for the compiler to
vectorize, exponentials included. Work is cut into parts of fixed size, so neither the number of threads nor their order
changes a bit of the result.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softshare._util.compiled import compiler

Floats = npt.NDArray[np.float32]

BLOCK = 512  # weights at a time: their J x BLOCK values stay in the cache
PART = 1 << 15  # weights of one part, a thread's unit of work
LOG2_E = math.log2(math.e)
_VECTORIZE = {"reassoc", "contract", "nsz", "arcp"}  # sums in any order; no assumption about NaN or infinity
_FLOOR = np.float32(-100.0)  # 2^-100 is nothing beside the largest term's 1, and far from denormal
# 2^x = 1 + x (c1 + x (c2 + ...)) for -1 < x <= 0, relative error 9.1e-8: minimax, by iterated least squares.
_C5, _C4, _C3, _C2, _C1 = (
    np.float32(c) for c in (0.00094490347, 0.0092057977, 0.055297356, 0.24018015, 0.69314373)
)  # fmt: skip
_ONE = np.float32(1)
NO_TENSOR = torch.empty(0)
_NOTHING = NO_TENSOR.numpy()


_MODULES = ("assign_numba", "sweep_numba", "table", "table_numba")
compiled = compiler(Path(__file__).parent, _MODULES, fastmath=_VECTORIZE)


@compiled
def _joint(w: Floats, constant: Floats, mean: Floats, half_precision: Floats, joint: Floats, largest: Floats) -> None:
    """joint[j, i] = log2(mixing_j N(w_i | j)) and its maximum over j."""
    n = len(w)
    for i in range(n):
        largest[i] = np.float32(-np.inf)
    for j in range(len(mean)):
        c, m, h = constant[j], mean[j], half_precision[j]
        for i in range(n):
            distance = w[i] - m
            value = c - h * distance * distance
            joint[j, i] = value
            largest[i] = max(largest[i], value)


@compiled
def _terms(
    n: int,
    joint: Floats,
    largest: Floats,
    total: Floats,
    power_bits: npt.NDArray[np.int32],
    power: Floats,  # the same memory as power_bits
) -> None:
    """joint becomes 2^(joint - largest); total is its sum over j."""
    for i in range(n):
        total[i] = np.float32(0)
    for j in range(len(joint)):
        for i in range(n):
            x = max(joint[j, i] - largest[i], _FLOOR)
            whole = np.int32(x)
            f = x - np.float32(whole)
            power_bits[i] = (whole + np.int32(127)) << np.int32(23)  # the float 2^whole
            joint[j, i] = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * _C5))))
        for i in range(n):
            term = joint[j, i] * power[i]
            joint[j, i] = term
            total[i] += term


@compiled
def _log2_evidence(n: int, largest: Floats, total: Floats) -> float:
    """Sum of log2 p(w_i) over the block. It takes the logarithm of products, because products are cheap."""
    out = 0.0
    for start in range(0, n, 64):  # a product of 64 totals of at most J each is below 2^1024 for J up to 65,536
        product, whole = 1.0, 0.0
        for i in range(start, min(n, start + 64)):
            product *= float(total[i])
            whole += float(largest[i])
        out += whole + math.log2(product)
    return out


@compiled
def _log2_evidence_of_points(n: int, largest: Floats, total: Floats, times: Floats) -> float:
    out = 0.0
    for i in range(n):
        out += float(times[i]) * (float(largest[i]) + math.log2(float(total[i])))
    return out


@compiled
def _gradients(
    w: Floats,
    terms: Floats,
    total: Floats,
    mean: Floats,
    precision: Floats,
    times: Floats,  # empty: 1 each
    score: Floats,
    sums: npt.NDArray[np.float64],
) -> None:
    """Fill score with times d loss / d w, and add sum_i of r, r p d and r (p d^2 - 1) to sums[:, j]."""
    n = len(w)
    for i in range(n):
        total[i] = _ONE / total[i]
        score[i] = np.float32(0)
    for i in range(len(times)):
        total[i] *= times[i]
    for j in range(len(mean)):
        m, p = mean[j], precision[j]
        sum_r, sum_d, sum_dd = 0.0, 0.0, 0.0  # in float64, so that shards of the weights have the sums of the whole
        for i in range(n):
            responsibility = terms[j, i] * total[i]
            distance = w[i] - m
            pull = responsibility * distance * p
            score[i] += pull
            sum_r += float(responsibility)
            sum_d += float(pull)
            sum_dd += float(responsibility * (p * distance * distance - _ONE))
        sums[0, j] += sum_r
        sums[1, j] += sum_d
        sums[2, j] += sum_dd


@compiled
def _sweep_part(
    w: Floats,
    constant: Floats,
    mean: Floats,
    precision: Floats,
    half_precision: Floats,
    grad: Floats,  # empty: not wanted
    add: bool,
    scale: np.float32,
    times: Floats,  # empty: 1 each
    sums: npt.NDArray[np.float64],  # (4, J): the sums of `_gradients`, and the loss in [3, 0]
) -> None:
    n_components = len(mean)
    joint = np.empty((n_components, BLOCK), np.float32)
    largest, total, score = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    power_bits = np.empty(BLOCK, np.int32)
    power = power_bits.view(np.float32)
    log2_evidence = 0.0
    for start in range(0, len(w), BLOCK):
        block = w[start : start + BLOCK]
        n = len(block)
        _joint(block, constant, mean, half_precision, joint, largest)
        _terms(n, joint, largest, total, power_bits, power)
        if len(times) > 0:
            log2_evidence += _log2_evidence_of_points(n, largest, total, times[start : start + BLOCK])
        else:
            log2_evidence += _log2_evidence(n, largest, total)
        if len(grad) > 0 or len(times) > 0:
            _gradients(block, joint, total, mean, precision, times[start : start + BLOCK], score, sums)
        if len(grad) > 0:
            out = grad[start : start + BLOCK]
            if add:
                for i in range(n):
                    out[i] += scale * score[i]
            else:
                for i in range(n):
                    out[i] = score[i]
    sums[3, 0] = -log2_evidence / LOG2_E


def sweep(
    weights: Sequence[Tensor],
    log_mixing: Tensor,  # (J,)
    mean: Tensor,  # (J,)
    log_var: Tensor,  # (J,)
    grads: Sequence[Tensor] | None,
    scale: Tensor | None = None,
    times: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """A `Sweep`."""
    # in numpy, where a call takes a tenth of torch's time, and in float64, so that each constant is rounded once
    wide_mixing, wide_mean, wide_var = (t.detach().numpy().astype(np.float64) for t in (log_mixing, mean, log_var))
    with np.errstate(all="ignore"):  # the loss reports a mixture that diverges
        precision = np.exp(-wide_var)
        constant = LOG2_E * (wide_mixing - 0.5 * (wide_var + math.log(2 * math.pi)))
        c, m, p, h = (a.astype(np.float32) for a in (constant, wide_mean, precision, 0.5 * LOG2_E * precision))
    add, factor = scale is not None, np.float32(1 if scale is None else float(scale))
    parts, grad_parts, times_parts = cut(weights), cut(grads or ()), cut(times or ())
    sums = np.zeros((len(parts), 4, len(mean)))

    def one(k: int) -> None:
        multiples = times_parts[k].numpy() if times_parts else _NOTHING
        with as_float32(grad_parts[k] if grad_parts else NO_TENSOR, add) as out:
            _sweep_part(parts[k].float().numpy(), c, m, p, h, out, add, factor, multiples, sums[k])

    in_threads(one, len(parts))
    total = torch.from_numpy(sums.sum(0))
    return total[3, 0], total[:3]


def cut(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [part for t in tensors if len(t) for part in t.split(PART)]


@contextmanager
def as_float32(grad: Tensor, add: bool) -> Iterator[Floats]:
    """An array to write into: the tensor's own memory, or a copy that is written back."""
    if grad.dtype == torch.float32:
        yield grad.numpy()
    else:
        copy = grad.float() if add else torch.empty(grad.shape)
        yield copy.numpy()
        grad.copy_(copy)


def n_threads(n_parts: int) -> int:
    return min(torch.get_num_threads(), n_parts)


def in_threads(function: Callable[[int], None], n: int) -> None:
    """Call function(0) to function(n - 1)."""
    threads = n_threads(n)
    if threads > 1:
        list(_pool(threads, os.getpid()).map(function, range(n)))
    else:
        for k in range(n):
            function(k)


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """The pool is kept between steps. A forked process makes its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="softshare-mixture")
