"""A small trained network and its data, for callbacks in other libraries' trainers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.nn import functional as F

import softshare as ss

N, BATCH, EPOCHS, RATE = 512, 32, 20, 5e-3


class Net(nn.Module):
    """Tells which of three blobs a point is in, with the inputs and outputs that a Hugging Face Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.last(self.first(x).relu())
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def data(seed: int = 0) -> tuple[Tensor, Tensor]:  # (N, 8), (N,)
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (N,), generator=g)
    x = torch.randn(N, 8, generator=g)
    x[torch.arange(N), labels] += 3
    return x, labels


def error(model: nn.Module) -> float:
    """The error in percent, on points outside the training data."""
    x, labels = data(1)
    with torch.no_grad():
        return 100 * float((model(x)["logits"].argmax(1) != labels).float().mean())


def batches(size: int = BATCH) -> list[tuple[Tensor, Tensor]]:
    x, labels = data()
    return list(zip(x.split(size), labels.split(size), strict=True))


def make_net() -> Net:
    """A pre-trained network, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(5):
        for x, labels in batches():
            optimizer.zero_grad()
            model(x, labels)["loss"].backward()
            optimizer.step()
    return model


def make_task() -> ss.Task:
    return ss.Task(
        model=make_net(),
        train=batches(),
        loss=lambda model, batch: model(*batch)["loss"],
        evaluate=lambda model: error(model),
        n_examples=N,
    )


def config(**values: Any) -> ss.CompressConfig:
    """Settings of the route with the constant learning rate of the trainers."""
    return ss.CompressConfig().override(**{"epochs": EPOCHS, "schedule": "constant", "lr_weights": RATE, **values})


def prior_gradients(prior: ss.MixturePrior, tau: float) -> list[Tensor]:
    """The gradients of tau / N * -log p(w) at every shared weight, by torch's own densities in float64."""
    found: list[Tensor] = []
    for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
        components = Normal(mixture.mean.detach().double(), mixture.std.detach().double())
        density = MixtureSameFamily(Categorical(logits=mixture.log_mixing.detach().double()), components)
        for tensor in part.tensors:
            w = tensor.detach().double().requires_grad_()
            found += torch.autograd.grad(-tau / N * density.log_prob(w).sum(), w)
    return found
