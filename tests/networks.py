"""Small networks of five kinds, each with a task that it learns in a second."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare import Task

CLASSES, LENGTH, WORDS = 3, 12, 11


class Transformer(nn.Module):
    """Attention, layer norm, and a head tied to the embedding. It tells which word comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.block(self.embedding(words) + self.position)
        out: Tensor = self.head(self.norm(hidden[:, 0]))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )


def chain() -> nn.Module:
    """Layers that feed each other unit by unit, so that simplifying moves units."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 16),
        nn.ReLU(),
        nn.Linear(16, CLASSES),
    )


def conv_net_1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32, CLASSES)
    )


def _words(n: int) -> tuple[Tensor, Tensor]:
    words = torch.randint(WORDS, (n, LENGTH))
    return words, words[:, 0]


def _images(n: int) -> tuple[Tensor, Tensor]:
    labels = torch.randint(CLASSES, (n,))
    images = torch.randn(n, 1, LENGTH, LENGTH)
    images[torch.arange(n), 0, 4 * labels] += 2  # a bright line
    return images, labels


def _series(n: int) -> tuple[Tensor, Tensor]:
    labels = torch.randint(CLASSES, (n,))
    series = torch.randn(n, LENGTH, 2)
    series[:, -4:, 0] += 2.0 * (labels - 1)[:, None]
    return series, labels


def _series_1d(n: int) -> tuple[Tensor, Tensor]:
    series, labels = _series(n)
    return series.mT.contiguous(), labels


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]]]] = {
    "transformer": (Transformer, _words),
    "batch-norm": (conv_net, _images),
    "chain": (chain, _images),
    "lstm": (Recurrent, _series),
    "conv-1d": (conv_net_1d, _series_1d),
}


def make_task(name: str, *, epochs: int = 0, n: int = 512) -> Task:
    """A task on made-up data of a fixed seed. Its network is trained for `epochs` epochs."""
    make_model, make_data = NETWORKS[name]
    torch.manual_seed(0)
    model = make_model()
    x, y = make_data(n + 256)
    train = list(zip(x[:n].split(32), y[:n].split(32), strict=True))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(epochs):
        for batch in train:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

    def error(model: nn.Module) -> float:
        return 100 * float((model(x[n:]).argmax(1) != y[n:]).float().mean())

    return Task(model=model.eval(), train=train, loss=loss, evaluate=error, n_examples=n)
