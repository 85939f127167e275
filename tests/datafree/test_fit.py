"""Fit a mixture to weights: cells, EM, and quantizing by borders."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from softshare.datafree.fit import RESOLUTION, Fit, cells_of, fit, quantized

WIDTHS = [0.6, 0.25, 0.05]
MOST_GAINED = 1e-3  # nats per weight, by gradient descent after EM


def normal(n: int = 50_000) -> Tensor:
    return 0.02 * torch.randn(n, generator=torch.Generator().manual_seed(0))


def heavy(n: int = 50_000) -> Tensor:
    """Laplace, with one weight far beyond the reach of the cells."""
    u = torch.rand(n, generator=torch.Generator().manual_seed(1)) - 0.5
    w = -u.sign() * (1 - 2 * u.abs()).clamp(min=1e-9).log()
    w[17] = 60.0
    return w


def measured(w: Tensor, f: Fit) -> tuple[float, float]:
    """Relative error of the quantized weights, and their order-0 entropy in bits per weight."""
    q = quantized("w", w, f)
    share = q.counts().double() / w.numel()
    share = share[share > 0]
    error = (q.dense() - w).double().square().mean().sqrt() / w.double().square().mean().sqrt()
    return float(error), float(-(share * share.log2()).sum())


@pytest.mark.parametrize("w", [normal(), heavy()], ids=["normal", "heavy"])
def test_cells_hold_the_weights_sums(w: Tensor) -> None:
    cells = cells_of(w.reshape(100, -1))
    x = w.double() / cells.rms
    assert cells.n == len(w)
    assert cells.rms == pytest.approx(w.double().square().mean().sqrt().item())
    assert np.allclose(cells.sums[:, -1], [len(w), float(x.sum()), float(x.square().sum())])
    assert (np.diff(cells.centre) > 0).all()
    assert cells.centre[-1] == pytest.approx(float(x.max()), abs=1 / RESOLUTION)
    at = len(cells.centre) // 3
    below = x < (cells.centre[at - 1] + cells.centre[at]) / 2
    assert cells.sums[0, at] == pytest.approx(float(below.sum()), rel=0.02)


@pytest.mark.parametrize(("w", "width"), [(normal(), 0.6), (normal(), 0.05), (heavy(), 0.25)])
def test_a_fit_knows_the_cost_and_assigns_by_responsibility(w: Tensor, width: float) -> None:
    f = fit(cells_of(w), width)
    error, entropy = measured(w, f)
    assert error == pytest.approx(f.error, rel=0.01)
    assert entropy + 16 * np.count_nonzero(f.mean) / len(w) == pytest.approx(f.bits / len(w), rel=0.01)
    mixture = f.mixture()
    assert float(mixture.mixing.sum()) == pytest.approx(1)
    assert mixture.mean[0] == 0
    by_mixture = mixture.mean[mixture.assign(w)]
    assert (by_mixture == quantized("w", w, f).dense()).double().mean() > 0.9999  # rounding decides ties


def test_the_smallest_weights_become_zeros() -> None:
    w = normal()
    cells = cells_of(w)
    for width in WIDTHS:
        zeros = quantized("w", w, fit(cells, width)).indices == 0
        assert float(zeros.double().mean()) > 0.9 * width  # about sqrt(12 / (2 pi)) widths
        assert w[zeros].abs().max() <= w[~zeros].abs().min() * 1.2  # the two borders need not be alike


@pytest.mark.slow
@pytest.mark.parametrize("width", [0.6, 0.05])
def test_em_ends_without_a_gradient(width: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end, the gradient of the objective over all weights is 0, and Adam gains little.

    After a single step of EM, Adam gains more than is allowed here, so its rates are large enough to tell.
    """
    w = normal(20_000).double()
    ended, gained = _descend(w, fit(cells_of(w), width))
    assert ended < 2e-3
    assert gained < MOST_GAINED
    monkeypatch.setattr("softshare.datafree.fit.MOST_STEPS", 1)
    assert _descend(w, fit(cells_of(w), width))[1] > 1.5 * MOST_GAINED


def _descend(w: Tensor, f: Fit) -> tuple[float, float]:
    """The largest gradient at the fit, and the gain of gradient descent in nats per weight."""
    x, free = w / f.rms, torch.from_numpy(f.mean != 0)
    means = torch.tensor(f.mean[f.mean != 0] / f.width, requires_grad=True)
    logits = torch.tensor(np.log(f.mixing), requires_grad=True)

    def objective() -> Tensor:
        mean = torch.zeros(len(free), dtype=torch.float64).masked_scatter(free, means) * f.width
        log_mixing = torch.log_softmax(logits, 0)
        with torch.no_grad():
            best = ((x[:, None] - mean) ** 2 / (2 * f.width**2) - log_mixing).argmin(1)
        return ((x - mean[best]) ** 2 / (2 * f.width**2) - log_mixing[best]).mean()

    start = objective()
    start.backward()
    assert means.grad is not None
    assert logits.grad is not None
    ended = max(float(means.grad.abs().max()), float(logits.grad.abs().max()))
    optimizer = torch.optim.Adam([means, logits], lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    lowest = math.inf
    for _ in range(100):
        optimizer.zero_grad()
        loss = objective()
        loss.backward()
        optimizer.step()
        schedule.step()
        lowest = min(lowest, float(loss.detach()))
    return ended, float(start.detach()) - lowest


def test_close_to_what_theory_allows() -> None:
    """Normal weights lie between the rate-distortion bound and 0.26 bits above it, the price of scalar values."""
    w = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    cells = cells_of(w)
    for width in WIDTHS:
        error, entropy = measured(w, fit(cells, width))
        bound = -math.log2(error)
        assert bound <= entropy + 0.01
        assert entropy <= bound + 0.26


def test_narrower_is_finer() -> None:
    cells = cells_of(heavy())
    fits = [fit(cells, 2.0**-k) for k in range(9)]
    assert all(a.error > b.error for a, b in pairwise(fits))
    assert all(a.bits < b.bits for a, b in pairwise(fits))


def test_weights_of_few_values_are_found_exactly() -> None:
    values = torch.tensor([-0.5, 0.0, 0.25])
    w = values[torch.randint(3, (40, 50), generator=torch.Generator().manual_seed(0))]
    f = fit(cells_of(w), 0.1)
    q = quantized("w", w, f)
    assert f.error < 1e-6
    assert torch.equal(q.codebook, torch.tensor([0.0, 0.25, -0.5]))
    assert torch.equal(q.dense(), w)


def test_a_value_of_few_weights_is_not_worth_its_bits() -> None:
    """A single weight close to many gets no value of its own. A single weight far away does, and so do many."""
    many = torch.full((1000,), 1.0)
    beside = many + 0.4
    assert len(fit(cells_of(torch.cat([many, beside[:1]])), 0.1).mean) == 1
    assert len(fit(cells_of(torch.cat([many, beside])), 0.1).mean) == 2
    assert len(fit(cells_of(torch.cat([many, many[:1] + 1])), 0.1).mean) == 2


def test_equal_weights() -> None:
    for w in (torch.zeros(3, 4), torch.full((3, 4), 0.7), torch.full((1, 1), -2e-9)):
        assert torch.equal(quantized("w", w, fit(cells_of(w), 0.01)).dense(), w)


def test_other_dtypes() -> None:
    w = normal().reshape(100, -1)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        q = quantized("w", w.to(dtype), fit(cells_of(w.to(dtype)), 0.1))
        assert q.dtype == dtype
        assert float((q.dense().float() - w).square().mean().sqrt() / w.square().mean().sqrt()) < 0.11
