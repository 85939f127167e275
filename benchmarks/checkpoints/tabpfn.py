"""TabPFN v1, a transformer of 25.8 million weights that classifies tables, and four tables to judge it by.

The weights come inside the package tabpfn 0.1 (the sdist; `models_diff/*.cpkt`). Nothing of the package is imported.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES, CLASSES, WIDTH, HEADS, LAYERS, HIDDEN = 100, 10, 512, 4, 12, 1024

Table = tuple[Tensor, Tensor, Tensor, Tensor]  # rows and labels to learn from, rows and labels to predict


class Layer(nn.Module):
    """A row that is predicted attends to the rows with labels alone, and so does a row with a label."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, n_known: int) -> Tensor:
        known = x[:, :n_known]
        x = self.norm1(x + self.self_attn(x, known, known, need_weights=False)[0])
        return self.norm2(x + self.linear2(F.gelu(self.linear1(x))))


class TabPFN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.y_encoder = nn.Linear(FEATURES, WIDTH), nn.Linear(1, WIDTH)
        self.transformer_encoder = nn.ModuleDict({"layers": nn.ModuleList(Layer() for _ in range(LAYERS))})
        self.decoder = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES))

    def forward(
        self,
        x: Tensor,  # (tables, rows, FEATURES), the known rows first
        y: Tensor,  # (tables, known rows), class numbers
    ) -> Tensor:  # (tables, other rows, CLASSES)
        n_known = y.shape[1]
        h = self.encoder(x)
        h = torch.cat([h[:, :n_known] + self.y_encoder(y.float()[..., None]), h[:, n_known:]], 1)
        for layer in self.transformer_encoder["layers"]:  # type: ignore[union-attr]
            h = layer(h, n_known)
        out: Tensor = self.decoder(h[:, n_known:])
        return out


def load(path: str | Path) -> TabPFN:
    """The network with the weights of a `.cpkt` file."""
    state = torch.load(path, map_location="cpu", weights_only=True)[0]
    model = TabPFN()
    wanted = model.state_dict()
    model.load_state_dict({name: state[f"module.{name}"] for name in wanted})
    return model.eval()


def rows(x: Tensor, n_known: int) -> Tensor:
    """Features as the network was trained on: by the mean and the deviation of the known rows, and 100 of them."""
    mean, std = x[:n_known].mean(0), x[:n_known].std(0) + 1e-6
    x = ((x - mean) / std)[:, x[:n_known].std(0) > 0].clip(-100, 100)
    x = x.clamp(-8, 8) * FEATURES / x.shape[1]
    return F.pad(x, (0, FEATURES - x.shape[1]))


def split(x: Tensor, y: Tensor, seed: int, n_known: int) -> Table:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = rows(x[order].float(), n_known), y[order]
    return x[:n_known], y[:n_known], x[n_known:], y[n_known:]


def sklearn_tables(seed: int = 0) -> dict[str, Table]:
    from sklearn import datasets  # type: ignore[import-not-found]

    found = {}
    for name in ("breast_cancer", "wine", "digits"):
        data = getattr(datasets, f"load_{name}")()
        x, y = torch.tensor(data.data), torch.tensor(data.target)
        found[name] = split(x, y, seed, len(x) // 2)
    return found


def mnist_table(images: Tensor, labels: Tensor, seed: int = 0) -> Table:
    """1,600 digits pooled to 7 x 7: a table that no choice was made on."""
    pooled = F.avg_pool2d(images[:1600, None].float(), 4).flatten(1)
    return split(pooled, labels[:1600], seed, 800)


@torch.no_grad()
def outputs(model: nn.Module, tables: dict[str, Table]) -> dict[str, Tensor]:
    """Log-probabilities of the classes, for each row to predict."""
    found = {}
    for name, (x, y, new, _) in tables.items():
        logits = model(torch.cat([x, new])[None], y[None])[0, :, : int(y.max()) + 1]
        found[name] = logits.log_softmax(1)
    return found


def judged(model: nn.Module, tables: dict[str, Table], truth: dict[str, Tensor]) -> tuple[float, float, float]:
    """Over all rows: error in percent, cross entropy, and the divergence from the outputs of the float network."""
    found = outputs(model, tables)
    answers = {name: table[3] for name, table in tables.items()}
    n = sum(map(len, answers.values()))
    wrong = sum(int((found[k].argmax(1) != y).sum()) for k, y in answers.items())
    nats = sum(float(F.nll_loss(found[k], y, reduction="sum")) for k, y in answers.items())
    divergence = sum(float(F.kl_div(found[k], truth[k], reduction="sum", log_target=True)) for k in answers)
    return 100 * wrong / n, nats / n, divergence / n


def made_up_tables(n: int, n_rows: int = 384) -> list[tuple[Tensor, Tensor]]:
    """Tables of random numbers with random classes, to calibrate on: no row of a real table is used."""
    g, found = torch.Generator().manual_seed(0), []
    for k in range(n):
        width, rank, classes = (int(torch.randint(*span, (1,), generator=g)) for span in ((4, 60), (2, 8), (2, 10)))
        x = torch.randn(n_rows, rank, generator=g) @ torch.randn(rank, width, generator=g)
        x = x + 0.5 * torch.randn(n_rows, width, generator=g)
        if k % 2:
            x = x.tanh() * (torch.rand(width, generator=g) < 0.7) + (x > 1).float()
        scores = torch.tanh(x @ torch.randn(width, 16, generator=g) / width**0.5)
        y = (scores @ torch.randn(16, classes, generator=g)).argmax(1)
        found.append((rows(x, n_rows // 2)[None], y[None, : n_rows // 2].float()))
    return found
