"""What a network costs to run, against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from softshare.errors import ConfigError
from softshare.simplify.speed import Inputs, Speed, Timing, costs, speed_of


class Named(nn.Module):
    """Takes its inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return scale * self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "inputs", "n_weights", "multiply_adds"),
    [
        (nn.Linear(4, 5), (torch.ones(7, 4),), 4 * 5 + 5, 4 * 5),
        (nn.Conv2d(2, 6, 3, padding=1), (torch.ones(7, 2, 8, 8),), 2 * 6 * 9 + 6, 2 * 6 * 9 * 64),
        (nn.Conv2d(6, 6, 3, groups=6, bias=False), (torch.ones(7, 6, 8, 8),), 6 * 9, 6 * 9 * 36),
        (Named(), {"x": torch.ones(7, 4), "scale": 2.0}, 4 * 5 + 5, 4 * 5),
    ],
)
def test_counts_of_one_layer(model: nn.Module, inputs: Inputs, n_weights: int, multiply_adds: int) -> None:
    """Multiply-adds are those of one example, whatever the batch."""
    (cost,) = costs([model], inputs)
    assert (cost.n_weights, cost.multiply_adds, cost.batch_size) == (n_weights, multiply_adds, 7)
    assert cost.seconds_for_one > 0
    assert cost.seconds > 0


def test_networks_are_left_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)).train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    costs([model, model], (torch.randn(7, 4),))
    assert model.training
    for name, t in model.state_dict().items():
        torch.testing.assert_close(t, before[name], rtol=0, atol=0)


def test_the_speed_of_a_smaller_network() -> None:
    """Weights and multiply-adds by hand; times of a network that computes hundreds of times less."""
    whole, small = nn.Linear(2000, 2000), nn.Linear(2000, 2, bias=False)
    speed = speed_of(whole, small, (torch.ones(64, 2000),))
    assert (speed.weights_before, speed.weights_after) == (2000 * 2000 + 2000, 4000)
    assert (speed.macs_before, speed.macs_after) == (2000 * 2000, 4000)
    assert speed.macs_ratio == 0.001
    assert [timing.batch_size for timing in speed.timings] == [1, 64]
    for timing in speed.timings:
        assert timing.device.startswith("CPU, ")
        assert timing.times == timing.before / timing.after > 2


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("before", 0.0), ("after", float("inf"))])
def test_times_that_nobody_measures_are_refused(name: str, value: float) -> None:
    timing: dict[str, object] = {"device": "CPU", "batch_size": 1, "before": 1.0, "after": 1.0, name: value}
    with pytest.raises(ConfigError, match=f"{name}: expected a"):
        Timing(**timing)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="macs_before: expected a number above 0, got 0"):
        Speed(1, 1, 0, 0, ())
