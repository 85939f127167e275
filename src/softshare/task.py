"""Task: what a user tells softshare about a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from softshare.errors import ConfigError


@dataclass(frozen=True)
class Metric:
    """What `Task.evaluate` measures: its name, its unit, and whether more of it is better.

    The name is also the key of the measure if `evaluate` returns several in a dict.
    """

    name: str = "error"
    unit: str = "%"
    higher_is_better: bool = False

    def text(self, value: float) -> str:
        """The value with its unit: '1.62%', '0.0123', '31.2 dB'."""
        number = f"{value:.2f}" if self.unit == "%" else f"{value:.4g}"
        return number + (self.unit if self.unit in ("", "%") else f" {self.unit}")

    def loss(self, before: float, after: float) -> float:
        """How much worse `after` is than `before`. It is negative if `after` is better."""
        return before - after if self.higher_is_better else after - before

    def worse(self, value: float, by: float) -> float:
        """The value that is worse by this much."""
        return value - by if self.higher_is_better else value + by


@dataclass(frozen=True, eq=False)
class Task:
    """What softshare must know about a network: how to train it and how to judge it.

    `evaluate` is called during training and for model selection, so it should read held-out training data. `test` is
    called only for the final figures. Without `test`, `evaluate` gives those too. Both return a number, or a dict of
    numbers of which `metric.name` is the one to judge by. `outputs` is needed only for distillation, which compares the
    logits of the network with those of its teacher.
    """

    model: nn.Module  # pre-trained
    train: Iterable[Any]  # batches, iterated once per epoch: a list or a DataLoader, not a generator
    loss: Callable[[nn.Module, Any], Tensor]  # (model, batch) -> mean loss over the batch, 0-d
    evaluate: Callable[[nn.Module], float | Mapping[str, float]]  # model -> the metric; by default error in percent
    n_examples: int  # training examples in one epoch
    test: Callable[[nn.Module], float | Mapping[str, float]] | None = None
    name: str = "custom"
    dataset: str = "custom"
    outputs: Callable[[nn.Module, Any], Tensor] | None = None  # (model, batch) -> logits, (batch, classes)
    metric: Metric = Metric()
    noise: Callable[[nn.Module], float] | None = None  # model -> standard error of `evaluate`; None: estimated

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ConfigError(f"Task.model: expected a torch.nn.Module, got {type(self.model).__name__}")
        for name in ("loss", "evaluate"):
            if not callable(getattr(self, name)):
                raise ConfigError(f"Task.{name}: expected a function, got {getattr(self, name)!r}")
        for name in ("test", "outputs", "noise"):
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

    def judge(self, model: nn.Module, *, final: bool = False) -> float:
        """The metric of a network, by `evaluate`, or by `test` if `final`. The network's mode is restored."""
        was_training, function = model.training, "test" if final and self.test else "evaluate"
        model.eval()
        try:
            with torch.no_grad():
                found = getattr(self, function)(model)
        finally:
            model.train(was_training)
        if isinstance(found, Mapping):
            if self.metric.name not in found:
                raise ConfigError(
                    f"Task.{function}: expected the metric {self.metric.name!r}, got a dict with {', '.join(found)}. "
                    "Name one of these in Task(metric=Metric(...))"
                )
            found = found[self.metric.name]
        value = float(found)
        if math.isnan(value):
            raise FloatingPointError(f"Task.{function} returned {value}")
        return value
