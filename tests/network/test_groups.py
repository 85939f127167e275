"""Groups of units: a unit can be taken from all of its tensors, and what nothing reads changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from softshare.network.groups import Group, find_groups
from softshare.zoo.models import WRN164, LeNet5Caffe, LeNet300100
from unit_networks import IMAGES, Residual, Text, prepared


class Shuffled(nn.Module):
    """Channels in another order between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(2, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        batch, _, *places = x.shape
        return self.other(x.view(batch, 2, 3, *places).transpose(1, 2).reshape(batch, 6, *places))  # type: ignore[no-any-return]


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def groups(model: nn.Module, *args: Any) -> tuple[Group, ...]:
    return find_groups(model, args, {})[0]


def names(group: Group) -> list[str]:
    return [s.name + (" read" if s.read else "") for s in group.slices]


def copied(model: nn.Module) -> dict[str, Tensor]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}  # a tied one once
    return {name: t.detach().clone() for name, t in tensors.items()}


def only(state: dict[str, Tensor], group: Group, n_units: int) -> dict[str, Tensor]:
    """The tensors of a network that has only the first units of a group."""
    state = dict(state)
    for s in group.slices:
        cut = s.of(state[s.name], group.n_units).narrow(s.dim + 1, 0, n_units)
        state[s.name] = cut.flatten(s.dim, s.dim + 2)
    return state


def narrowed(model: nn.Module, group: Group, n_units: int) -> nn.Module:
    """A copy whose depthwise convolutions have as many groups as units are left."""
    model = copy.deepcopy(model)
    for s in group.slices:
        layer = model.get_submodule(s.name.rpartition(".")[0])
        if isinstance(layer, nn.Conv2d) and layer.groups > 1:
            layer.groups = n_units
    return model


@pytest.mark.parametrize(
    ("model", "x", "expected"),
    [
        (LeNet300100(), randn(2, 784), [300, 100]),
        (LeNet5Caffe(), randn(2, 1, 28, 28), [20, 50, 500]),
        (WRN164(), randn(2, 3, 32, 32), [16, 64, 64, 64, 128, 128, 128, 256, 256, 256]),
        (Residual(), IMAGES, [6, 9, 9]),
    ],
)
def test_units_that_nothing_reads_can_be_removed(model: nn.Module, x: Tensor, expected: list[int]) -> None:
    """Cut out of all tensors, not only out of those of its own layer."""
    model = prepared(model)
    found = groups(model, x)
    assert sorted(group.n_units for group in found) == sorted(expected)
    for group in found:
        state = copied(model)
        half = group.n_units // 2
        for s in group.slices:
            if s.read:
                s.of(state[s.name], group.n_units).narrow(s.dim + 1, half, group.n_units - half).zero_()
        ignored = functional_call(model, state, (x,))
        removed = functional_call(narrowed(model, group, half), only(state, group, half), (x,))
        torch.testing.assert_close(removed, ignored, rtol=1e-9, atol=1e-11)
        assert not torch.equal(ignored, model(x))


@pytest.mark.parametrize(("model", "x"), [(Text(), torch.arange(12).view(2, 6) % 11), (Shuffled(), IMAGES)])
def test_what_writes_a_unit_matters_only_if_it_is_read(model: nn.Module, x: Tensor) -> None:
    """Where a shape is written into the code, the network cannot be cut. But its units can be silenced."""
    model = prepared(model)
    for group in groups(model, x):
        for unit in range(group.n_units):
            state = copied(model)
            for s in group.slices:
                if s.read:
                    s.of(state[s.name], group.n_units).select(s.dim + 1, unit).zero_()
            silent = functional_call(model, state, (x,))
            for s in group.slices:
                if not s.read:
                    s.of(state[s.name], group.n_units).select(s.dim + 1, unit).normal_()
            torch.testing.assert_close(functional_call(model, state, (x,)), silent, rtol=1e-9, atol=1e-11)


def test_a_residual_stream_is_one_group() -> None:
    stream = groups(prepared(Residual()), IMAGES)[0]
    assert {"stem.weight", "narrow.0.weight", "narrow.1.bias", "norms.1.weight", "wide.0.weight read"} <= set(
        names(stream)
    )
    assert "head.weight read" in names(stream)


def test_heads_feed_forward_units_and_tied_weights() -> None:
    found = {names(group)[0]: group for group in groups(prepared(Text()), torch.arange(12).view(2, 6) % 11)}
    assert {name: group.n_units for name, group in found.items()} == {
        "encoder.layers.0.self_attn.in_proj_weight": 2,
        "encoder.layers.0.linear1.weight": 10,
        "own.all.weight": 3,
    }
    heads = found["own.all.weight"]
    assert [(s.name, s.outer, s.inner) for s in heads.slices] == [
        ("own.all.weight", 3, 4), ("own.all.bias", 3, 4), ("own.out.weight", 1, 4),
    ]  # fmt: skip


def test_channels_in_another_order() -> None:
    """They are two axes of 2 and 3 places, the first slower in one layer and the second in the other."""
    found = groups(prepared(Shuffled()), IMAGES)
    assert [(g.n_units, [(s.name, s.outer, s.inner) for s in g.slices]) for g in found] == [
        (2, [("one.weight", 1, 3), ("one.bias", 1, 3), ("other.weight", 3, 1)]),
        (3, [("one.weight", 2, 1), ("one.bias", 2, 1), ("other.weight", 1, 2)]),
    ]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else x


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 6), nn.LayerNorm([6, 5, 5]), nn.Softmax(1)])
def test_what_averages_over_units_holds_them(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(2, 6, 1), norm, nn.Conv2d(6, 2, 1))
    assert find_groups(prepared(model), (IMAGES,), {}) == ((), ())


class Places(nn.Module):
    """One layer reads the units of another one by one, and an operation mixes them as places."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.one, self.mix, self.other = nn.Linear(5, 6), mix, nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.other(x).sum() + self.mix(x).sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("mix", [nn.Conv1d(2, 2, 3), nn.MaxPool1d(2), nn.MaxPool2d(2), nn.ZeroPad1d(1)])
def test_units_that_are_places_are_held(mix: nn.Module) -> None:
    x = torch.randn(3, 2, 5).double()
    assert find_groups(prepared(Places(mix)), (x,), {}) == ((), ())


def test_what_is_not_known_is_left_alone_with_a_message() -> None:
    found, alone = find_groups(Recurrent(), (torch.randn(2, 3, 2),), {})
    assert (found, alone) == ((), ("units left alone where lstm may mix them",))
    found, alone = find_groups(Branching(), (torch.randn(2, 2),), {})
    assert found == ()
    assert alone[0].startswith("units left alone: the network cannot be exported: ")


def test_the_network_does_not_change() -> None:
    model = Residual().train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    groups(model, IMAGES.float())
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
