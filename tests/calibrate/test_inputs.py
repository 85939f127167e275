"""Moments of inputs: linear layers, attention, convolutions, products in other forms, loops, and what comes before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.calibrate import inputs
from softshare.calibrate.abreast import Survey, survey, sweep
from softshare.calibrate.batches import evaluating, logits_of, run
from softshare.calibrate.inputs import Finder, Moments, Use
from softshare.errors import ConfigError, TaskError


def seen(model: nn.Module, batches: Iterable[Any]) -> tuple[Survey, dict[Use, Tensor]]:
    """What a survey finds, and the moments of each use."""
    weights, found = dict(model.state_dict()), {}

    def ready(use: Use, moments: Moments) -> None:
        (found[use],) = moments.own

    finder, batches = Finder(weights), list(batches)
    with evaluating(model):
        known = survey(model, batches, finder)
        sweep(model, batches, finder, known, weights, ready)
    return known, found


def moments(x: Tensor) -> Tensor:
    x = x.reshape(-1, x.shape[-1]).double()
    return x.T @ x / len(x)


def test_a_linear_layer_over_several_batches() -> None:
    x = torch.randn(2, 7, 5)
    found = seen(nn.Linear(5, 3), list(x))[1]
    assert list(found) == [Use("weight", 0, 3)]
    assert torch.allclose(found[Use("weight", 0, 3)], moments(x), atol=1e-5)


def test_inputs_of_three_dimensions_without_a_bias() -> None:
    x = torch.randn(2, 3, 5)
    found = seen(nn.Linear(5, 4, bias=False), [x])[1]
    assert torch.allclose(found[Use("weight", 0, 4)], moments(x), atol=1e-5)


@pytest.mark.parametrize("dims", [1, 2])
@torch.no_grad()
def test_a_convolution_sees_its_patches(dims: int) -> None:
    layer = (nn.Conv1d if dims == 1 else nn.Conv2d)(3, 4, 3, stride=2, padding=1, dilation=1)
    x = torch.randn(2, 3, *(9,) * dims)
    found = seen(layer, [x])[1][Use("weight", 0, 4)]
    w = layer.weight.detach().reshape(4, -1).double()
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    energy = layer(x).double().square().transpose(0, 1).reshape(4, -1).mean(1)
    assert torch.allclose(((w @ found) * w).sum(1), energy, rtol=1e-4)  # of each output


def test_many_inputs_fall_into_blocks_of_whole_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MOST_PATCH", 20)
    monkeypatch.setattr(inputs, "BLOCK_INPUTS", 8)
    layer, x = nn.Conv1d(8, 2, 3, padding=1), torch.randn(4, 8, 9)
    found: list[Moments] = []
    weights, finder = dict(layer.state_dict()), Finder(dict(layer.state_dict()))
    with evaluating(layer):
        known = survey(layer, [x], finder)
        sweep(layer, [x], finder, known, weights, lambda _, moments: found.append(moments))
    columns = torch.arange(24).split(6)  # two channels of three taps
    patches = nn.functional.unfold(x[:, :, None], (1, 3), padding=(0, 1)).transpose(1, 2).reshape(-1, 24)
    assert [(s.start, s.stop) for s in found[0].spans] == [(int(c[0]), int(c[-1]) + 1) for c in columns]
    for own, crossed, c in zip(found[0].own, found[0].crossed, columns, strict=True):
        assert torch.allclose(own, moments(patches[:, c]), atol=1e-5)
        assert torch.equal(own, crossed)  # nothing is quantized before


def test_blocks_see_some_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MOST_INPUTS", 4), ("BLOCK_INPUTS", 3), ("MOST_ROWS", 10)):
        monkeypatch.setattr(inputs, name, value)
    layer, x = nn.Linear(6, 2), torch.randn(30, 6)
    found: list[Moments] = []
    finder = Finder(dict(layer.state_dict()))
    with evaluating(layer):
        known = survey(layer, [x], finder)
        sweep(layer, [x], finder, known, layer.state_dict(), lambda _, moments: found.append(moments))
    assert found[0].n == 10
    assert torch.allclose(list(found[0].own)[1], moments(x[::3, 3:]), atol=1e-5)


def test_attention_has_blocks_of_rows() -> None:
    """Queries have other inputs than keys and values."""
    layer = nn.MultiheadAttention(4, 2, batch_first=True)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Any:
            known = x[:, :2]
            return layer(x, known, known)

    x = torch.randn(3, 6, 4)
    found = seen(Net(), [x])[1]
    assert set(found) == {
        Use("layer.in_proj_weight", 0, 4),
        Use("layer.in_proj_weight", 4, 12),
        Use("layer.out_proj.weight", 0, 4),
    }
    assert torch.allclose(found[Use("layer.in_proj_weight", 0, 4)], moments(x), atol=1e-5)
    assert torch.allclose(found[Use("layer.in_proj_weight", 4, 12)], moments(x[:, :2]), atol=1e-5)


class Odd(nn.Module):
    """A weight whose inputs run along its first dimension, a table that is the head too, and shared inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.across = nn.Parameter(torch.randn(4, 6))
        self.table = nn.Embedding(11, 4)
        self.one, self.two = nn.Linear(6, 4, bias=False), nn.Linear(6, 4, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        h = self.table(tokens) @ self.across
        return {"logits": F.linear(self.one(h) + self.two(h), self.table.weight)}


def test_odd_uses() -> None:
    model, tokens = Odd(), torch.arange(11)[None]
    known, found = seen(model, [{"tokens": tokens, "labels": tokens}])
    across = [use for use in found if use.name == "across"]
    assert across == [Use("across", 0, 4, across=True)]
    assert torch.allclose(found[across[0]], moments(model.table.weight.detach()), atol=1e-5)
    assert known.tables == {"table.weight"}
    one, two = (Use(f"{name}.weight", 0, 4) for name in ("one", "two"))
    assert known.inputs[two] == known.inputs[one] == one
    assert torch.equal(found[one], found[two])


class Loop(nn.Module):
    """A weight that is used several times before another one, and more often for some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.head = nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(len(x)):
            x = self.step(x).tanh()
        out: Tensor = self.head(x)
        return out


def test_inputs_of_all_uses_in_a_loop() -> None:
    model, batches = Loop(), [torch.randn(n, 3) for n in (2, 4)]
    known, found = seen(model, batches)
    states = []
    for x in batches:
        for _ in range(len(x)):
            states.append(x)
            x = model.step(x).tanh()
    assert torch.allclose(found[Use("step.weight", 0, 3)], moments(torch.cat(states)), atol=1e-5)
    assert [count[Use("step.weight", 0, 3)] for count in known.counts] == [2, 4]


def test_later_layers_see_the_quantized_ones_before_them() -> None:
    """And the inputs that they would have without, in the order of the network. The network itself does not change."""
    first = nn.Linear(3, 3)
    model = nn.Sequential(first, nn.Linear(3, 4), nn.Linear(4, 2))
    finder, batches = Finder(before := dict(model.state_dict())), list(torch.randn(3, 5, 3))
    kept, order, found = {k: t.clone() for k, t in before.items()}, [], {}

    def ready(use: Use, got: Moments) -> None:
        order.append(use.name)
        found[use.name] = next(got.own), next(got.crossed)
        finder.put(use.name, torch.zeros_like(before[use.name]))

    model.train()
    with evaluating(model):
        sweep(model, batches, finder, survey(model, batches, finder), before, ready)
    assert order == ["0.weight", "1.weight", "2.weight"]
    assert model.training
    assert all(torch.equal(t, kept[name]) for name, t in model.state_dict().items())
    assert torch.allclose(found["1.weight"][0], moments(first.bias[None]), atol=1e-6)
    crossed = first(torch.cat(batches)).mean(0)[:, None] @ first.bias[None]
    assert torch.allclose(found["1.weight"][1], crossed.double(), atol=1e-5)


def test_batches_without_and_with_labels() -> None:
    x, y = torch.randn(4, 3), torch.zeros(4)
    model = nn.Linear(3, 2)
    for batch in (x, (x,), (x, y), [x, y]):
        assert torch.equal(run(model, batch), model(x))
    two = nn.Bilinear(3, 3, 2)
    assert torch.equal(run(two, (x, x)), two(x, x))
    assert torch.equal(run(two, (x, x, y)), two(x, x))
    with pytest.raises(ConfigError, match="tensors, tuples or dicts that the model takes, got str"):
        run(model, "words")
    with pytest.raises(TaskError, match="the model failed in batch 1 of calibrate"):
        seen(model, [torch.ones(2, 9)])


def test_the_logits_of_an_output() -> None:
    x, n = torch.ones(2), torch.ones(2, dtype=torch.int64)
    for output in (x, (n, x), {"a": n, "b": x}, {"a": -x, "logits": x}, [[x]]):
        assert logits_of(output) is x
    assert logits_of(n) is None
    assert logits_of(None) is None
