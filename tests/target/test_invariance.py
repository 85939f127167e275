"""The unit of a loss does not matter: neither that of its numbers nor a constant factor."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss

CONFIG = ss.CompressConfig().override(steps=200, symmetries=False)


@functools.cache
def regression() -> ss.Task:
    """Two of ten inputs matter."""
    torch.manual_seed(0)
    x = torch.randn(768, 10)
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] + 0.1 * torch.randn(768, 1)
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
    batches = list(zip(x[:512].split(32), y[:512].split(32), strict=True))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for batch in batches * 20:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    return ss.Task(model, batches, loss, lambda m: float(loss(m, (x[512:], y[512:]))), metric=ss.Metric("mse", ""))


def scaled(task: ss.Task, by: float) -> ss.Task:
    return dataclasses.replace(task, loss=lambda m, b: by * task.loss(m, b), evaluate=lambda m: by * task.judge(m))


@pytest.mark.parametrize(
    ("target", "by"),
    [
        (None, 2.0**13),
        (ss.MaxBytes(200), 2.0**-13),
        pytest.param(ss.WithinNoise(), 2.0**-13, marks=pytest.mark.slow),
        pytest.param(ss.WithinNoise(), 2.0**13, marks=pytest.mark.slow),
    ],
)
def test_a_loss_times_a_power_of_two_gives_the_same_file(target: ss.Target | None, by: float) -> None:
    """Exactly: such a factor changes no float's digits."""
    config = CONFIG.override(steps=80, zero_mixing=0.9)
    plain, other = (
        ss.compress(regression(), config, target=target),
        ss.compress(scaled(regression(), by), config, target=target),
    )
    assert plain.quantized.n_nonzero > 10
    assert other.to_bytes() == plain.to_bytes()
    assert other.outcome is not None
    assert plain.outcome is not None
    assert other.outcome.after == by * plain.outcome.after
    losses = [[r.task_loss for r in c.history if r.epoch] for c in (plain, other)]
    assert losses[1] == pytest.approx([by * value for value in losses[0]], nan_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("by", [1e-4, 1e4])
def test_a_loss_times_any_factor_gives_a_file_of_the_same_size_and_worth(by: float) -> None:
    """Nearly: the loss is rounded otherwise, and training is chaotic. Half of the size, and the noise.

    A search of so short runs is too chaotic even for that, so each is one run.
    """
    config = CONFIG.override(zero_mixing=0.9)
    plain, other = (ss.compress(task, config, target=None) for task in (regression(), scaled(regression(), by)))
    assert len(other.to_bytes()) == pytest.approx(len(plain.to_bytes()), rel=0.5)
    assert plain.outcome is not None
    assert other.outcome is not None
    assert other.outcome.kept == plain.outcome.kept
    assert other.outcome.after == pytest.approx(by * plain.outcome.after, abs=by * plain.outcome.noise)
