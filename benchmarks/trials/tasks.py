"""Hand-made tasks on networks for which the defaults were not tuned: `TASKS[name](seed)` is a trained task.

The seed decides the first weights, the order of the batches, the made-up data, and which images of MNIST are used. The
trained weights are kept as safetensors in the folder SOFTSHARE_TRIALS (default: build/trials), by name and seed. Delete
the files of a task after changing it.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare import Metric, Task
from softshare.network.checkpoint import load_checkpoint, save_checkpoint
from softshare.zoo.datasets import Split, load_mnist

Batch = tuple[Tensor, Tensor]  # inputs and what they should give
Splits = tuple[Batch, Batch, Batch]  # training, validation, test
Measure = Callable[[nn.Module, Batch], float]
ACCURACY, MSE, PERPLEXITY = Metric("accuracy", "%", True), Metric("mse", "", False), Metric("perplexity", "", False)


class Batches:
    """Batches of examples in a new order in each pass, drawn from torch's global random state."""

    def __init__(self, data: Batch, size: int) -> None:
        self.data, self.size = data, size

    def __len__(self) -> int:
        return -(-len(self.data[0]) // self.size)

    def __iter__(self) -> Iterator[Batch]:
        for part in torch.randperm(len(self.data[0])).split(self.size):
            yield self.data[0][part], self.data[1][part]


@dataclass(frozen=True)
class Recipe:
    """The batches, the pre-training and the measure of a task."""

    batch: int = 64
    epochs: int = 15  # of the pre-training, with Adam and a rate that falls to 0 along a cosine
    lr: float = 2e-3
    weight_decay: float = 0.0
    loss: Callable[[nn.Module, Batch], Tensor] | None = None  # default: cross-entropy
    measure: Measure | None = None  # default: error in percent
    metric: Metric = Metric()
    values_per_example: int = 1  # over which the loss is a mean: pixels, characters
    noise: Measure | None = None  # standard error of the measure; default: softshare's estimate


# Losses and measures


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Mean over all labels. The network gives classes in the last dimension."""
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def right(model: nn.Module, data: Batch) -> Tensor:
    """Whether each label is found."""
    return torch.cat([model(x).argmax(-1) == y for x, y in zip(*(t.split(1000) for t in data), strict=True)])


def error(model: nn.Module, data: Batch) -> float:
    return 100 * (1 - float(right(model, data).double().mean()))


def accuracy(model: nn.Module, data: Batch) -> float:
    return 100 * float(right(model, data).double().mean())


def balanced_error(model: nn.Module, data: Batch) -> float:
    found = right(model, data).double()
    return 100 * (1 - sum(float(found[data[1] == c].mean()) for c in data[1].unique()) / len(data[1].unique()))


def mse(model: nn.Module, data: Batch) -> float:
    return float(squared_error(model, data))


def perplexity(model: nn.Module, data: Batch) -> float:
    return math.exp(float(cross_entropy(model, data)))


def noise_of_perplexity(model: nn.Module, data: Batch) -> float:
    """By the spread of the mean loss over sequences: the letters of one are not independent."""
    losses = torch.stack([cross_entropy(model, (x[None], y[None])) for x, y in zip(*data, strict=True)]).double()
    return float(losses.mean().exp() * losses.std() / math.sqrt(len(losses)))


# Pre-training


def folder() -> Path:
    return Path(os.environ.get("SOFTSHARE_TRIALS", "build/trials"))


def trained(name: str, seed: int, make: Callable[[], nn.Module], data: Splits, how: Recipe) -> Task:
    """The task on these data, with a network that is trained or read from the folder."""
    train, validation, test = data
    measure, noise, batches = how.measure or error, how.noise, Batches(train, how.batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        task = Task(
            model=make(),
            train=batches,
            loss=how.loss or cross_entropy,
            evaluate=lambda model: measure(model, validation),
            n_examples=len(train[0]) * how.values_per_example,
            test=lambda model: measure(model, test),
            name=name,
            dataset="trial",
            metric=how.metric,
            noise=(lambda model: noise(model, validation)) if noise else None,
        )
        kept = folder() / f"{name}-{seed}.safetensors"
        if kept.exists():
            task.model.load_state_dict(load_checkpoint(kept))
        else:
            pretrain_(task, batches, how)
            kept.parent.mkdir(parents=True, exist_ok=True)
            save_checkpoint(kept, task.model.state_dict())
    task.model.eval()
    return task


def pretrain_(task: Task, batches: Batches, how: Recipe) -> None:
    task.model.train()
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=how.lr, weight_decay=how.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, how.epochs * len(batches))
    for _ in range(how.epochs):
        for batch in batches:
            optimizer.zero_grad()
            task.loss(task.model, batch).backward()
            optimizer.step()
            schedule.step()


# Data


@functools.cache
def mnist(side: int) -> tuple[Batch, Batch]:
    """60,000 images for training and validation and 10,000 for the test, pooled to this side."""
    train, validation, test = load_mnist()
    full = Split(torch.cat([train.images, validation.images]), torch.cat([train.labels, validation.labels]))
    images = [F.adaptive_avg_pool2d(s.images, side) if side < 28 else s.images for s in (full, test)]
    return (images[0], full.labels), (images[1], test.labels)


def drawn(seed: int, n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def take(data: Batch, index: Tensor) -> Batch:
    return data[0][index], data[1][index]


def digits(seed: int, n_train: int, n_validation: int, side: int = 14, n_test: int = 10_000) -> Splits:
    """Splits of MNIST. The seed decides which images are in them."""
    full, test = mnist(side)
    order = drawn(seed, len(full[0]))
    held_out = order[n_train : n_train + n_validation]
    return take(full, order[:n_train]), take(full, held_out), take(test, drawn(seed, len(test[0]))[:n_test])


def in_parts(x: Tensor, y: Tensor, n_train: int, n_validation: int) -> Splits:
    first, last = slice(n_train), slice(n_train + n_validation, None)
    middle = slice(n_train, n_train + n_validation)
    return (x[first], y[first]), (x[middle], y[middle]), (x[last], y[last])


# Networks


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def normed(n_in: int, n_out: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(n_in, n_out, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(n_out), nn.ReLU())


def pooled(n: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, 10))


class Residual(nn.Module):
    """Two convolutions beside a shortcut, which is a convolution of size 1 if the shape changes."""

    def __init__(self, n_in: int, n_out: int, stride: int = 1) -> None:
        super().__init__()
        self.first = normed(n_in, n_out, stride=stride)
        self.second = normed(n_out, n_out)[:2]
        same = n_in == n_out and stride == 1
        self.shortcut = nn.Identity() if same else normed(n_in, n_out, 1, stride)[:2]

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


class Characters(nn.Module):
    """Predicts the next character at each place."""

    def __init__(self, n_letters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_letters, 16)
        self.lstm = nn.LSTM(16, 64, batch_first=True)
        self.head = nn.Linear(64, n_letters)

    def forward(self, text: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.embedding(text))[0])
        return out


class Sorter(nn.Module):
    """Gives the sorted sequence, a token for each place."""

    def __init__(self, n_tokens: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, 64)
        self.position = nn.Parameter(0.1 * torch.randn(length, 64))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, n_tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.position
        for block in self.blocks:
            hidden = block(hidden)
        out: Tensor = self.head(self.norm(hidden))
        return out


class TwoHeads(nn.Module):
    """`forward` tells the digit. `size` tells from the same first layer whether it is above 4."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.middle = nn.Linear(196, 96), nn.Linear(96, 48)
        self.digit, self.above = nn.Linear(48, 10), nn.Linear(96, 2)

    def hidden(self, x: Tensor) -> Tensor:
        return F.relu(self.trunk(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.digit(F.relu(self.middle(self.hidden(x))))
        return out

    def size(self, x: Tensor) -> Tensor:
        out: Tensor = self.above(self.hidden(x))
        return out


# Tasks


def mlp_mnist(n_train: int, n_validation: int, batch: int, epochs: int) -> Callable[[int], Task]:
    def make(seed: int) -> Task:
        data = digits(seed, n_train, n_validation, side=28)
        return trained(f"mlp-mnist-{n_train}", seed, lambda: mlp(784, 100, 10), data, Recipe(batch, epochs, 1e-3))

    return make


def cnn_bn_digits(seed: int) -> Task:
    def make() -> nn.Module:
        convolutions = normed(1, 16), normed(16, 32), nn.MaxPool2d(2), normed(32, 32), nn.MaxPool2d(2)
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(128, 10))

    return trained("cnn-bn-digits", seed, make, digits(seed, 1200, 300, side=8, n_test=300), Recipe(32, 30))


def depthwise(seed: int) -> Task:
    def make() -> nn.Module:
        layers = [normed(1, 16, stride=2)]
        for n_in, n_out, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1)):
            layers += [normed(n_in, n_in, stride=stride, groups=n_in), normed(n_in, n_out, 1)]
        return nn.Sequential(*layers, pooled(64))

    return trained("depthwise", seed, make, digits(seed, 10_000, 2000), Recipe())


def resnet_small(seed: int) -> Task:
    def make() -> nn.Module:
        blocks = Residual(8, 8), Residual(8, 16, stride=2), Residual(16, 32, stride=2)
        return nn.Sequential(normed(1, 8, stride=2), *blocks, pooled(32))

    return trained("resnet-small", seed, make, digits(seed, 10_000, 2000), Recipe())


def lstm(seed: int, length: int = 32, n_train: int = 2000) -> Task:
    """The text is a chain of made-up words: each may be followed by only a few others."""
    g = torch.Generator().manual_seed(seed)
    syllables = [c + v for c in "bdfklmnprstvz" for v in "aeiou"]
    picks = torch.randint(len(syllables), (80, 3), generator=g).tolist()
    words = ["".join(syllables[i] for i in pick[: 1 + n % 3]) + " " for n, pick in enumerate(picks)]
    follow = torch.randint(80, (80, 6), generator=g).tolist()
    ranks = torch.multinomial(torch.tensor([0.4, 0.25, 0.15, 0.1, 0.05, 0.05]), 60_000, True, generator=g).tolist()
    text, word = "", 0
    for rank in ranks:
        word = follow[word][rank]
        text += words[word]
    letters = {letter: i for i, letter in enumerate(sorted(set("".join(words))))}
    codes = torch.tensor([letters[c] for c in text[: (n_train + 1000) * length + 1]])
    x, y = codes[:-1].view(-1, length), codes[1:].view(-1, length)
    how = Recipe(
        32, 40, 4e-3, measure=perplexity, metric=PERPLEXITY, values_per_example=length, noise=noise_of_perplexity
    )
    return trained("lstm", seed, lambda: Characters(len(letters)), in_parts(x, y, n_train, 400), how)


def transformer(seed: int, length: int = 8, n_tokens: int = 32) -> Task:
    tokens = torch.randint(n_tokens, (5000, length), generator=torch.Generator().manual_seed(seed))
    data = in_parts(tokens, tokens.sort(1).values, 3000, 1000)
    how = Recipe(32, 25, 1e-3, measure=accuracy, metric=ACCURACY, values_per_example=length)
    return trained("transformer", seed, lambda: Sorter(n_tokens, length), data, how)


def autoencoder(seed: int) -> Task:
    train, validation, test = ((x.flatten(1), x.flatten(1)) for x, _ in digits(seed, 10_000, 2000))
    how = Recipe(epochs=50, loss=squared_error, measure=mse, metric=MSE, values_per_example=196)
    return trained(
        "autoencoder", seed, lambda: nn.Sequential(mlp(196, 128, 8), mlp(8, 128, 196)), (train, validation, test), how
    )


def regression_small(seed: int) -> Task:
    x = 2 * torch.rand(5000, 4, generator=torch.Generator().manual_seed(seed)) - 1
    y = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + torch.exp(-2 * (x[:, 3] - x[:, 0]) ** 2)
    y = ((y - y.mean()) / y.std())[:, None]
    how = Recipe(32, 150, 6e-3, loss=squared_error, measure=mse, metric=MSE)
    return trained("regression-small", seed, lambda: mlp(4, 64, 64, 1), in_parts(x, y, 2000, 1000), how)


def regression_noisy(seed: int) -> Task:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(3000, 8, generator=g)  # Friedman's first function; the last three inputs mean nothing
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = (y - y.mean()) / y.std() + 0.4 * torch.randn(3000, generator=g)
    how = Recipe(32, 60, 2e-3, 0.3, loss=squared_error, measure=mse, metric=MSE)
    return trained("regression-noisy", seed, lambda: mlp(8, 48, 24, 1), in_parts(2 * x - 1, y[:, None], 500, 500), how)


def imbalanced(seed: int) -> Task:
    """The share of a class is between 50% and 1%, in training and in validation. The test set has all of MNIST's."""
    full, test = mnist(14)
    order = drawn(seed, len(full[0]))
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for digit, share in zip(drawn(seed, 10), (50, 20, 10, 6, 4, 3, 2.5, 2, 1.5, 1), strict=True):
        own = order[full[1][order] == digit]
        n_train, n_validation = round(40 * share), round(30 * share)
        parts[0].append(own[:n_train])
        parts[1].append(own[n_train : n_train + n_validation])
    train, validation = (take(full, torch.cat(part)) for part in parts)
    how = Recipe(epochs=60, measure=balanced_error, metric=Metric("balanced error"))
    return trained("imbalanced", seed, lambda: mlp(196, 100, 50, 10), (train, validation, test), how)


def batch_16(seed: int) -> Task:
    return trained("batch-16", seed, lambda: mlp(196, 100, 50, 10), digits(seed, 4000, 1000), Recipe(16, 40, 1e-3))


def batch_1024(seed: int) -> Task:
    def make() -> nn.Module:
        first, second = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), mlp(256, 64, 10))

    return trained("batch-1024", seed, make, digits(seed, 20_000, 2000), Recipe(1024, 50, 5e-3))


def spirals(seed: int) -> Splits:
    """Two of one and a half turns."""
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (3000,), generator=g)
    along = torch.rand(3000, generator=g).sqrt()
    angle = 3 * math.pi * along + math.pi * label
    x = torch.stack([along * angle.cos(), along * angle.sin()], 1) + 0.03 * torch.randn(3000, 2, generator=g)
    return in_parts(2 * x, label, 512, 488)


def tiny(seed: int) -> Task:
    how = Recipe(32, 300, 5e-3, measure=lambda *a: accuracy(*a) / 100, metric=Metric("accuracy", "", True))
    return trained("tiny", seed, lambda: mlp(2, 24, 24, 2), spirals(seed), how)


def wide(seed: int) -> Task:
    return trained("wide", seed, lambda: mlp(196, 4096, 10), digits(seed, 4096, 1000), Recipe(32, 8, 1e-3))


def two_heads(seed: int) -> Task:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, TwoHeads)
        return cross_entropy(model, batch) + F.cross_entropy(model.size(batch[0]), (batch[1] > 4).long())

    def both(model: nn.Module, data: Batch) -> float:
        assert isinstance(model, TwoHeads)
        wrong = model.size(data[0]).argmax(1) != (data[1] > 4)
        return (error(model, data) + 100 * float(wrong.double().mean())) / 2

    return trained("two-heads", seed, TwoHeads, digits(seed, 10_000, 2000), Recipe(epochs=40, loss=loss, measure=both))


TASKS: dict[str, Callable[[int], Task]] = {
    "mlp-mnist-100": mlp_mnist(100, 500, 20, 60),
    "mlp-mnist-1000": mlp_mnist(1000, 1000, 64, 120),
    "mlp-mnist-50000": mlp_mnist(50_000, 5000, 128, 20),
    "cnn-bn-digits": cnn_bn_digits,
    "depthwise": depthwise,
    "resnet-small": resnet_small,
    "lstm": lstm,
    "transformer": transformer,
    "autoencoder": autoencoder,
    "regression-small": regression_small,
    "regression-noisy": regression_noisy,
    "imbalanced": imbalanced,
    "batch-16": batch_16,
    "batch-1024": batch_1024,
    "tiny": tiny,
    "wide": wide,
    "two-heads": two_heads,
}
