from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.codec import decode
from softshare.compressed import Compressed
from softshare.config import EncodeConfig, RetrainConfig, Rule
from softshare.config.fields import help_of
from softshare.config.settings import Codec
from softshare.errors import ConfigError, ModelError
from softshare.network.weights import WeightView
from softshare.paper.baselines import (
    DeepCompressionConfig,
    DnsConfig,
    LayerValue,
    PruneConfig,
    ShareConfig,
    SurgeryConfig,
    deep_compression,
    dns,
    kmeans_linear,
    nonzero_ratio,
    published_bytes,
    published_ratio,
)
from softshare.paper.baselines.dns import Spliced
from softshare.paper.baselines.layers import layers_of
from softshare.paper.baselines.pruning_masks import Masked
from softshare.paper.baselines.rival_config import TrainConfig
from softshare.paper.baselines.sharing import kmeans_codebooks
from softshare.paper.baselines.tasks import with_l2
from softshare.task import Task
from softshare.train.captured import CapturedStep
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.retrain import retrain_
from softshare.train.step import Step

Batch = tuple[Tensor, Tensor]
TRAIN = TrainConfig(lr_weights=5e-3)
DEEP = DeepCompressionConfig(
    train=TRAIN,
    prune=PruneConfig(quality=1.0, rounds=2, round_epochs=4),
    share=ShareConfig(fc_bits=3, conv_bits=4, share_epochs=3, lr_centroids=1e-3),
)
DNS = DnsConfig(
    train=TRAIN,
    surgery=SurgeryConfig(c_rate=0.5, decay=1e-2, surgery_epochs=8, settle_epochs=2),
    share=DEEP.share,
)
METHODS: dict[str, Callable[[Task], Compressed]] = {
    "deep-compression": lambda task: deep_compression(task, DEEP),
    "dns": lambda task: dns(task, DNS),
}


def points(n: int, seed: int) -> Batch:
    """Is the sum of the first two of eight numbers positive? The others are noise that can be pruned."""
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] + x[:, 1] > 0).long()


def mlp(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)
        return nn.Sequential(*layers).to(dtype)


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def error_percent(model: nn.Module) -> float:
    x, y = (t.to(next(model.parameters()).device) for t in points(1000, 1))
    return float((model(x).argmax(1) != y).double().mean() * 100)


def make_task(model: nn.Module | None = None, device: str = "cpu", **changes: Any) -> Task:
    x, y = (t.to(device) for t in points(512, 0))
    train = list(zip(x.split(64), y.split(64), strict=True))
    task = Task(mlp() if model is None else model, train, cross_entropy, error_percent, 512, name="toy")
    return dataclasses.replace(task, **changes)


@pytest.fixture(scope="module")
def trained() -> Task:
    task = make_task()
    retrain_(task, None, RetrainConfig(epochs=10, lr_weights=1e-2))
    return task


@pytest.fixture(scope="module")
def compressed(trained: Task) -> dict[str, Compressed]:
    return {name: method(trained) for name, method in METHODS.items()}


def linear(model: nn.Module, i: int) -> nn.Linear:
    """A linear layer, or a batch-norm, which has the same two parameters."""
    assert isinstance(model, nn.Sequential)
    return cast(nn.Linear, model[i])


def shared(model: nn.Module, *rules: Rule) -> WeightView:
    return WeightView.of(model, rules)


# k-means


def lloyd_by_hand(values: list[float], k: int) -> tuple[list[float], list[int]]:
    """The textbook, in plain Python."""
    low, high = min(values), max(values)
    centroids = [low + (high - low) * i / (k - 1) for i in range(k)] if k > 1 else [low]
    assigned: list[int] = []
    while True:
        nearest = [min(range(k), key=lambda j: abs(v - centroids[j])) for v in values]
        if nearest == assigned:
            used = sorted(set(nearest))
            return [centroids[j] for j in used], [used.index(j) for j in nearest]
        assigned = nearest
        for j in set(nearest):
            own = [v for v, a in zip(values, nearest, strict=True) if a == j]
            centroids[j] = sum(own) / len(own)


def quadratic_error(values: Tensor, centroids: Tensor, index: Tensor) -> float:
    return float(((values - centroids[index]) ** 2).sum())


def test_kmeans_is_lloyds_algorithm_by_hand() -> None:
    for k in (1, 2, 5, 12):
        generator = torch.Generator().manual_seed(k)
        values = torch.randn(60, generator=generator, dtype=torch.float64) ** 3  # long tails: empty centroids at first
        centroids, index = kmeans_linear(values, k)
        expected, nearest = lloyd_by_hand(values.tolist(), k)
        torch.testing.assert_close(centroids, torch.tensor(expected, dtype=torch.float64))
        assert index.tolist() == nearest


def test_kmeans_finds_the_best_partition_of_separate_groups() -> None:
    """On a line the best groups are runs of the ordered values, so all partitions can be tried."""
    for k in (1, 2, 3):
        generator = torch.Generator().manual_seed(k)
        centres = torch.arange(k, dtype=torch.float64).repeat_interleave(4)
        values = (centres + 0.1 * torch.randn(4 * k, generator=generator, dtype=torch.float64)).sort().values
        centroids, index = kmeans_linear(values, k)
        best = min(
            sum(float(((part - part.mean()) ** 2).sum()) for part in values.tensor_split(cuts))
            for cuts in itertools.combinations(range(1, len(values)), k - 1)
        )
        assert quadratic_error(values, centroids, index) == pytest.approx(best)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30), st.integers(1, 8))
def test_kmeans_gives_each_value_its_nearest_centroid(numbers: list[float], k: int) -> None:
    values = torch.tensor(numbers, dtype=torch.float32)
    centroids, index = kmeans_linear(values, k)
    assert 1 <= len(centroids) <= k
    assert centroids.dtype == torch.float32
    assert bool((centroids.diff() > 0).all())
    distances = (values[:, None].double() - centroids.double()).abs()
    assert torch.equal(distances.gather(1, index[:, None])[:, 0], distances.min(1).values)


def test_kmeans_with_values_to_spare_and_none() -> None:
    centroids, index = kmeans_linear(torch.tensor([3.0, -1.0, 3.0]), 32)
    assert centroids.tolist() == [-1, 3]
    assert index.tolist() == [1, 0, 1]
    assert kmeans_linear(torch.zeros(0), 4)[0].shape == (0,)
    with pytest.raises(ConfigError, match="at least 1 centroid"):
        kmeans_linear(torch.ones(2), 0)


# Latent parameters


def test_a_centroid_has_the_sum_of_its_weights_gradients_by_finite_differences() -> None:
    model = mlp(torch.float64).eval()
    model[2] = nn.Tanh()  # finite differences could cross the kink of a ReLU
    x, y = points(64, 0)
    task, batch = make_task(model), (x.double(), y)
    with torch.no_grad():
        linear(model, 0).weight.mul_(linear(model, 0).weight.abs() > 0.1)
    latent = kmeans_codebooks(layers_of(shared(model)), ShareConfig(fc_bits=2))
    latent.push_()
    before = [book.values.detach().clone() for book in latent.books]
    assert [len(b) for b in before] == [4, 4]
    task.loss(model, batch).backward()
    latent.pull_()
    gradients = [book.values.grad for book in latent.books]
    for book, start, gradient in zip(latent.books, before, gradients, strict=True):
        assert gradient is not None
        for j in range(len(start)):
            losses = []
            for sign in (1, -1):
                book.values.data[j] = start[j] + sign * 1e-6
                latent.push_()
                losses.append(float(task.loss(model, batch).detach()))
            book.values.data[j] = start[j]
            latent.push_()
            assert gradient[j].item() == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-5, abs=1e-8)


def test_training_centroids_changes_neither_pruned_weights_nor_the_assignment() -> None:
    task = make_task()
    weight = linear(task.model, 0).weight
    with torch.no_grad():
        weight.mul_(weight.abs() > 0.1)
    zero = weight == 0
    latent = kmeans_codebooks(layers_of(shared(task.model)), ShareConfig(fc_bits=2))
    index = [book.index.clone() for book in latent.books]
    norm = linear(task.model, 1).weight.detach().clone()
    retrain_(task, None, RetrainConfig(epochs=2, lr_weights=1e-2), (), latent)
    assert torch.equal(weight == 0, zero)
    assert len(weight[~zero].unique()) <= 4
    assert all(torch.equal(book.index, i) for book, i in zip(latent.books, index, strict=True))
    assert not torch.equal(linear(task.model, 1).weight, norm)  # what is not shared is trained


class PrunedWatch(Hook):
    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.zero, self.steps = tensor, tensor == 0, 0

    def on_step(self, epoch: int, step: int) -> None:
        assert torch.equal(self.tensor == 0, self.zero)
        self.steps += 1


def test_pruned_weights_stay_zero_at_every_step_and_the_others_train() -> None:
    task = make_task()
    weight = linear(task.model, 0).weight
    with torch.no_grad():
        weight.mul_(weight.abs() > 0.2)
    start, watch = weight.detach().clone(), PrunedWatch(weight)
    retrain_(task, None, RetrainConfig(epochs=2), [watch], Masked(layers_of(shared(task.model))))
    assert watch.steps == 16
    assert 0 < int(watch.zero.sum()) < weight.numel()
    assert bool((weight != start)[~watch.zero].all())


def surgery(model: nn.Module, **options: Any) -> Spliced:
    return Spliced(layers_of(shared(model)), SurgeryConfig(**options))


def test_thresholds_are_the_papers() -> None:
    model = mlp()
    latent = surgery(model, c_rate=0.7, c_rates=(LayerValue("3", -9.0),))
    first = torch.cat([linear(model, 0).weight.detach().flatten(), linear(model, 0).bias.detach()]).abs().double()
    threshold = float(first.mean() + 0.7 * first.std(correction=0))
    assert latent.layers[0].prune_below == pytest.approx(0.9 * threshold)
    assert latent.layers[0].splice_from == pytest.approx(1.1 * threshold)
    assert latent.layers[1].prune_below == latent.layers[1].splice_from == 0
    latent.push_()
    assert bool(latent.layers[1].masks[0].all())


def test_masks_have_hysteresis() -> None:
    """A weight goes down and up again: it is pruned below a, and comes back only from b on."""
    latent = surgery(mlp(), decay=0.0)
    first = latent.layers[0]
    w, mask, network = first.latent[0].data, first.masks[0], first.tensors[0]
    a, b = first.prune_below, first.splice_from
    assert 0 < a < b
    between = (a + b) / 2
    for value, alive in [(2 * b, True), (between, True), (-a / 2, False), (-between, False), (b * 1.01, True)]:
        w[0, 0] = value
        latent.push_()
        assert bool(mask[0, 0]) == alive
        assert float(network[0, 0].detach()) == (pytest.approx(value) if alive else 0)


def test_surgery_moves_pruned_weights_by_the_gradient_at_the_masked_network() -> None:
    task = make_task()
    task.model.eval()
    latent = surgery(task.model, c_rate=0.5, decay=0.0)
    latent.push_()
    masked = copy.deepcopy(task.model)
    cross_entropy(masked, next(iter(task.train))).backward()
    first = latent.layers[0]
    start, pruned = first.latent[0].detach().clone(), ~first.masks[0]
    step = Step(task, None, RetrainConfig(lr_weights=1e-2), latent)
    step.set(0.0, 1.0)
    step(next(iter(task.train)))
    gradient = cast(Tensor, linear(masked, 0).weight.grad)
    assert first.latent[0].grad is not None
    torch.testing.assert_close(first.latent[0].grad, gradient)
    moved = first.latent[0].detach() != start
    assert bool(moved[pruned & (gradient != 0)].all())
    assert bool((pruned & moved).any())


def test_a_weight_that_training_makes_grow_is_spliced_back() -> None:
    """The network needs its first input, whose weight begins below the threshold."""
    model = nn.Sequential(nn.Linear(8, 2, bias=False))
    with torch.no_grad():
        linear(model, 0).weight.copy_(torch.linspace(-0.5, 0.5, 16).reshape(2, 8))
        linear(model, 0).weight[:, 0] = torch.tensor([-0.01, 0.01])
    latent = surgery(model, c_rate=0.0, decay=0.0)
    latent.push_()
    assert linear(model, 0).weight[:, 0].tolist() == [0, 0]
    retrain_(make_task(model), None, RetrainConfig(epochs=5, lr_weights=2e-2), (), latent)
    assert bool(linear(model, 0).weight[:, 0].all())
    assert bool(latent.layers[0].masks[0][:, 0].all())


def test_surgery_becomes_rare() -> None:
    """(1 + gamma * i)^-power: with gamma 1 and power 1, iteration i changes masks with probability 1 / (1 + i)."""
    torch.manual_seed(0)
    model = mlp()
    latent = surgery(model, decay=1.0, power=1.0)
    w, mask = latent.layers[0].latent[0].data, latent.layers[0].masks[0]
    changes = []
    for i in range(400):
        w.fill_(0.0 if i % 2 == 0 else 9.0)
        before = mask.clone()
        latent.push_()
        changes.append(not torch.equal(mask, before))
    assert changes[0]
    expected = sum(1 / (1 + i) for i in range(400)) / 2  # every second update would not change the mask
    assert abs(sum(changes) - expected) < 4
    assert sum(changes[200:]) < 4


# Both methods


@pytest.mark.parametrize("name", METHODS)
def test_a_task_gives_a_result(name: str, trained: Task, tmp_path: Path) -> None:
    before = copy.deepcopy(trained.model.state_dict())
    out = METHODS[name](trained)
    assert all(torch.equal(v, before[k]) for k, v in trained.model.state_dict().items())
    config: Any = DEEP if name == "deep-compression" else DNS
    result = ss.measure(trained, out, config, method=name)
    assert result.method == name
    assert result.complexity_bytes is None
    assert result.error_before < 3
    assert result.error_after <= result.error_before + 1
    assert result.seconds > 0
    assert type(config).from_dict(result.config) == config
    result.save(tmp_path / "result.json")
    assert ss.Result.load(tmp_path / "result.json") == result

    codecs: tuple[Codec, ...] = ("han", "adaptive")
    for codec in codecs:
        coded = dataclasses.replace(out, config=EncodeConfig(codec=codec, codebook_dtype="float32"))
        coded.save(tmp_path / "model.sws")
        fresh = mlp(seed=9).eval()
        ss.load_into_(fresh, tmp_path / "model.sws")
        exact = out.quantized.state_dict()
        assert all(torch.equal(v, exact[k]) for k, v in fresh.state_dict().items())
        assert (
            error_percent(fresh) == out.history[-1].validation_error
        )  # the last network that was evaluated, to the bit


@pytest.mark.parametrize("name", METHODS)
def test_weights_are_pruned_and_share_few_values(name: str, compressed: dict[str, Compressed]) -> None:
    out = compressed[name]
    state, pruned = out.quantized.state_dict(), out.retrained
    for key in ("0.weight", "3.weight"):
        assert torch.equal(state[key] == 0, pruned[key] == 0)  # sharing prunes nothing and revives nothing
        assert len(pruned[key].unique()) > 9
        assert len(state[key].unique()) <= 9
    assert 0.05 < float((state["0.weight"] != 0).double().mean()) < 0.5
    biases = {t.name for t in out.quantized.shared if t.name.endswith("bias")}
    assert biases == ({"0.bias", "3.bias"} if name == "dns" else set())


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_result(name: str, trained: Task) -> None:
    torch.manual_seed(1)
    first = METHODS[name](trained).to_bytes()
    torch.manual_seed(2)
    assert METHODS[name](trained).to_bytes() == first


def test_pruning_reaches_its_threshold_and_qualities_are_per_layer(trained: Task) -> None:
    """After one round, the weights that were above quality * std are left."""
    prune = PruneConfig(quality=1.0, qualities=(LayerValue("3", 0.0),), rounds=1, round_epochs=1)
    out = deep_compression(trained, dataclasses.replace(DEEP, prune=prune))
    weight = linear(trained.model, 0).weight.detach()
    assert torch.equal(out.retrained["0.weight"] != 0, weight.abs() >= weight.std(correction=0))
    assert bool(out.retrained["3.weight"].all())


def test_each_round_prunes_more(trained: Task) -> None:
    seen: list[int] = []

    class Watch(Hook):
        def on_epoch(self, record: EpochRecord) -> None:
            seen.append(int(sum(int(p.count_nonzero()) for p in watched.parameters())))

    task = dataclasses.replace(trained, model=copy.deepcopy(trained.model))
    watched: nn.Module = task.model

    def evaluate(model: nn.Module) -> float:
        nonlocal watched
        watched = model
        return 0.0

    prune = PruneConfig(quality=1.5, rounds=3, round_epochs=1)
    deep_compression(dataclasses.replace(task, evaluate=evaluate), dataclasses.replace(DEEP, prune=prune), [Watch()])
    rounds = seen[0:6:2]
    assert seen[1:6:2] == rounds
    assert rounds[0] > rounds[1] > rounds[2]


def test_history_and_hooks_run_through_all_phases(trained: Task) -> None:
    calls: list[tuple[Any, ...]] = []

    class Recorder(Hook):
        def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
            calls.append(("start", epochs, steps_per_epoch))

        def on_epoch(self, record: EpochRecord) -> None:
            calls.append(("epoch", record.epoch))

        def on_end(self) -> None:
            calls.append(("end",))

    out = dns(trained, DNS, [Recorder()])
    epochs = [*range(9), *range(8, 11), *range(10, 14)]
    assert calls == [("start", 13, 8), *(("epoch", e) for e in epochs), ("end",)]
    assert [r.epoch for r in out.history] == epochs


def test_the_papers_accountings(compressed: dict[str, Compressed]) -> None:
    out = compressed["deep-compression"]
    info = {
        t.name: t.n_bytes
        for t in ss.inspect(dataclasses.replace(out, config=EncodeConfig(codec="han")).to_bytes()).tensors
    }
    codebooks = sum(4 * (len(t.codebook) - 1) for t in out.quantized.shared)
    assert published_bytes(out.quantized) == info["0.weight"] + info["3.weight"] + codebooks
    out = compressed["dns"]
    left = sum(int((out.retrained[k] != 0).sum()) for k in ("0.weight", "0.bias", "3.weight", "3.bias"))
    assert nonzero_ratio(out.quantized) == (8 * 16 + 16 + 16 * 2 + 2) / left


def test_the_papers_ratios_are_those_of_the_decoded_file(compressed: dict[str, Compressed]) -> None:
    for name, out in compressed.items():
        decoded = decode(out.to_bytes())
        n, n_nonzero = decoded.n_shared, sum(int(t.dense().count_nonzero()) for t in decoded.shared)
        expected = {"deep-compression": 4 * n / published_bytes(out.quantized), "dns": n / n_nonzero}
        assert published_ratio(name, decoded) == expected[name]
    assert published_ratio("softshare", decoded) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_l2_shrinks_the_weights(name: str, trained: Task) -> None:
    def square(l2: float) -> float:
        train = dataclasses.replace(TRAIN, l2=l2)
        if name == "dns":
            out = dns(trained, dataclasses.replace(DNS, train=train))
        else:
            out = deep_compression(trained, dataclasses.replace(DEEP, train=train))
        return float(out.retrained["0.weight"].square().sum())

    assert square(3e-2) < 0.8 * square(0.0)


def test_l2_is_half_the_sum_of_squares() -> None:
    task = make_task()
    batch = next(iter(task.train))
    first = layers_of(shared(task.model))[:1]
    squares = sum(float(t.detach().square().sum()) for t in first[0].tensors)
    added = (with_l2(task, first, 0.1).loss(task.model, batch) - task.loss(task.model, batch)).item()
    assert added == pytest.approx(0.05 * squares, rel=1e-4)
    assert with_l2(task, first, 0.0) is task


def test_biases_can_be_compressed_too_and_rules_decide_first(trained: Task) -> None:
    out = deep_compression(trained, dataclasses.replace(DEEP, compress_biases=True))
    assert {t.name for t in out.quantized.shared} == {"0.weight", "0.bias", "3.weight", "3.bias"}
    out = deep_compression(trained, dataclasses.replace(DEEP, rules=(Rule("0.*", True), Rule("3.*", False))))
    assert {t.name for t in out.quantized.shared} == {"0.weight", "0.bias"}


def test_convolutions_and_tied_tensors() -> None:
    """The kind of a layer decides its bits, and a tied tensor counts once."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 6, 3, padding=1, bias=False)
            self.a = nn.Linear(12, 12)
            self.b = nn.Linear(12, 12)
            self.b.weight = self.a.weight
            self.out = nn.Linear(12, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x.reshape(-1, 1, 2, 4)).reshape(-1, 6, 2, 4).mean(3).flatten(1)
            out: Tensor = self.out(torch.relu(self.b(torch.relu(self.a(x)))))
            return out

    torch.manual_seed(0)
    task = make_task(Net())
    share = ShareConfig(conv_bits=4, fc_bits=2, share_epochs=1)
    prune = PruneConfig(quality=0.5, rounds=1, round_epochs=1)
    out = deep_compression(task, DeepCompressionConfig(prune=prune, share=share))
    values = {t.name: len(t.codebook) - 1 for t in out.quantized.shared}
    assert values["conv.weight"] > 8
    assert {name: n for name, n in values.items() if name != "conv.weight"} == {"a.weight": 4, "out.weight": 4}
    assert out.quantized.tied == {"b.weight": "a.weight"}
    assert ss.measure(task, out, DeepCompressionConfig(prune=prune, share=share)).n_weights == 54 + 144 + 24 + 26


def test_a_layer_but_not_the_network_may_lose_all_weights(trained: Task) -> None:
    prune = PruneConfig(qualities=(LayerValue("0", 99.0),), quality=0.5, rounds=1, round_epochs=1)
    out = deep_compression(trained, dataclasses.replace(DEEP, prune=prune))
    assert not out.quantized.state_dict()["0.weight"].any()
    assert out.state_dict()["3.weight"].any()
    with pytest.raises(ModelError, match="every weight has been pruned"):
        deep_compression(trained, dataclasses.replace(DEEP, prune=PruneConfig(quality=99.0)))
    with pytest.raises(ModelError, match="lower the c_rate"):
        dns(trained, dataclasses.replace(DNS, surgery=SurgeryConfig(c_rate=99.0, surgery_epochs=1)))


def test_values_of_a_network_become_codebooks_by_layer() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with torch.no_grad():
        linear(model, 0).weight.copy_(torch.tensor([[0.0, -2.0], [0.5, -0.0]]))
        linear(model, 0).bias.copy_(torch.tensor([2.0, 0.5]))
        linear(model, 1).weight.zero_()
        linear(model, 1).bias.zero_()
    quantized = kmeans_codebooks(layers_of(shared(model)), ShareConfig()).quantize(shared(model))
    first, bias, second, _ = quantized.shared
    assert first.codebook.tolist() == bias.codebook.tolist() == [0, 0.5, -2, 2]
    assert first.indices.tolist() == [0, 2, 1, 0]
    assert bias.indices.tolist() == [3, 1]
    assert second.codebook.tolist() == [0]


# Configs


def test_unusable_settings_are_refused() -> None:
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: PruneConfig(quality=-1.0), "quality: expected a number of at least 0"),
        (lambda: PruneConfig(qualities=(LayerValue("fc", -1.0),)), "quality: expected"),
        (lambda: PruneConfig(rounds=0), "rounds: expected at least 1"),
        (lambda: LayerValue("fc", float("nan")), "value of 'fc': expected a finite number"),
        (lambda: SurgeryConfig(margin=1.0), "margin: expected a share"),
        (lambda: SurgeryConfig(decay=-1.0), "decay: expected"),
        (lambda: SurgeryConfig(settle_epochs=-1), "settle_epochs: expected at least 0"),
        (lambda: ShareConfig(fc_bits=0), "fc_bits: expected 1 to 12 bits"),
        (lambda: ShareConfig(lr_centroids=0.0), "lr_centroids: expected"),
        (lambda: TrainConfig(l2=-1.0), "l2: expected"),
        (lambda: TrainConfig(lr_weights=0.0), "lr_weights: expected"),
        (lambda: TrainConfig(schedule="linear"), "schedule: expected one of constant, cosine"),  # type: ignore[arg-type]
        (lambda: DnsConfig(rules=("fc",)), "rules: expected a tuple"),  # type: ignore[arg-type]
        (lambda: DnsConfig.from_dict({"version": 9}), "config version: expected 1"),
        (lambda: deep_compression(mlp()), "expected a softshare.Task"),  # type: ignore[arg-type]
    ]
    for make, problem in refused:
        with pytest.raises(ConfigError, match=problem):
            make()


def test_every_option_has_a_help() -> None:
    kinds: tuple[Any, ...] = (PruneConfig, SurgeryConfig, ShareConfig, TrainConfig)
    assert all(help_of(kind)[f.name].endswith(".") for kind in kinds for f in dataclasses.fields(kind))


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", METHODS)
def test_captured_steps_do_the_same(name: str, trained: Task) -> None:
    """Surgery has probability 1, so no draw matters. The captured Adam rounds differently; pruning amplifies it."""
    task = make_task(copy.deepcopy(trained.model).cuda(), "cuda")
    states = []
    for capture in (False, True, True):
        train = dataclasses.replace(TRAIN, capture=capture)
        if name == "dns":
            config = dataclasses.replace(DNS, train=train, surgery=dataclasses.replace(DNS.surgery, decay=0.0))
            states.append(dns(task, config).retrained)
        else:
            states.append(deep_compression(task, dataclasses.replace(DEEP, train=train)).retrained)
    plain, captured, again = states
    assert all(torch.equal(captured[k], again[k]) for k in captured)
    for key in plain:
        torch.testing.assert_close(captured[key], plain[key], rtol=5e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_each_replay_of_a_captured_step_draws() -> None:
    task = make_task(mlp().cuda(), "cuda")
    latent = surgery(task.model, decay=1.0)
    latent.push_()
    step = CapturedStep(task, None, RetrainConfig(lr_weights=1e-3), latent)
    step.set(0.0, 1.0)
    batch = next(iter(task.train))
    for _ in range(20):
        step(batch)
    assert float(latent.iteration) == 21
