"""Shared values trained with the assignment fixed, alone and as a stage of the route."""

from __future__ import annotations

import copy
import csv
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from softshare.train.codebook import Codebook, Codebooks, with_values
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import softshare as ss
from softshare.compressed import quantize_prior
from softshare.config import RetrainConfig
from softshare.errors import ConfigError
from softshare.network.weights import WeightView
from softshare.quantization.assignment import order_values
from softshare.quantization.description_length import complexity_bits
from softshare.quantization.quantized import index_dtype
from softshare.simplify.symmetries import simplify
from softshare.task import Task
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.phases import Phases
from softshare.train.progress import CsvLog
from softshare.train.retrain import retrain_

Batch = tuple[Tensor, Tensor]
# Hard from the start, so that every weight has its value, and few of them are 0.
CONFIG = ss.CompressConfig().override(epochs=3, tau=1e-3, zero_mixing=0.5, hard_from=0.0, lr_weights=1e-2)
TUNED = CONFIG.override(codebook_epochs=4, lr_codebook=1e-2)
MIXTURES = ["layer", "global"]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def points(n: int, seed: int = 0) -> Batch:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()


class Net(nn.Module):
    """With a batch norm, which is not shared, and a tied tensor."""

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
    return Codebooks(Codebook.of(part, shared) for part in prior.parts), prior, compressed


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
        assert bool((gradient != 0).all())  # that of 0 too, which is not trained


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


def test_what_is_trained_in_place_of_the_weights() -> None:
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
    assert Codebooks([book, empty]).n_alive == 3
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


# The stage


@pytest.mark.parametrize("mixtures", MIXTURES)
def test_the_stage_moves_values_and_the_rest_and_no_index(mixtures: str) -> None:
    task = make_task()
    plain, tuned = (ss.compress(task, c.override(mixtures=mixtures)) for c in (CONFIG, TUNED))
    assert tuned.history[-1].task_loss < tuned.history[CONFIG.retrain.epochs + 2].task_loss
    codebooks_of: dict[int, set[str]] = {}
    for a, b in zip(plain.quantized.shared, tuned.quantized.shared, strict=True):
        assert a.name == b.name
        assert torch.equal(a.indices == 0, b.indices == 0)
        assert len(a.codebook) == len(b.codebook)
        pairs = set(zip(a.indices.tolist(), b.indices.tolist(), strict=True))
        assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)  # one to one
        assert not torch.equal(a.codebook, b.codebook)
        assert b.codebook[0] == 0
        assert bool((b.codebook.abs().diff() >= 0).all())
        assert b.indices.dtype == index_dtype(len(b.codebook))
        codebooks_of.setdefault(id(b.codebook), set()).add(b.name)
    one_each = {"first", "second", "again", "out"}
    found = {frozenset(name.partition(".")[0] for name in names) for names in codebooks_of.values()}
    assert found == ({frozenset({n}) for n in one_each} if mixtures == "layer" else {frozenset(one_each)})
    assert tuned.quantized.tied == {"again.weight": "second.weight"}
    assert all(torch.equal(t, plain.retrained[name]) for name, t in tuned.retrained.items())
    for name in ("norm.weight", "norm.running_mean"):
        assert not torch.equal(tuned.quantized.rest[name], plain.quantized.rest[name])
    steps = 8 * (TUNED.retrain.epochs + TUNED.codebook.codebook_epochs)
    assert int(tuned.quantized.rest["norm.num_batches_tracked"]) == steps


def test_what_was_trained_last_is_what_is_kept() -> None:
    task = make_task()
    tuned = ss.compress(task, TUNED.override(codebook_dtype="float32"))
    result = ss.measure(task, tuned, TUNED.override(codebook_dtype="float32"))
    assert result.error_after == tuned.history[-1].validation_error
    assert result.seconds == sum(r.seconds for r in tuned.history)


@pytest.mark.parametrize("mixtures", MIXTURES)
def test_the_bits_of_the_mixture_stay_those_of_the_assignment(mixtures: str) -> None:
    """By hand: every weight by the components it had before its value moved."""
    task = make_task()
    plain, tuned = (ss.compress(task, c.override(mixtures=mixtures)) for c in (CONFIG, TUNED))
    bits = 0.0
    for t in plain.quantized.shared:
        mixture = plain.mixtures[t.name]
        for k, n in enumerate(t.counts().tolist()):
            if n:
                bits -= n * math.log2(float(mixture.mixing.double()[mixture.mean == t.codebook[k]].sum()))
    assert complexity_bits(tuned.quantized, tuned.mixtures) == pytest.approx(bits, rel=1e-6)
    assert ss.measure(task, tuned, TUNED.override(mixtures=mixtures)).complexity_bytes == pytest.approx(bits / 8)
    assert tuned.history[-1].complexity_bits == pytest.approx(bits, rel=1e-6)
    assert len({id(m) for m in tuned.mixtures.values()}) == len({id(m) for m in plain.mixtures.values()})


def test_means_move_with_their_values_and_those_of_no_weight_stay() -> None:
    mixture = ss.Mixture(torch.full((5,), 0.2).log(), torch.tensor([0.0, 1.0, 2.0, -3.0, 1.0]), torch.zeros(5))
    moved = with_values(mixture, torch.tensor([0.0, 1.0, -3.0]), torch.tensor([0.0, 1.5, -2.0]))
    assert moved.mean.tolist() == [0, 1.5, 2, -2, 1.5]
    assert torch.equal(moved.log_mixing, mixture.log_mixing)
    assert torch.equal(moved.log_var, mixture.log_var)
    merged = with_values(mixture, torch.tensor([0.0, 1.0, -3.0]), torch.tensor([0.0, 0.0, -2.0]))
    assert merged.mean.tolist() == [0, 0, 2, -2, 0]


class Recorder(Hook):
    def __init__(self, fails_at: int | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails_at = fails_at

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self.calls.append(("start", epochs, steps_per_epoch))

    def on_step(self, epoch: int, step: int) -> None:
        self.calls.append(("step", epoch, step))
        if epoch == self.fails_at:
            raise KeyboardInterrupt

    def on_epoch(self, record: EpochRecord) -> None:
        self.calls.append(("epoch", str(dataclasses.replace(record, seconds=0.0))))  # as text: nan equals nan

    def on_end(self) -> None:
        self.calls.append(("end",))

    def epochs(self) -> list[str]:
        return [call[1].partition(",")[0].partition("=")[2] for call in self.calls if call[0] == "epoch"]


def test_off_by_default_and_then_nothing_is_new() -> None:
    """The stages one by one, without this one: the same calls of the hooks, the same history, the same bytes."""
    assert ss.CompressConfig().codebook.codebook_epochs == 0
    task, recorder, expected = make_task(), Recorder(), Recorder()
    compressed = ss.compress(task, CONFIG, [recorder])
    task = dataclasses.replace(task, model=copy.deepcopy(task.model))
    prior = ss.MixturePrior(task.model, CONFIG.prior)
    retrain_(task, prior, CONFIG.retrain, [expected])
    quantized = simplify(task.model, quantize_prior(prior, CONFIG.merge).quantized)[0]
    assert recorder.calls == expected.calls
    assert len(compressed.history) == CONFIG.retrain.epochs + 1
    assert compressed.to_bytes() == dataclasses.replace(compressed, quantized=quantized).to_bytes()


def test_hooks_see_one_history() -> None:
    recorder = Recorder()
    compressed = ss.compress(make_task(), TUNED, [recorder])
    epochs = [*range(4), *range(3, 8)]
    assert [r.epoch for r in compressed.history] == epochs
    assert recorder.epochs() == [str(e) for e in epochs]
    kinds = [call[0] for call in recorder.calls]
    assert (kinds[0], kinds.count("start"), kinds[-1], kinds.count("end")) == ("start", 1, "end", 1)
    assert recorder.calls[0] == ("start", 7, 8)
    steps = [call[1:] for call in recorder.calls if call[0] == "step"]
    assert steps == [(epoch, step) for epoch in range(1, 8) for step in range(1, 9)]
    first, last = compressed.history[4], compressed.history[-1]
    assert first.density == last.density
    assert first.density == {t.name: float((t.indices > 0).double().mean()) for t in compressed.quantized.shared}
    alive = {id(t.codebook): set[int]() for t in compressed.quantized.shared}
    for t in compressed.quantized.shared:
        alive[id(t.codebook)] |= set(t.indices.tolist())
    assert first.components_alive == sum(len(values) for values in alive.values())


def test_the_log_has_a_full_row_for_every_epoch(tmp_path: Path) -> None:
    compressed = ss.compress(make_task(), TUNED, [CsvLog(tmp_path / "history.csv")])
    with (tmp_path / "history.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 1 + len(compressed.history)
    assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("fails_at", [1, 5])
def test_hooks_hear_of_the_end_after_an_error_in_any_phase(fails_at: int) -> None:
    recorder = Recorder(fails_at)
    with pytest.raises(KeyboardInterrupt):
        ss.compress(make_task(), TUNED, [recorder])
    assert [call[0] for call in recorder.calls].count("end") == 1
    assert recorder.calls[-1] == ("end",)


def test_hooks_hear_nothing_of_a_training_that_did_not_begin() -> None:
    recorder = Recorder()
    with (
        pytest.raises(ConfigError, match="capture: the network must be on a CUDA GPU"),
        Phases(make_task(), 1, [recorder]) as phases,
    ):
        phases.run(RetrainConfig(capture=True), prior=ss.MixturePrior(net()))
    assert recorder.calls == []


def test_the_loss_is_that_of_retraining() -> None:
    """Under a teacher too."""
    task = make_task(outputs=lambda model, batch: model(batch[0]))
    one, other = (ss.compress(task, TUNED.override(distill=d, lr_codebook=1e-9)) for d in (0.0, 1.0))
    assert other.history[-1].task_loss != one.history[-1].task_loss
    with torch.no_grad():
        teacher = F.log_softmax(task.model.eval()(points(256)[0]), 1)
        entropy = float(-(teacher.exp() * teacher).sum(1).mean())
    assert other.history[-1].task_loss < entropy  # a divergence, with no labels in it


def test_the_same_seed_gives_the_same_file() -> None:
    first, second = (ss.compress(make_task(), TUNED).to_bytes() for _ in range(2))
    assert first == second != ss.compress(make_task(), CONFIG).to_bytes()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_optimizer_is_adam_whatever_retraining_has(optimizer: str) -> None:
    """Its first step is the learning rate, whatever the gradient; nothing is decayed."""
    config = CONFIG.override(optimizer=optimizer, zeroing=0.0, weight_decay=0.1, lr_weights=1e-3, epochs=1)
    config = config.override(codebook_epochs=1, lr_codebook=1e-3, schedule="constant")
    x, y = points(256)
    task = make_task(train=[(x, y)])
    plain, tuned = (ss.compress(task, c) for c in (config.override(codebook_epochs=0), config))
    for name, weight in tuned.quantized.state_dict().items():
        if name.endswith("weight"):
            moved = (weight - plain.quantized.state_dict()[name])[weight != 0].abs()
            torch.testing.assert_close(moved, torch.full_like(moved, 1e-3), rtol=0.05, atol=0)


# On a GPU


@needs_gpu
@pytest.mark.parametrize("mixtures", MIXTURES)
def test_captured_steps_do_the_same(mixtures: str) -> None:
    states = []
    for capture in (False, True, True):
        task = make_task(net().cuda(), "cuda")
        books, _, _ = codebooks(task.model, mixtures)
        retrain_(task, None, RetrainConfig(epochs=4, lr_weights=1e-3, capture=capture), (), books)
        states.append(books.quantize(WeightView.of(task.model)).state_dict())
    plain, captured, again = states
    assert all(torch.equal(captured[name], again[name]) for name in captured)
    for name in plain:
        torch.testing.assert_close(captured[name], plain[name], rtol=1e-3, atol=1e-4)


@needs_gpu
def test_the_whole_route_with_captured_steps() -> None:
    task = make_task(net().cuda(), "cuda")
    tuned = ss.compress(task, TUNED.override(capture=True))
    assert tuned.history[-1].task_loss < tuned.history[CONFIG.retrain.epochs + 2].task_loss
