"""The whole route on a user's networks: one call, a loop of their own, and every kind of layer."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.errors import ConfigError, ModelError

# The network is small and has few images, so the components must tighten within 135 steps.
SOFT = ss.CompressConfig.paper().override(
    epochs=15,
    components=8,
    tau=0.003,
    tau_warmup=0.5,
    zero_mixing=0.5,
    init_std=0.03,
    lr_weights=1e-3,
    lr_means=3e-4,
    lr_log_vars=0.02,
    schedule="cosine",
    zero_precision_prior=ss.Gamma(50, 0.02),
    free_precision_prior=ss.Gamma.from_std(0.03, 1000),
)
HARD = ss.CompressConfig().override(epochs=15, tau=0.003, scaling="paper", zero_mixing=0.9)
CONFIGS = {"soft": SOFT, "hard": HARD}


class ConvNet(nn.Module):
    """A user's network: convolutions with batch-norm, a module inside a module."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8),
        )
        self.head = nn.Linear(8 * 6 * 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(F.relu(self.features(x)).flatten(1))
        return logits


def stripes(n: int = 384) -> tuple[Tensor, Tensor]:
    """Images with a bright row band, column band, or none."""
    g = torch.Generator().manual_seed(0)
    images, labels = 0.5 * torch.randn(n, 1, 8, 8, generator=g), torch.arange(n) % 3
    images[labels == 1, :, 3:5, :] += 1
    images[labels == 2, :, :, 3:5] += 1
    return images, labels


def conv_task() -> ss.Task:
    images, labels = stripes()
    torch.manual_seed(0)
    model = ConvNet()
    batches = list(zip(images[:288].split(32), labels[:288].split(32), strict=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for x, y in batches * 6:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return ss.Task(
        model=model.eval(),
        train=batches,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        evaluate=lambda model: 100 * (model(images[288:]).argmax(1) != labels[288:]).float().mean().item(),
        n_examples=288,
    )


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_users_task(config: ss.CompressConfig, tmp_path: Path) -> None:
    task = conv_task()
    before = {name: t.clone() for name, t in task.model.state_dict().items()}
    compressed = ss.compress(task, config, target=None)
    assert all(torch.equal(t, before[name]) for name, t in task.model.state_dict().items())  # worked on a copy

    size = compressed.save(tmp_path / "model.sws")
    assert size == (tmp_path / "model.sws").stat().st_size
    fresh = ConvNet()
    ss.load_into_(fresh, tmp_path / "model.sws")
    loaded = fresh.state_dict()
    assert all(torch.equal(loaded[name], t) for name, t in compressed.state_dict().items())
    shared = [loaded[t.name].flatten() for t in compressed.quantized.shared]
    if config is SOFT:
        assert len(torch.cat(shared).unique()) <= 9  # of one mixture
    for values in shared:
        assert len(values.unique()) <= (9 if config is SOFT else 5)
    assert 0 < int(torch.cat(shared).count_nonzero()) < len(torch.cat(shared))
    for name in ("features.1.running_mean", "features.4.running_var", "features.1.weight"):
        assert torch.equal(loaded[name], compressed.retrained[name])  # batch-norm is not quantized
    assert int(loaded["features.1.num_batches_tracked"]) == 6 * 9 + 15 * 9

    error = task.judge(fresh)
    assert error <= 5
    result = ss.measure(task, compressed, config)
    assert (result.error_after, result.file_bytes) == (error, size)


@pytest.mark.slow
def test_a_users_own_loop(tmp_path: Path) -> None:
    task = conv_task()
    model = task.model.train()
    prior = ss.MixturePrior(model, SOFT.prior)
    optimizer = torch.optim.Adam([{"params": model.parameters(), "lr": 2e-3}, *prior.param_groups()])
    for epoch in range(15):
        for batch in task.train:
            loss = task.loss(model, batch) + prior.loss(tau=0.003 * epoch / 15, n_examples=task.n_examples)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    prior.quantize().save(tmp_path / "model.sws")
    fresh = ConvNet()
    ss.load_into_(fresh, tmp_path / "model.sws")
    assert task.judge(fresh) <= 5


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_same_seed_same_file(config: ss.CompressConfig) -> None:
    config = config.override(epochs=5)
    first, second = (ss.compress(conv_task(), config, target=None).to_bytes() for _ in range(2))
    assert first == second
    assert ss.compress(conv_task(), config.override(tau=0.03), target=None).to_bytes() != first


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "conv1d": lambda: nn.Conv1d(2, 3, 3),
    "conv3d": lambda: nn.Conv3d(1, 2, 2),
    "transposed": lambda: nn.ConvTranspose2d(2, 3, 3),
    "embedding": lambda: nn.Embedding(10, 4),
    "tied language model": TiedLanguageModel,
    "lstm": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.ModuleList([nn.Linear(4, 2)])
    ),
    "bfloat16": lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4)).to(torch.bfloat16),
    "mixed": lambda: nn.Sequential(nn.Linear(5, 4).to(torch.bfloat16), nn.Linear(4, 3), nn.Linear(3, 2).double()),
}


@pytest.mark.parametrize(
    ("name", "codebook_dtype", "mixtures"),
    [
        ("conv1d", "float32", "layer"),
        ("conv3d", "float16", "global"),
        ("transposed", "float32", "global"),
        ("embedding", "float16", "layer"),
        ("tied language model", "float16", "global"),
        ("lstm", "float32", "layer"),
        ("nested", "float32", "global"),
        ("bfloat16", "float16", "layer"),
        ("mixed", "float32", "global"),
        ("mixed", "float16", "layer"),
    ],
)
def test_every_kind_of_layer_goes_through(name: str, codebook_dtype: Any, mixtures: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, fresh = NETWORKS[name](), NETWORKS[name]()
    prior = ss.MixturePrior(model, ss.PriorConfig(mixtures=mixtures, components=5, zero_mixing=0.5))
    compressed = dataclasses.replace(prior.quantize(), config=ss.EncodeConfig(codebook_dtype=codebook_dtype))
    compressed.save(tmp_path / "model.sws")
    ss.load_into_(fresh, tmp_path / "model.sws")
    kept = {n for n in model.state_dict() if n in prior.current_view().rest}
    for key, tensor in fresh.state_dict().items():
        original = model.state_dict()[key]
        assert tensor.dtype == original.dtype
        if key in kept:
            assert torch.equal(tensor, original)
        else:
            mixture = compressed.mixtures["embed.weight" if key == "out.weight" else key]
            w = original.float().flatten()
            expected = mixture.mean.float()[mixture.responsibilities(w).argmax(0)]
            stored = expected.to(getattr(torch, codebook_dtype)).float()
            assert torch.equal(tensor.flatten(), stored.to(tensor.dtype)), key
    if name == "tied language model":
        assert isinstance(fresh, TiedLanguageModel)
        assert fresh.out.weight is fresh.embed.weight
        assert [s.name for s in prior.view.shared].count("embed.weight") == 1
        assert "out.weight" in ss.load(tmp_path / "model.sws")


def test_rest_dtype_is_what_is_evaluated(tmp_path: Path) -> None:
    compressed = ss.compress(conv_task(), HARD.override(epochs=1, rest_dtype="float16"), target=None)
    compressed.save(tmp_path / "model.sws")
    scale = ss.load(tmp_path / "model.sws")["features.1.weight"]
    assert torch.equal(scale, compressed.retrained["features.1.weight"].half().float())
    assert torch.equal(scale, compressed.state_dict()["features.1.weight"])


def test_a_model_without_weights_is_refused() -> None:
    task = conv_task()
    bad = ss.Task(nn.BatchNorm2d(3), task.train, task.loss, task.evaluate, task.n_examples)
    with pytest.raises(ModelError, match="no parameter to share"):
        ss.compress(bad, HARD)


class MovingAverage(nn.Module):
    """A module that replaces its buffer by a new tensor at each step."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("average", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.average = 0.5 * self.average + 0.5 * x.mean(0)
        logits: Tensor = self.linear(x - self.average)
        return logits


def test_buffers_are_stored_with_their_values_after_training() -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(8, 2) + 3, torch.randint(2, (8,))) for _ in range(4)]
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    task = ss.Task(MovingAverage(), batches, loss, lambda model: 0.0, 32)
    compressed = ss.compress(task, HARD.override(epochs=1), target=None)
    expected = torch.zeros(2)
    for x, _ in batches:
        expected = 0.5 * expected + 0.5 * x.mean(0)
    assert torch.equal(compressed.state_dict()["average"], expected)

    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    prior = ss.MixturePrior(model, HARD.prior)
    model.double()  # replaces buffers
    model(torch.randn(8, 2).double())
    assert torch.equal(prior.quantize().state_dict()["1.running_mean"], model.get_buffer("1.running_mean"))


def test_what_no_file_can_hold_is_refused_before_training() -> None:
    task = conv_task()
    task.model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
    never = ss.Task(task.model, task.train, lambda model, batch: pytest.fail("trained"), task.evaluate, 288)
    with pytest.raises(ModelError, match=r"'phase': cannot store torch\.complex64"):
        ss.compress(never, HARD)


def test_a_compressed_network_prints_short() -> None:
    compressed = ss.MixturePrior(ConvNet(), HARD.prior).quantize()
    assert len(repr(compressed)) < 1000


def test_a_network_is_not_a_task() -> None:
    with pytest.raises(ConfigError, match=r"missing a required argument: 'train_loader'\. Call compress\(task\) or"):
        ss.compress(ConvNet())  # type: ignore[call-overload]


# Symmetries


def chain_task() -> ss.Task:
    """Convolutions and linear layers that feed each other unit by unit, with units to spare."""
    images, labels = stripes()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(54, 40),
        nn.ReLU(),
        nn.Linear(40, 3),
    )
    batches = list(zip(images[:288].split(32), labels[:288].split(32), strict=True))
    return ss.Task(
        model=model,
        train=batches,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        evaluate=lambda model: 100 * (model(images[288:]).argmax(1) != labels[288:]).float().mean().item(),
        n_examples=288,
    )


def loaded(task: ss.Task, compressed: ss.Compressed) -> nn.Module:
    model = copy.deepcopy(task.model).eval()
    model.load_state_dict(compressed.state_dict())
    return model


@pytest.mark.slow
def test_symmetries_keep_the_function_and_shrink_the_file() -> None:
    task = chain_task()
    config = ss.CompressConfig().override(epochs=8, tau=0.01, scaling="paper", zero_mixing=0.9, lr_weights=3e-3)
    plain, simpler = (ss.compress(task, config.override(symmetries=s), target=None) for s in (False, True))
    x = stripes()[0]
    with torch.no_grad():
        torch.testing.assert_close(loaded(task, simpler)(x), loaded(task, plain)(x), rtol=1e-5, atol=1e-5)
    assert len(simpler.to_bytes()) < len(plain.to_bytes())
    assert plain.messages == ()
    (said,) = simpler.messages
    assert said.startswith("between 0 and 4, 4 and 6: ")
    assert said.endswith(f"; this saves {len(plain.to_bytes()) - len(simpler.to_bytes()):,} bytes")
    assert [r.validation_error for r in simpler.history] == [r.validation_error for r in plain.history]
    assert all(torch.equal(t, plain.retrained[name]) for name, t in simpler.retrained.items())
    result = ss.measure(task, simpler, config)
    assert result.error_after == simpler.history[-1].validation_error
    assert result.n_nonzero <= plain.quantized.n_nonzero


@pytest.mark.slow
def test_what_cannot_be_simplified_stays_and_a_message_says_so() -> None:
    task = conv_task()  # the batch norms stand between the convolutions
    plain, same = (ss.compress(task, HARD.override(epochs=1, symmetries=s), target=None) for s in (False, True))
    assert same.to_bytes() == plain.to_bytes()
    assert same.messages
    assert "messages" not in repr(same)
