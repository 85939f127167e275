"""Quantize a matrix column by column, and let the columns that are left make good for the error so far.

With H the second moments of the inputs, an error E of the weights costs tr(E H E') at the outputs. After a column is
rounded, the best reply of all later columns is linear in its error, by the Cholesky factor U of the inverse of H. Then
column j costs (error_j / U_jj)^2 by itself (GPTQ; the factor is computed in double precision).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DAMPING = 0.01  # of the mean of the diagonal, added to it: inputs that were never seen still count
CORRECTED = (
    0.5  # of the way to the weights that are best for the changed inputs: the whole of it fits the rows too well
)
BLOCK = 128  # columns; errors reach the columns of later blocks once a block


@dataclass(frozen=True, eq=False)
class Factor:
    """The order of the columns, the largest input first, and U in that order."""

    order: Tensor  # (n,)
    upper: Tensor  # (n, n), float32

    @property
    def diagonal(self) -> Tensor:
        """U_jj of each column, in the order of the matrix: by how much less its errors count than their square."""
        out = torch.empty_like(self.upper[0])
        out[self.order] = self.upper.diagonal()
        return out

    def corrected(
        self,
        weights: Tensor,  # (rows, n)
        moved: Tensor,  # (n, n) moments of the inputs that the weights were made for with the present ones, less `own`
    ) -> Tensor:
        """Half-way to the weights whose outputs are nearest to those that the other inputs had."""
        ordered = (weights @ moved.to(weights.dtype))[:, self.order]
        out = torch.empty_like(weights)
        out[:, self.order] = ordered @ self.upper.T @ self.upper
        return weights + CORRECTED * out


def factored(
    moments: Tensor,  # (n, n), float64: means
) -> Factor:
    """Damping grows tenfold as long as the matrix is too near to a singular one."""
    diagonal = moments.diagonal()
    order = diagonal.argsort(descending=True, stable=True)
    ordered = moments[order][:, order]
    damping = DAMPING * float(diagonal.mean()) or 1.0
    for _ in range(5):
        damped = ordered + damping * torch.eye(len(order), dtype=torch.float64, device=moments.device)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            inverse = torch.cholesky_inverse(lower)
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not failed and upper.isfinite().all():
                return Factor(order, upper.float())
        damping *= 10
    return Factor(order, torch.eye(len(order), device=moments.device))


def with_feedback(
    weights: Tensor,  # (rows, n), float32
    factor: Factor,
    steps: Tensor,  # (n,) of each column
    borders: Tensor,  # (K,) rising, in steps: between the levels of a magnitude
) -> Tensor:  # (rows, n), int16 multiples of the steps
    order = factor.order
    left, step = weights[:, order].clone(), steps[order]
    out = torch.empty(left.shape, dtype=torch.int16, device=left.device)
    for start in range(0, len(order), BLOCK):
        stop = min(start + BLOCK, len(order))
        upper = factor.upper[start:stop, start:stop]
        block = left[:, start:stop]
        errors = torch.empty_like(block)
        for j in range(stop - start):
            column = block[:, j]
            scaled = column / step[start + j]
            level = torch.bucketize(scaled.abs(), borders, out_int32=True)
            level = torch.where(scaled < 0, -level, level)
            out[:, start + j] = level
            error = (column - level * step[start + j]) / upper[j, j]
            errors[:, j] = error
            block[:, j + 1 :].addr_(error, upper[j, j + 1 :], alpha=-1)
        left[:, stop:].addmm_(errors, factor.upper[start:stop, stop:], alpha=-1)
    restored = torch.empty_like(out)
    restored[:, order] = out
    return restored
