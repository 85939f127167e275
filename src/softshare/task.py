"""Task: what a user tells softshare about a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from softshare.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Task:
    """What softshare must know about a network: how to train it and how to judge it.

    `evaluate` is called during training and for model selection, so it should read held-out training data. `test` is
    called only for the final figures. Without `test`, `evaluate` gives those too. `outputs` is needed only for
    distillation, which compares the logits of the network with those of its teacher.
    """

    model: nn.Module  # pre-trained
    train: Iterable[Any]  # batches, iterated once per epoch: a list or a DataLoader, not a generator
    loss: Callable[[nn.Module, Any], Tensor]  # (model, batch) -> mean loss over the batch, 0-d
    evaluate: Callable[[nn.Module], float]  # model -> error in percent
    n_examples: int  # training examples in one epoch
    test: Callable[[nn.Module], float] | None = None
    name: str = "custom"
    dataset: str = "custom"
    outputs: Callable[[nn.Module, Any], Tensor] | None = None  # (model, batch) -> logits, (batch, classes)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ConfigError(f"Task.model: expected a torch.nn.Module, got {type(self.model).__name__}")
        for name in ("loss", "evaluate"):
            if not callable(getattr(self, name)):
                raise ConfigError(f"Task.{name}: expected a function, got {getattr(self, name)!r}")
        for name in ("test", "outputs"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(f"Task.{name}: expected a function or None, got {getattr(self, name)!r}")
        if not isinstance(self.n_examples, int) or self.n_examples < 1:
            raise ConfigError(f"Task.n_examples: expected a whole number of at least 1, got {self.n_examples!r}")
        if not hasattr(self.train, "__iter__") and not hasattr(self.train, "__getitem__"):
            raise ConfigError(f"Task.train: expected an iterable of batches, got {type(self.train).__name__}")
        if isinstance(self.train, Iterator):
            raise ConfigError(
                f"Task.train: expected batches that every epoch can iterate, got a {type(self.train).__name__}, which "
                "can be iterated only once. Give a list or a DataLoader"
            )
