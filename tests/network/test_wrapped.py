"""Wrapped networks, networks that deepcopy refuses, and tensors that cannot be stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import softshare as ss
from softshare.errors import ModelError
from softshare.network.weights import WeightView, kept_message, load_state_
from softshare.network.wrapped import copied, unwrapped, without_prefix


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_wrapped_network_has_its_own_names(compiled: bool, tmp_path: Path) -> None:
    inner = net()
    wrapped: Any = nn.DataParallel(torch.compile(inner, backend="eager") if compiled else nn.DataParallel(inner))
    assert unwrapped(wrapped) is inner
    assert WeightView.of(wrapped).order == ("0.weight", "0.bias", "2.weight", "2.bias")
    file = tmp_path / "model.sws"
    ss.MixturePrior(wrapped).quantize().save(file)
    assert list(ss.load(file)) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    ss.load_into_(wrapped, file)
    assert torch.equal(inner.get_parameter("0.weight"), ss.load(file)["0.weight"])


def test_a_state_with_a_prefix_fits() -> None:
    model, state = net(), net().state_dict()
    wanted = {f"module._orig_mod.{name}": torch.full_like(t, 3.0) for name, t in state.items()}
    load_state_(model, wanted, "state")
    assert all((p == 3).all() for p in model.parameters())
    known = {"module.a": 1}
    assert without_prefix(known, known) == known  # the network's own names begin with it


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_old_style_norms_are_copied_and_kept(norm: object) -> None:
    model = nn.Sequential(norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2))  # type: ignore[operator]
    x = torch.randn(3, 4)
    before = model(x)  # leaves a computed weight in the layer
    again = copied(model)
    torch.testing.assert_close(again.eval()(x), model.eval()(x))
    assert again is not model
    assert before.grad_fn is not None
    names = {s.name for s in WeightView.of(model).shared}
    assert names == {"0.bias", "2.weight", "2.bias"}  # what is divided by its norm may not become 0


def test_a_network_that_cannot_be_copied_says_so() -> None:
    class Stubborn(nn.Module):
        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("no copies")

    with pytest.raises(ModelError, match=r"cannot be copied \(no copies\)"):
        copied(Stubborn())


def test_one_memory_of_two_parameters_is_refused() -> None:
    """A deep copy would untie them. One parameter under two names is tied."""
    model = net()
    model.register_parameter("again", model.get_parameter("0.weight"))
    assert WeightView.of(model).tied == {"0.weight": "again"}
    model.register_parameter("again", nn.Parameter(model.get_parameter("0.weight").data))
    with pytest.raises(ModelError, match=r"again and 0\.weight share memory; tie them"):
        WeightView.of(model)


def test_views_of_one_memory_are_refused_unless_they_lie_apart() -> None:
    model, whole = nn.Module(), torch.randn(6, 4)
    model.a, model.b = nn.Parameter(whole[:3]), nn.Parameter(whole[3:])
    model.c = nn.Parameter(torch.randn(4, 2)[:, 0])
    assert WeightView.of(model, [ss.Rule("*", True)]).n_weights == 28
    model.c, model.d = (nn.Parameter(column) for column in torch.randn(4, 2).unbind(1))  # between each other, apart
    assert WeightView.of(model, [ss.Rule("*", True)]).n_weights == 32
    model.e = nn.Parameter(whole.t())
    with pytest.raises(ModelError, match="share memory, but are not the same tensor"):
        WeightView.of(model)
    crossed, square = nn.Module(), torch.randn(10, 10)
    for name, part in (("a", square[:, 0]), ("b", square[0, 1:3]), ("c", square[5])):
        crossed.register_buffer(name, part)
    with pytest.raises(ModelError, match="a and c share memory"):
        WeightView.of(crossed)


@pytest.mark.parametrize(
    ("tensor", "what"),
    [(torch.eye(3).to_sparse(), "to_dense"), (torch.empty(3, device="meta"), "meta device")],
    ids=["sparse", "meta"],
)
def test_tensors_that_cannot_be_stored_are_named(tensor: torch.Tensor, what: str) -> None:
    model = net()
    model.register_buffer("odd", tensor)
    with pytest.raises(ModelError, match=rf"odd .*{what}"):
        WeightView.of(model)


def test_what_is_not_compressed_is_said_if_it_counts() -> None:
    model = net()
    assert kept_message(WeightView.of(model)) == []
    model.register_parameter("own", nn.Parameter(torch.randn(58)))
    (line,) = kept_message(WeightView.of(model))
    assert line == "50% of the weights are kept as they are: own; a rule shares them, as share:own"
