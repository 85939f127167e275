"""What a network costs to run, against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from softshare.simplify.speed import Inputs, costs


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
