"""A smaller network for the same function."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from test_symmetries import (
    IMAGES,
    Functional,
    Residual,
    Tied,
    Untraceable,
    averaging,
    normalized,
    quantized_of,
    without_biases,
)
from torch import Tensor, nn

from softshare.errors import ModelError
from softshare.simplify.shrink import shrink
from softshare.zoo.models import LeNet5Caffe, LeNet300100


def sizes(model: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(m.weight.shape) for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]


def inputs(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(16, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def check_same(model: nn.Module, small: nn.Module, shape: tuple[int, ...]) -> None:
    """The comparison is in double precision, so the order of sums does not matter."""
    x = inputs(shape)
    with torch.no_grad():
        torch.testing.assert_close(small.eval()(x), model.eval()(x), rtol=1e-9, atol=1e-9)


def padded() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 9, 3, padding=1), nn.Sigmoid(), nn.Conv2d(9, 4, 3, padding="same"), nn.Flatten())


def wrapped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 9, 3), nn.Sigmoid(), nn.Conv2d(9, 4, 3, padding=1, padding_mode="circular"), nn.Flatten()
    )


@pytest.mark.parametrize(
    ("make", "shape", "density", "seed"),
    [
        (LeNet300100, IMAGES, 0.02, 0),
        (LeNet5Caffe, IMAGES, 0.02, 1),
        (averaging, IMAGES, 0.02, 0),
        (averaging, IMAGES, 0.3, 1),
        (without_biases, IMAGES, 0.3, 0),
        (Functional, IMAGES, 0.3, 1),
        (Residual, (16,), 0.3, 0),
        (padded, IMAGES, 0.02, 1),
        (padded, IMAGES, 0.3, 0),
        (wrapped, IMAGES, 0.3, 1),
    ],
)
def test_same_function(make: Callable[[], nn.Module], shape: tuple[int, ...], density: float, seed: int) -> None:
    model = make()
    quantized = quantized_of(model, density, seed)
    before = copy.deepcopy(model.state_dict())
    small = shrink(model.double(), quantized)
    full = copy.deepcopy(model)
    full.load_state_dict(quantized.state_dict())
    check_same(full, small, shape)
    left, all_of_them = (sum(p.numel() for p in m.parameters()) for m in (small, full))
    assert left < all_of_them or (make is padded and left == all_of_them)  # there, constants must stay
    torch.testing.assert_close(model.state_dict(), before, check_dtype=False)  # only read
    again = shrink(small)
    assert sizes(again) == sizes(small)


def test_float32_to_rounding() -> None:
    model = LeNet300100()
    quantized = quantized_of(model, 0.05)
    small = shrink(model, quantized)
    model.load_state_dict(quantized.state_dict())
    x = inputs(IMAGES).float()
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-4)


def by_hand() -> nn.Sequential:
    """Unit 0 works, 1 feeds nothing, 2 is always 0.5, 3 is always off, 4 feeds only a unit that feeds nothing."""
    model = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    values = {
        "0.weight": [[1, 2], [3, 4], [0, 0], [0, 0], [1, 1]],
        "0.bias": [0.1, 0.2, 0.5, -0.5, 0],
        "2.weight": [[1, 0, 4, 6, 0], [0, 0, -2, 1, 0], [1, 0, 0, 0, 1]],
        "2.bias": [0, 3, 0],
        "4.weight": [[1, 10, 0], [2, 20, 0]],
        "4.bias": [0, 1],
    }
    model.load_state_dict({name: torch.tensor(v, dtype=torch.float64) for name, v in values.items()})
    return model


def test_by_hand() -> None:
    """The constant of unit 2 goes into biases. This makes the second layer's unit 1 constant too, 3 - 2 * 0.5."""
    model = by_hand()
    small = shrink(model)
    assert sizes(small) == [(1, 2), (1, 1), (2, 1)]
    expected = {
        "0.weight": [[1, 2]],
        "0.bias": [0.1],
        "2.weight": [[1]],
        "2.bias": [2],
        "4.weight": [[1], [2]],
        "4.bias": [20, 41],
    }
    assert {name: t.tolist() for name, t in small.state_dict().items()} == expected
    assert repr(small[0]) == "Linear(in_features=2, out_features=1, bias=True)"  # type: ignore[index]
    check_same(model, small, (2,))


def test_a_layer_keeps_one_unit() -> None:
    model = by_hand()
    nn.init.zeros_(model[2].weight)  # type: ignore[arg-type]
    small = shrink(model)
    assert sizes(small) == [(1, 2), (1, 1), (2, 1)]
    check_same(model, small, (2,))


def test_a_constant_makes_a_bias() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 2, bias=False)).double()
    with torch.no_grad():
        model[0].get_parameter("weight")[1] = 0
    small = shrink(model)
    assert sizes(small) == [(2, 2), (2, 2)]
    assert small.get_submodule("2").bias is not None
    check_same(model, small, (2,))


@pytest.mark.parametrize(("make", "left"), [(padded, 9), (wrapped, 8)])
def test_zero_padding_keeps_a_constant_filter(make: Callable[[], nn.Module], left: int) -> None:
    model = make().double()
    with torch.no_grad():
        model.get_parameter("0.weight")[3] = 0
    small = shrink(model)
    assert small.get_parameter("0.weight").shape[0] == left
    check_same(model, small, IMAGES)


@pytest.mark.parametrize("model", [Tied(), Untraceable(), normalized(), nn.Linear(4, 4)])
def test_what_cannot_shrink_is_unchanged(model: nn.Module) -> None:
    quantized = quantized_of(model, 0.4)
    small = shrink(model, quantized)
    assert all(torch.equal(t, quantized.state_dict()[name]) for name, t in small.state_dict().items())


def test_a_small_network_can_be_trained() -> None:
    model = by_hand()
    model[0].get_parameter("weight").requires_grad_(False)
    small = shrink(model)
    assert [p.requires_grad for p in small.parameters()] == [False, False, True, True, True, True]
    small(inputs((2,))).sum().backward()
    assert small.get_parameter("4.weight").grad is not None


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(ModelError, match=r"the state dict does not fit the model:\n  missing .*: 0\.bias"):
        shrink(nn.Sequential(nn.Linear(2, 2)), {"0.weight": torch.zeros(2, 2)})
