"""Wrapped networks, networks that deepcopy refuses, and tensors that cannot be stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import softshare as ss
from softshare.errors import ModelError
from softshare.network.weights import WeightView, kept_message, load_state_
from softshare.network.wrapped import copied, under_names, unwrapped


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
    assert under_names(known, known) == known  # the network's own names begin with it
    both = ["module.a", "a"]
    assert under_names({"_orig_mod.a": 1}, both) == {"_orig_mod.a": 1}  # it could be either
    assert under_names({"module.a": 1, "a": 2}, ["_orig_mod.a"]) == {"module.a": 1, "a": 2}


def compiled(model: nn.Module) -> nn.Module:
    out = torch.compile(model, backend="eager")
    assert isinstance(out, nn.Module)
    return out


def part_wrapped(wrap: Callable[[nn.Module], nn.Module]) -> nn.Module:
    model = net()
    model[2] = wrap(model[2])
    return model


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "parallel": lambda: nn.DataParallel(net()),
    "compiled": lambda: compiled(net()),
    "both": lambda: nn.DataParallel(compiled(net())),
    "a part compiled": lambda: part_wrapped(compiled),
    "a part parallel": lambda: part_wrapped(nn.DataParallel),
}


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("source", ["names", "no names", "state dict"])
def test_files_go_between_wrapped_and_plain_networks(kind: str, source: str, tmp_path: Path) -> None:
    file, wrapped = tmp_path / "model.sws", WRAPPED[kind]()
    for model, target in ((wrapped, net()), (net(), wrapped)):
        with torch.no_grad():
            for k, p in enumerate(model.parameters()):
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape) + k)
            for p in target.parameters():
                p.zero_()
        if source == "state dict":
            ss.compress_weights(model.state_dict()).save(file)
        else:
            quantized = ss.MixturePrior(model, ss.PriorConfig(zero_mixing=0.1)).quantize()
            config = ss.EncodeConfig(names="keep" if source == "names" else "none")
            dataclasses.replace(quantized, config=config).save(file)
        ss.load_into_(target, file)
        wanted = ss.load(file, like=model).values()
        assert all(p.any() for p in target.parameters())
        assert all(torch.equal(p, t) for p, t in zip(target.parameters(), wanted, strict=True))


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


def with_tensor(tensor: torch.Tensor) -> nn.Module:
    model = net()
    model.register_buffer("odd", tensor)
    return model


def with_view(make: Callable[[torch.Tensor], torch.Tensor], buffer: bool = False) -> nn.Module:
    model = net()
    view = make(model.get_parameter("0.weight").data)
    if buffer:
        model.register_buffer("odd", view)
    else:
        model.register_parameter("odd", nn.Parameter(view))
    return model


# The network, and what `compress` and `compress_weights` say. Without a network, equal tensors are tied.
ODD: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "transposed": (lambda: with_view(torch.Tensor.t), "share memory", "share memory"),
    "slice": (lambda: with_view(lambda w: w[:2], buffer=True), "share memory", "share memory"),
    "same memory": (lambda: with_view(lambda w: w), "share memory; tie them", ""),
    "expanded": (lambda: with_tensor(torch.ones(1, 4).expand(8, 4)), "odd .* expanded", "odd .* expanded"),
    "sparse": (lambda: with_tensor(torch.eye(3).to_sparse()), "odd .*to_dense", "odd .*to_dense"),
    "sparse rows": (lambda: with_tensor(torch.eye(3).to_sparse_csr()), "odd .*to_dense", "odd .*to_dense"),
    "nested": (
        lambda: with_tensor(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])),
        "odd is a nested tensor",
        "odd is a nested tensor",
    ),
    "meta": (lambda: with_tensor(torch.empty(3, device="meta")), "odd .*meta device", "odd .*meta device"),
    "quantized": (
        lambda: with_tensor(torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8)),
        "odd .*before quantizing",
        "odd .*before quantizing",
    ),
    "lazy": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.LazyLinear(2)),
        r"lazy: 1\.weight, 1\.bias\. Run one batch",
        r"lazy: 1\.weight, 1\.bias\. Run one batch",
    ),
    "complex": (
        lambda: with_tensor(torch.zeros(2, dtype=torch.complex64)),
        "'odd': cannot store torch.complex64",
        "'odd': cannot store torch.complex64",
    ),
}


@pytest.mark.filterwarnings("ignore:.*(CSR|sparse csr|nested tensors|quantiz).*")
@pytest.mark.parametrize("kind", ODD)
def test_tensors_that_cannot_be_stored_are_named(kind: str) -> None:
    make, by_network, by_state = ODD[kind]
    x = torch.randn(16, 4)
    task = ss.Task(
        model=make(),
        train=[(x, (x[:, 0] > 0).long())],
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        evaluate=lambda model: 1.0,
        n_examples=16,
    )
    with pytest.raises(ModelError, match=by_network):
        ss.compress(task, ss.CompressConfig().override(epochs=1))
    if by_state:
        with pytest.raises(ModelError, match=by_state):
            ss.compress_weights(make().state_dict())
    else:
        ss.compress_weights(make().state_dict())


def test_what_is_not_compressed_is_said_if_it_counts() -> None:
    model = net()
    assert kept_message(WeightView.of(model)) == []
    model.register_parameter("own", nn.Parameter(torch.randn(58)))
    (line,) = kept_message(WeightView.of(model))
    assert line == "50% of the weights are kept as they are: own; a rule shares them, as share:own"
