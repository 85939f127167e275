"""GPTQ by its equations (Frantar et al. 2022), with groups of 128, the columns of the largest inputs first.

A column is rounded, and the best reply of the columns that are left makes good for its error. The grid of a group is
found when its first column is reached, from the weights as they are then. Inputs come from the network as quantized so
far. `tests/docs/test_rivals.py` compares the codes with a fit by least squares after every column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from rivals import HALF, State, Widths, grid, rounded, rtn, whole_groups
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from softshare.calibrate.batches import evaluating, run
from softshare.calibrate.inputs import Finder, Use
from softshare.calibrate.running import Operation

GROUP = 128
DAMPING = 0.01  # of the mean of the diagonal


class Inputs(TorchDispatchMode):
    """While active, adds up the products of the inputs of the wanted weights. `order` has every use, also of others."""

    def __init__(self, weights: Mapping[str, Tensor], wanted: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wanted, self.order = set(wanted), list[str]()
        self.tables: set[str | None] = set()
        self._finder, self._sums = Finder(weights), dict[Use, tuple[int, Tensor]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        operation = Operation(func, args, kwargs or {})
        self.tables.add(self._finder.table(operation))
        if (seen := self._finder.seen(operation)) is not None:
            self.order.append(seen.use.name)
            if seen.use.name in self.wanted:
                x = torch.cat([seen.rows(span) for span in seen.spans], 1).float()
                n, total = self._sums.get(seen.use, (0, 0))
                self._sums[seen.use] = n + len(x), total + (x.T @ x).double()
        return out

    def of(self, name: str) -> dict[Use, Tensor]:
        """The mean products, for each block of the rows of a weight."""
        return {use: total / max(1, n) for use, (n, total) in self._sums.items() if use.name == name}


def gptq(model: nn.Module, batches: Iterable[Any], widths: Widths, passes: int = 8) -> tuple[State, int]:
    """In the order of use. Changes the network. Tensors that are not multiplied with inputs are rounded as by RTN."""
    batches, weights = list(batches), dict(model.state_dict())
    state = {name: t.clone() for name, t in weights.items()}
    seen = Inputs(weights, weights)
    with evaluating(model), seen:
        run(model, batches[0])
    names = [n for n in dict.fromkeys(seen.order) if n not in seen.tables and state[n][0].numel() >= GROUP]
    plain = {name: t for name, t in state.items() if name not in names}
    out, total = rtn(plain, widths, GROUP, whole_groups(state, GROUP))
    for name, tensor in out.items():
        weights[name].copy_(tensor)
    size = -(-len(names) // passes)
    for k in range(0, len(names), size):
        wanted = names[k : k + size]
        inputs = Inputs(weights, wanted)
        with evaluating(model), inputs:
            for batch in batches:
                run(model, batch)
        for name in wanted:
            matrix, uses = state[name].float().flatten(1), inputs.of(name)
            if sum(use.stop - use.start for use in uses if not use.across) != len(matrix):
                raise RuntimeError(f"GPTQ: the rows of {name} are not each multiplied with inputs once")
            parts = [with_feedback(matrix[u.start : u.stop], uses[u], widths[name])
                     for u in sorted(uses, key=lambda u: u.start)]  # fmt: skip
            out[name] = torch.cat(parts).reshape(state[name].shape)
            weights[name].copy_(out[name])
            total += bits_of(matrix, widths[name])
    return {name: out[name] for name in state}, total


def bits_of(matrix: Tensor, bits: int) -> int:
    """Codes, a scale and a zero of each group in each row, and the group of each column."""
    rows, columns = matrix.shape
    groups = -(-columns // GROUP)
    return rows * columns * bits + rows * groups * (HALF + bits) + columns * (groups - 1).bit_length()


def with_feedback(
    weights: Tensor,  # (rows, n)
    moments: Tensor,  # (n, n), of the inputs
    bits: int,
) -> Tensor:  # (rows, n)
    order = moments.diagonal().argsort(descending=True, stable=True)
    upper = _factor(moments[order][:, order])
    left, out = weights[:, order].clone(), torch.empty_like(weights)
    for start in range(0, len(order), GROUP):
        stop = min(start + GROUP, len(order))
        block, errors = left[:, start:stop], torch.empty(len(weights), stop - start)
        scale, zero = (t[:, 0] for t in grid(block, bits))
        for j in range(stop - start):
            quantized = rounded(block[:, j], scale, zero, bits)
            out[:, order[start + j]] = quantized
            errors[:, j] = (block[:, j] - quantized) / upper[start + j, start + j]
            block[:, j + 1 :].addr_(errors[:, j], upper[start + j, start + j + 1 : stop], alpha=-1)
        left[:, stop:].addmm_(errors, upper[start:stop, stop:], alpha=-1)
    return out


def _factor(moments: Tensor) -> Tensor:
    """U, upper triangular, with U'U the inverse of the damped moments. Ten times more damping where that fails."""
    damping = DAMPING * float(moments.diagonal().mean()) or 1.0
    for k in range(6):
        damped = moments.double() + 10**k * damping * torch.eye(len(moments), dtype=torch.float64)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed:
            return upper.float()
    raise RuntimeError("GPTQ: the moments of the inputs are not finite")
