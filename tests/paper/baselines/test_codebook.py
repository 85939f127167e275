"""Shared values are trained while the assignment is fixed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import softshare as ss
from softshare.config import RetrainConfig
from softshare.network.weights import WeightView
from softshare.paper.baselines.codebook import Codebook, Codebooks
from softshare.quantization.assignment import order_values
from softshare.task import Task
from softshare.train.hooks import Hook
from softshare.train.retrain import retrain_

Batch = tuple[Tensor, Tensor]
MIXTURES = ["layer", "global"]


def points(n: int, seed: int = 0) -> Batch:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()


class Net(nn.Module):
    """A network with a batch norm, which is not shared, and a tied tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.second = nn.Linear(12, 12)
        self.again = nn.Linear(12, 12)
        self.again.weight = self.second.weight
        self.out = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.again(torch.tanh(self.second(torch.tanh(self.norm(self.first(x)))))))
        logits: Tensor = self.out(x)
        return logits


def net() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_task(model: nn.Module | None = None, device: str = "cpu", **changes: Any) -> Task:
    x, y = (t.to(device) for t in points(256))
    held_out = tuple(t.to(device) for t in points(200, 1))

    def error(model: nn.Module) -> float:
        return 100 * float((model(held_out[0]).argmax(1) != held_out[1]).double().mean())

    train = list(zip(x.split(32), y.split(32), strict=True))
    return dataclasses.replace(Task(model or net(), train, cross_entropy, error, 256), **changes)


def codebooks(model: nn.Module, mixtures: Any = "layer") -> tuple[Codebooks, ss.MixturePrior, ss.Compressed]:
    prior = ss.MixturePrior(model, ss.PriorConfig(mixtures=mixtures, components=5, zero_mixing=0.3, width=0.2))
    compressed = prior.quantize()
    shared = {t.name: t for t in compressed.quantized.shared}
    books = []
    for part in prior.parts:
        own = [shared[s.name] for s in part.shared]
        books.append(Codebook(part.tensors, torch.cat([t.indices.long() for t in own]), own[0].codebook[1:].clone()))
    return Codebooks(books), prior, compressed


def indices(compressed: ss.Compressed) -> dict[str, Tensor]:
    return {t.name: t.indices.long() for t in compressed.quantized.shared}


# Values into a codebook


def test_values_in_order_by_hand() -> None:
    codebook, index = order_values(torch.tensor([0.0, 3.0, -1.0, 1.0, 3.0, -0.0, -2.0]))
    assert codebook.tolist() == [0, -1, 1, -2, 3]
    assert index.tolist() == [0, 4, 1, 2, 4, 0, 3]
    assert math.copysign(1, codebook[0].item()) == 1
    assert order_values(torch.tensor([-0.0]))[0].tolist() == [0]
    assert order_values(torch.zeros(0))[0].tolist() == [0]


@given(st.lists(st.floats(-1e3, 1e3, width=32), max_size=40))
def test_values_in_order(numbers: list[float]) -> None:
    values = torch.tensor(numbers, dtype=torch.float32)
    codebook, index = order_values(values)
    assert torch.equal(codebook[index], values + 0.0)
    assert codebook[0] == 0
    assert len(codebook) == len({0.0, *numbers})
    assert bool((codebook.abs().diff() >= 0).all())


# The latent parameters


@pytest.mark.parametrize("mixtures", MIXTURES)
def test_the_gradient_of_a_value_is_that_through_an_explicit_gather(mixtures: str) -> None:
    model = net().double().eval()
    books, prior, compressed = codebooks(model, mixtures)
    assert len(books.books) == (4 if mixtures == "layer" else 1)
    x, y = points(64, 2)
    batch = x.double(), y
    books.push_()
    cross_entropy(model, batch).backward()
    books.pull_()

    leaves = [book.all_values.double().requires_grad_() for book in books.books]
    gathered: dict[str, Tensor] = {}
    own = indices(compressed)
    for part, leaf in zip(prior.parts, leaves, strict=True):
        gathered |= {s.name: leaf[own[s.name]].view_as(s.tensor) for s in part.shared}
    logits = functional_call(model, gathered, (batch[0],), tie_weights=True)
    expected = torch.autograd.grad(F.cross_entropy(logits, y), leaves)
    for book, gradient in zip(books.books, expected, strict=True):
        assert book.values.grad is not None
        torch.testing.assert_close(book.values.grad.double(), gradient[1:], rtol=1e-5, atol=1e-9)
        assert bool((gradient != 0).all())  # also that of the value 0, which is not trained


def test_pushing_gives_the_quantized_network() -> None:
    for mixtures in MIXTURES:
        model = net()
        books, _, compressed = codebooks(model, mixtures)
        books.push_()
        state = compressed.quantized.state_dict()
        assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
        again = books.quantize(WeightView.of(model))
        for a, b in zip(again.shared, compressed.quantized.shared, strict=True):
            assert (a.name, a.shape, a.dtype, a.indices.dtype) == (b.name, b.shape, b.dtype, b.indices.dtype)
            assert torch.equal(a.indices, b.indices)
            assert torch.equal(a.codebook, b.codebook)
        assert (again.tied, again.order) == (compressed.quantized.tied, compressed.quantized.order)


def test_codebooks_are_trained_instead_of_the_weights() -> None:
    model = net()
    books, _, _ = codebooks(model)
    rest = [p for name, p in model.named_parameters() if name.startswith("norm")]
    expected = [id(p) for p in [*(book.values for book in books.books), *rest]]
    assert [id(p) for p in books.parameters(model)] == expected


def a_codebook(values: Sequence[float], index: Sequence[int]) -> tuple[Codebook, nn.Linear]:
    layer = nn.Linear(len(index), 1, bias=False)
    return Codebook([layer.weight], torch.tensor(index), torch.tensor(values)), layer


def test_values_that_became_equal_are_merged_and_all_are_in_order() -> None:
    book, layer = a_codebook([3.0, -1.0, 2.0, 3.0, 0.0], [0, 1, 2, 3, 4, 5, 1])
    quantized = Codebooks([book]).quantize(WeightView.of(layer))
    (weight,) = quantized.shared
    assert weight.codebook.tolist() == [0, -1, 2, 3]
    assert weight.indices.tolist() == [0, 3, 1, 2, 3, 0, 3]  # a value of 0 is index 0
    book.push_()
    assert torch.equal(weight.dense(), layer.weight)


def test_a_tensor_that_the_loss_does_not_reach_and_one_of_zeros() -> None:
    book, layer = a_codebook([1.0], [0, 1, 1])
    book.pull_()
    assert book.values.grad is not None
    assert book.values.grad.tolist() == [0]
    empty, zeros = a_codebook([], [0, 0])
    empty.pull_()
    empty.push_()
    assert zeros.weight.tolist() == [[0, 0]]
    assert Codebooks([empty]).parameters(zeros) == []
    assert Codebooks([empty]).quantize(WeightView.of(zeros)).shared[0].codebook.tolist() == [0]
    assert layer.weight.grad is None


def test_a_codebook_serves_tensors_of_several_dtypes_and_layouts() -> None:
    layers = [nn.Linear(3, 2).to(torch.bfloat16), nn.Linear(2, 4).double(), nn.Linear(4, 2), nn.Embedding(0, 2)]
    model = nn.Sequential(*layers)
    turned = model.get_parameter("2.weight")
    turned.data = turned.data.t().contiguous().t()
    books, _, compressed = codebooks(model, "global")
    books.push_()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    books.pull_()
    (book,) = books.books
    counts = torch.cat(list(indices(compressed).values())).bincount(minlength=len(book.values) + 1)
    assert book.values.grad is not None
    assert book.values.grad.tolist() == counts[1:].tolist()
    state = compressed.quantized.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())


def test_only_an_empty_tensor_may_have_no_codebook() -> None:
    book, layer = a_codebook([1.0], [0, 1, 1])
    empty, full = Codebooks([book]).quantize(WeightView.of(nn.Sequential(nn.Embedding(0, 2), layer))).shared
    assert (empty.indices.tolist(), empty.codebook.tolist(), empty.shape) == ([], [0], (0, 2))
    assert full.indices.tolist() == [0, 1, 1]


def test_no_weight_changes_its_index_while_training() -> None:
    task = make_task()
    books, _, compressed = codebooks(task.model)
    own = indices(compressed)

    class Watch(Hook):
        steps = 0

        def on_step(self, epoch: int, step: int) -> None:
            self.steps += 1
            for name, index in own.items():
                weight = task.model.state_dict()[name].flatten()
                assert not weight[index == 0].any()
                assert all(len(weight[index == k].unique()) == 1 for k in index.unique())

    start = [book.values.detach().clone() for book in books.books]
    watch = Watch()
    history = retrain_(task, None, RetrainConfig(epochs=4, lr_weights=1e-2), [watch], books)
    assert watch.steps == 32
    assert history[-1].task_loss < history[1].task_loss
    assert all(bool((book.values != s).all()) for book, s in zip(books.books, start, strict=True))
