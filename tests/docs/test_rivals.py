"""The rivals of `benchmarks/checkpoints` do what their papers say: a comparison with a broken one is worth nothing."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paths import ROOT


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/checkpoints"))
    return importlib.import_module


def inputs(n: int, width: int, seed: int = 0) -> Tensor:
    """Correlated, and some of them larger."""
    g = torch.Generator().manual_seed(seed)
    mixed = torch.randn(n, 24, generator=g) @ torch.randn(24, width, generator=g) / 24**0.5
    return (mixed + 0.2 * torch.randn(n, width, generator=g)) * (0.5 * torch.randn(width, generator=g)).exp()


def test_rtn_rounds_each_group_to_its_own_grid(module: Any) -> None:
    w, rtn = torch.randn(6, 128, generator=torch.Generator().manual_seed(0)), module("rivals").rtn
    large = {"variance": torch.tensor([1.0, 1e5]), "count": torch.tensor(70_000)}  # beyond half precision
    state = {"w": w, "b": torch.randn(6), "narrow": torch.randn(64, 1)} | large
    out, bits = rtn(state, dict.fromkeys(state, 3))
    assert bits == 6 * 128 * 3 + 12 * (16 + 3) + 16 * (6 + 64) + 2 * 32 + 64
    assert all(torch.equal(out[name], t) for name, t in large.items())
    for row in range(6):
        for k in (0, 64):
            group, back = w[row, k : k + 64].tolist(), out["w"][row, k : k + 64].tolist()
            low, high = min(group), max(group)
            scale = float(torch.tensor((high - low) / 7).half())
            zero = round(-low / scale)
            for x, y in zip(group, back, strict=True):
                assert abs(y - scale * (min(7, max(0, round(x / scale + zero))) - zero)) < 1e-5
            assert len({round(y, 5) for y in back}) <= 8


def test_gptq_is_a_least_squares_fit_after_every_column(module: Any) -> None:
    """The columns that are left take, after each rounding, the values that fit the outputs best. No formula of GPTQ."""
    gptq, rivals = module("gptq"), module("rivals")
    x = inputs(400, 160).double()
    w = torch.randn(5, 160, generator=torch.Generator().manual_seed(1))
    moments = x.T @ x / len(x)
    found = gptq.with_feedback(w, moments, 3)

    order = moments.diagonal().argsort(descending=True)
    damped = moments + gptq.DAMPING * moments.diagonal().mean() * torch.eye(160, dtype=torch.float64)
    root = torch.linalg.cholesky(damped[order][:, order]).T  # |root @ e| is the error of the outputs
    left, out = w[:, order].double(), torch.zeros(5, 160)
    for j in range(160):
        if j % gptq.GROUP == 0:
            scale, zero = rivals.grid(left[:, j : j + gptq.GROUP].float(), 3)
        out[:, order[j]] = rivals.rounded(left[:, j].float(), scale[:, 0], zero[:, 0], 3)
        error = root[:, : j + 1] @ (w[:, order[: j + 1]] - out[:, order[: j + 1]]).double().T
        if j < 159:
            left[:, j + 1 :] = w[:, order[j + 1 :]] + torch.linalg.lstsq(root[:, j + 1 :], error).solution.T
    assert torch.allclose(found, out, atol=1e-4)


def test_gptq_beats_rtn_on_correlated_inputs(module: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64)).eval()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    widths, x = dict.fromkeys(state, 3), inputs(2000, 256, 2)
    rounded, bits = module("rivals").rtn(state, widths, 128)
    with torch.no_grad():
        wanted = model(x[1000:])
        fed, more = module("gptq").gptq(model, x[:1000].split(250), widths)
        assert all(torch.equal(fed[name], t) for name, t in model.state_dict().items())
        errors = []
        for net in (rounded, fed):
            model.load_state_dict(net)
            errors.append(float((model(x[1000:]) - wanted).square().sum()))
    assert errors[1] < 0.5 * errors[0]
    assert bits < more < 1.01 * bits
