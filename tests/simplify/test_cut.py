"""Networks without the units that nothing reads: residual streams, batch norm, depthwise convolutions, heads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from softshare.network.groups import find_groups
from softshare.zoo.models import WRN164
from unit_networks import IMAGES, Attention, Residual, Text, prepared


def silenced(model: nn.Module, share: float, *args: Any) -> nn.Module:
    """A copy in which that share of the units of each group is read by nothing."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(3)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for group in find_groups(model, args, {})[0]:
            gone = (torch.rand(group.n_units, generator=generator) < share).nonzero()[:, 0]
            for s in group.slices:
                if s.read:
                    s.of(tensors[s.name], group.n_units).index_fill_(s.dim + 1, gone, 0.0)
    return model


def n_weights(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("make", [Residual, WRN164])
def test_same_function_in_a_smaller_network(make: type[nn.Module]) -> None:
    x = IMAGES if make is Residual else torch.randn(2, 3, 32, 32).double()
    model = silenced(prepared(make()), 0.6, x)
    small = ss.shrink(model, inputs=(x,))
    assert n_weights(small) < 0.4 * n_weights(model)
    torch.testing.assert_close(small.eval()(x), model(x), rtol=1e-9, atol=1e-11)
    other = torch.cat([x, 2 * x])  # another batch
    torch.testing.assert_close(small(other), model(other), rtol=1e-9, atol=1e-11)
    for layer in small.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.weight.shape[:2] == (layer.out_channels, layer.in_channels // layer.groups)
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None
            assert len(layer.weight) == len(layer.running_mean) == layer.num_features


def test_it_can_be_trained_saved_and_exported() -> None:
    model = silenced(prepared(Residual()), 0.5, IMAGES)
    small = ss.shrink(model, inputs=(IMAGES,)).train()
    small(IMAGES).sum().backward()
    assert all(p.grad is not None for p in small.parameters())
    again = ss.shrink(model, inputs=(IMAGES,))
    again.load_state_dict(small.state_dict())
    exported = torch.export.export(again.eval(), (IMAGES,))
    torch.testing.assert_close(exported.module()(IMAGES), again(IMAGES))


def test_what_goes_leaves_others_unread() -> None:
    """The second layer's unit 1 reads unit 0 of the first, but nothing reads it."""
    model = prepared(
        nn.Sequential(
            *(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU()),
            *(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)),
        )
    )
    with torch.no_grad():
        model.get_parameter("3.weight")[[0, 2, 3], 0] = 0
        model.get_parameter("6.weight")[:, 1] = 0
    x = torch.randn(5, 2).double()
    small = ss.shrink(model, inputs=(x,))
    shapes = [tuple(small.get_parameter(f"{layer}.weight").shape) for layer in (0, 3, 6)]
    assert shapes == [(2, 2), (3, 2), (2, 3)]
    torch.testing.assert_close(small.eval()(x), model(x))


def test_a_group_keeps_one_unit() -> None:
    model = silenced(prepared(Residual()), 1.1, IMAGES)
    small = ss.shrink(model, inputs=(IMAGES,))
    assert small.get_submodule("stem").get_parameter("weight").shape == (1, 2, 3, 3)
    torch.testing.assert_close(small(IMAGES), model(IMAGES))


def test_code_that_has_the_number_of_heads_written_in_it() -> None:
    """The heads stay, with a warning. Feed-forward units go all the same."""
    x = torch.arange(12).view(2, 6) % 11
    model = silenced(prepared(Text()), 0.6, x)
    with pytest.warns(UserWarning, match="units stay, though nothing reads them"):
        small = ss.shrink(model, inputs=(x,))
    assert small.get_submodule("encoder.layers.0.linear1").get_parameter("weight").shape[0] < 10
    assert small.get_submodule("own.all").get_parameter("weight").shape[0] == 36
    assert small.get_parameter("head.weight") is small.get_parameter("embedding.weight")
    torch.testing.assert_close(small.eval()(x), model(x))


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()
        self.one, self.two = nn.Linear(8, 9), nn.Linear(9, 2)

    def forward(self, *, values: Tensor) -> dict[str, Tensor]:
        return {"scores": self.two(torch.relu(self.one(self.inner(values).mean(1))))}


def test_inputs_by_name() -> None:
    model, x = prepared(ByName()), torch.randn(3, 4, 8).double()
    with torch.no_grad():
        model.get_parameter("two.weight")[:, 2:] = 0
    small = ss.shrink(model, inputs={"values": x})
    assert small.get_parameter("one.weight").shape == (2, 8)
    torch.testing.assert_close(small.eval()(values=x)["scores"], model(values=x)["scores"])


def test_the_mode_stays() -> None:
    model = silenced(prepared(Residual()), 0.5, IMAGES).train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    small = ss.shrink(model, inputs=(IMAGES,))
    assert small.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


class Reused(nn.Module):
    """Two layers with one matrix between them, whose units a third layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two, self.last = nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = x + torch.relu(self.one(x))
        return self.last(x + torch.relu(self.two(x)))  # type: ignore[no-any-return]


def test_tied_tensors_stay_tied() -> None:
    model = prepared(Reused())
    with torch.no_grad():
        model.get_parameter("one.weight")[:, [1, 2]] = 0
        model.get_parameter("last.weight")[:, [1, 2]] = 0
    x = torch.randn(4, 3).double()
    small = ss.shrink(model, inputs=(x,))
    assert small.get_parameter("one.weight").shape == (3, 3)
    assert small.get_parameter("two.weight") is small.get_parameter("one.weight")
    torch.testing.assert_close(small(x), model(x))
    assert len(list(small.parameters())) == len(list(model.parameters()))


def test_a_convolution_with_groups_loses_one_place_of_each_group() -> None:
    """Six channels in two groups: places 1 of both are read by nothing behind, and places 2 of both are not read."""
    model = prepared(nn.Sequential(nn.Conv2d(2, 6, 1), nn.ReLU(), nn.Conv2d(6, 8, 3, groups=2), nn.Conv2d(8, 3, 1)))
    with torch.no_grad():
        model.get_parameter("2.weight")[:, 2] = 0
        model.get_parameter("3.weight")[:, [1, 5]] = 0
        model.get_parameter("3.weight")[:, 0] = 0  # its twin in the other group is read
    small = ss.shrink(model, inputs=(IMAGES,))
    layer = small.get_submodule("2")
    assert isinstance(layer, nn.Conv2d)
    assert layer.weight.shape == (6, 2, 3, 3)
    assert (layer.in_channels, layer.out_channels, layer.groups) == (4, 6, 2)
    assert small.get_parameter("0.weight").shape[0] == 4
    torch.testing.assert_close(small(IMAGES), model(IMAGES))
