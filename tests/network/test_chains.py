"""Which layers feed each other unit by unit, and why others do not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.network.chains import find_links
from softshare.zoo.models import WRN164, LeNet5Caffe, LeNet300100


def pairs(model: nn.Module) -> list[tuple[str, str]]:
    return [(link.source, link.target) for link in find_links(model)[0]]


def between(*steps: nn.Module) -> nn.Module:
    """Two convolutions of 3 channels with `steps` between them."""
    return nn.Sequential(nn.Conv2d(1, 3, 3), *steps, nn.Conv2d(3, 2, 3))


def test_the_papers_networks() -> None:
    assert pairs(LeNet300100()) == [("fc1", "fc2"), ("fc2", "fc3")]
    assert pairs(LeNet5Caffe()) == [("conv1", "conv2"), ("conv2", "fc1"), ("fc1", "fc2")]
    assert find_links(LeNet5Caffe())[1] == {}
    links, reasons = find_links(WRN164())
    assert links == []
    assert reasons["blocks.0.conv1"] == "BatchNorm2d may mix its units"


def test_steps_that_keep_units_apart() -> None:
    for step in (
        nn.ReLU(),
        nn.ReLU(inplace=True),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.GELU(),
        nn.LeakyReLU(),
        nn.Identity(),
        nn.Dropout(),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2, padding=1),
        nn.AdaptiveAvgPool2d(4),
    ):
        assert pairs(between(step)) == [("0", "2")], step


def test_steps_that_may_mix_units() -> None:
    for step in (nn.BatchNorm2d(3), nn.Softmax(1), nn.PReLU(3), nn.LayerNorm(3), nn.ChannelShuffle(3), nn.Flatten()):
        links, reasons = find_links(between(step))
        assert links == [], step
        assert list(reasons) == ["0"]


def test_layers_that_mix_units() -> None:
    for model in (
        nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3)),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, groups=4)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 4)),  # over the width of the image
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(2), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.MaxPool2d(2), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.AvgPool2d(3, 1, padding=1), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Conv2d(1, 2, 3)),
        nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(8, 4)),
    ):
        assert pairs(model) == [], model


class Functional(nn.Module):
    """Activations, pooling and flattening as functions, in the ways people write them."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.a, self.b, self.way = nn.Conv2d(1, 3, 3), nn.Linear(12, 2), way

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.a(x), 2))
        x = F.dropout(torch.tanh(x), training=self.training or self.way == "always drop")
        flat = {
            "view": lambda: x.view(x.size(0), -1),
            "method": lambda: x.flatten(1),
            "rows": lambda: x.view(-1, 12),  # within an example or across the batch: unknown
            "all": lambda: torch.flatten(x, 0, 1),
        }
        y: Tensor = self.b(flat.get(self.way, lambda: torch.flatten(x, start_dim=1))())
        return y


def test_functions() -> None:
    for way in ("view", "method", "function"):
        assert pairs(Functional(way)) == [("a", "b")], way
    for way in ("rows", "all", "always drop"):
        assert pairs(Functional(way)) == [], way


class Reader(nn.Module):
    """A forward pass that reads the weight of a layer directly."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(F.relu(self.a(x)))
        return F.linear(y, self.a.weight)


def test_layers_with_a_second_use() -> None:
    layer = nn.Linear(4, 4)
    twice = find_links(nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(4, 2)))
    assert twice[0] == []
    assert twice[1]["0"] == "it or the next layer is tied or used more than once"
    assert pairs(Reader()) == []
    hooked = LeNet300100()
    hooked.get_submodule("fc2").register_forward_hook(lambda module, args, out: out + 1)
    assert pairs(hooked) == []


def test_constants_that_vanish() -> None:
    values = torch.tensor([0.0, -1.0, 1.0])

    def vanish(*steps: nn.Module) -> list[bool]:
        return find_links(between(*steps))[0][0].vanishes(values, {}).tolist()

    assert vanish(nn.ReLU(inplace=True)) == [True, True, False]
    assert vanish(nn.MaxPool2d(2), nn.ReLU()) == [True, True, False]
    assert vanish(nn.Tanh()) == [True, False, False]
    assert vanish(nn.Sigmoid()) == [False, False, False]
    assert vanish(nn.AvgPool2d(2, padding=1), nn.ReLU()) == [True, False, False]
    assert vanish(nn.Dropout()) == [True, False, False]
    assert values.tolist() == [0.0, -1.0, 1.0]
