"""Error feedback: against brute force, plain rounding, and inputs that were never seen."""

from __future__ import annotations

import itertools

import torch

from softshare.calibrate.feedback import BLOCK, CORRECTED, DAMPING, factored, with_feedback


def inputs(n: int, n_rows: int, rank: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n_rows, rank, generator=g) @ torch.randn(rank, n, generator=g) + 0.1 * torch.randn(n_rows, n)


def loss(error: torch.Tensor, moments: torch.Tensor) -> float:
    error = error.double()
    return float(((error @ moments) * error).sum())


def test_the_factor_is_that_of_the_damped_inverse() -> None:
    x = inputs(6, 40, 3).double()
    moments = x.T @ x / len(x)
    factor = factored(moments)
    assert moments.diagonal()[factor.order].diff().max() <= 0  # the largest input first
    damped = moments + DAMPING * moments.diagonal().mean() * torch.eye(6, dtype=torch.float64)
    inverse = damped[factor.order][:, factor.order].inverse()
    assert torch.allclose((factor.upper.T @ factor.upper).double(), inverse, rtol=1e-4)
    assert torch.equal(factor.diagonal[factor.order], factor.upper.diagonal())


def test_weights_are_corrected_for_other_inputs() -> None:
    """By hand: the least squares of outputs, with the damping that keeps weights near to where they were."""
    x, w = inputs(6, 40, 6).double(), torch.randn(3, 6, generator=torch.Generator().manual_seed(6))
    before = x + 0.3 * torch.randn(40, 6, generator=torch.Generator().manual_seed(7))
    moments, crossed = x.T @ x / 40, before.T @ x / 40
    damping = DAMPING * moments.diagonal().mean() * torch.eye(6, dtype=torch.float64)
    best = w.double() @ (crossed + damping) @ (moments + damping).inverse()
    expected = w + CORRECTED * (best - w)
    got = factored(moments).corrected(w, crossed - moments)
    assert torch.allclose(got.double(), expected, atol=1e-4)


def test_each_column_replies_to_errors_as_a_brute_force_solution_does() -> None:
    """After the first columns are rounded, the best later ones solve a linear system."""
    x = inputs(5, 30, 5).double()
    moments = x.T @ x / 30
    factor = factored(moments)
    damped = moments + DAMPING * moments.diagonal().mean() * torch.eye(5, dtype=torch.float64)
    h = damped[factor.order][:, factor.order]
    w = torch.randn(1, 5, generator=torch.Generator().manual_seed(1))
    left, expected = w[0, factor.order].double().clone(), []
    for j in range(5):
        level = (left[j] / 0.5).round()
        expected.append(int(level))
        error = left[j] - 0.5 * level
        left[j + 1 :] += torch.linalg.solve(h[j + 1 :, j + 1 :], h[j + 1 :, j]) * error
    got = with_feedback(w, factor, torch.full((5,), 0.5), torch.arange(20) + 0.5)
    assert got[0, factor.order].tolist() == expected


def test_it_beats_rounding_and_comes_near_to_the_best() -> None:
    x = inputs(4, 50, 2).double()
    moments, w = x.T @ x / 50, torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    codes = with_feedback(w, factored(moments), torch.full((4,), 0.7), torch.arange(20) + 0.5)
    rounded = (w / 0.7).round()
    near = torch.tensor(list(itertools.product((-2, -1, 0, 1, 2), repeat=4))).float()
    best = sum(min(loss(0.7 * (r + d)[None] - row[None], moments) for d in near) for r, row in zip(rounded, w))  # noqa: B905
    ours, plain = loss(0.7 * codes - w, moments), loss(0.7 * rounded - w, moments)
    assert best <= ours < 0.5 * plain


def test_blocks_do_not_change_the_result() -> None:
    """Wider than a block, against columns one by one in double precision."""
    n = BLOCK + 40
    x = inputs(n, 400, n).double()
    moments = x.T @ x / 400
    factor, w = factored(moments), torch.randn(3, n, generator=torch.Generator().manual_seed(3))
    left, upper = w[:, factor.order].double().clone(), factor.upper.double()
    expected = torch.empty(3, n)
    for j in range(n):
        expected[:, j] = (left[:, j] / 0.3).round()
        error = (left[:, j] - 0.3 * expected[:, j]) / upper[j, j]
        left[:, j:] -= error[:, None] * upper[j, j:]
    got = with_feedback(w, factor, torch.full((n,), 0.3), torch.arange(60) + 0.5)[:, factor.order]
    assert float((got != expected).float().mean()) < 0.01  # ties of single precision
    assert loss(0.3 * got[:, factor.order.argsort()] - w, moments) < 0.7 * loss(0.3 * (w / 0.3).round() - w, moments)


def test_columns_that_were_never_seen_are_rounded_and_not_zeroed() -> None:
    x = inputs(8, 100, 8).double()
    x[:, 5] = 0
    w = torch.randn(16, 8, generator=torch.Generator().manual_seed(4))
    codes = with_feedback(w, factored(x.T @ x / 100), torch.full((8,), 0.1), torch.arange(90) + 0.5)
    assert torch.equal(codes[:, 5].float(), (w[:, 5] / 0.1).round())


def test_no_inputs_at_all_round_to_the_nearest() -> None:
    w = torch.randn(4, 8, generator=torch.Generator().manual_seed(5))
    codes = with_feedback(w, factored(torch.zeros(8, 8).double()), torch.full((8,), 0.2), torch.arange(40) + 0.5)
    assert torch.equal(codes.float(), (w / 0.2).round())
