"""Make the task: see `Task.from_loaders`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data.distributed import DistributedSampler

from softshare._util.user_code import length_of
from softshare.distributed.group import ALONE, Group, world
from softshare.errors import ConfigError
from softshare.loaders.batches import LOSS, OnDevice, Reading, Seen, option
from softshare.loaders.meters import Measure, Noise, OfFunction, OfObject, measures_of
from softshare.task import Task, count_examples


def task_from_loaders(
    model: nn.Module,
    train_loader: Iterable[Any],
    val_loader: Iterable[Any],
    loss_fn: Callable[[Any, Any], Tensor] | None,
    metric: Any,
    *,
    test_loader: Iterable[Any] | None,
    higher_is_better: bool | None,
    n_examples: int | None,
    name: str,
    dataset: str,
) -> Task:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    _check_loss(loss_fn)
    for what, loader in {"train_loader": train_loader, "val_loader": val_loader, "test_loader": test_loader}.items():
        if loader is not None or what != "test_loader":
            _check_loader(what, loader)
    reading = Reading(loss_fn)
    seen = _first(reading, model, val_loader)
    reading.notice_shift_(seen)
    classifies = reading.guesses(seen) is not None
    measures = measures_of(metric, reading, classifies, higher_is_better)
    judged = measures[0]
    for meter in [measure.meter() for measure in measures]:
        if not isinstance(meter, OfObject | OfFunction):
            meter.add(seen)  # if it does not fit this network, say so before training
    if loss_fn is None:
        reading.loss(seen)  # the same, if the model computes no loss

    own = FromLoaders(reading, measures, val_loader, test_loader)
    return Task(
        model=model,
        train=OnDevice(train_loader, model),
        loss=own.loss,
        evaluate=own.evaluate,
        n_examples=count_examples(train_loader) if n_examples is None else n_examples,
        test=None if test_loader is None else own.test,
        name=name,
        dataset=dataset,
        outputs=own.outputs if classifies else None,
        metric=judged.metric,
        noise=own.noise,
    )


@dataclass(frozen=True, eq=False)
class FromLoaders:
    """The functions of the task: methods, so that the task can be pickled if its parts can."""

    reading: Reading
    measures: list[Measure]  # the first judges the network
    val_loader: Iterable[Any]
    test_loader: Iterable[Any] | None

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self.reading.loss(self.reading.run(model, batch))

    def evaluate(self, model: nn.Module) -> float | dict[str, float]:
        return self._measured(model, self.val_loader, "val_loader")

    def test(self, model: nn.Module) -> float | dict[str, float]:
        return self._measured(model, () if self.test_loader is None else self.test_loader, "test_loader")

    def noise(self, model: nn.Module) -> float:
        meter = Noise(self.measures[0])
        self.reading.each(model, self.val_loader, "val_loader", meter.add)
        meter.gather_(_readers(self.val_loader))
        return meter.value()

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        seen = self.reading.run(model, batch)
        rows = self.reading.rows(seen, drop_ignored=seen.target.dim() > 1)  # to drop any, a GPU would have to wait
        if rows is None:
            raise ConfigError("distill: expected logits (batch, classes, ...) in every batch, as in the first one")
        return rows[0]

    def _measured(self, model: nn.Module, loader: Iterable[Any], what: str) -> float | dict[str, float]:
        meters = {measure.metric.name: measure.meter() for measure in self.measures}

        def add(seen: Seen) -> None:
            for meter in meters.values():
                meter.add(seen)

        self.reading.each(model, loader, what, add)
        for meter in meters.values():
            meter.gather_(_readers(loader))
        values = {name: meter.value() for name, meter in meters.items()}
        return values if len(values) > 1 else values[self.measures[0].metric.name]


def _readers(loader: Iterable[Any]) -> Group:
    """The processes that share the examples of a loader out among them."""
    return world() if isinstance(getattr(loader, "sampler", None), DistributedSampler) else ALONE


def _check_loss(loss_fn: Any) -> None:
    if isinstance(loss_fn, type):
        raise ConfigError(f"{LOSS}: expected a function, got the class {loss_fn.__name__}. Give {loss_fn.__name__}()")
    if loss_fn is not None and not callable(loss_fn):
        raise ConfigError(f"{LOSS}: expected a function of output and target, or None, got {loss_fn!r}")
    reduction = option(loss_fn, "reduction", "mean")
    if reduction in ("sum", "none"):
        raise ConfigError(f"{LOSS}: expected the mean over a batch, got reduction={reduction!r}. Use reduction='mean'")


def _check_loader(what: str, loader: Any) -> None:
    if isinstance(loader, Iterator):
        raise ConfigError(
            f"{what}: expected batches that can be iterated again and again, got a {type(loader).__name__}, which can "
            "be iterated only once. Give a list or a DataLoader"
        )
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ConfigError(f"{what}: expected an iterable of batches, got {type(loader).__name__}")
    if length_of(loader, what) == 0:
        raise ConfigError(f"{what}: expected at least one batch, got none")


def _first(reading: Reading, model: nn.Module, loader: Iterable[Any]) -> Seen:
    """The first batch as the model sees it. The global random state is kept, which a shuffled loader draws from."""
    found: list[Seen] = []
    with torch.random.fork_rng(devices=[]):
        reading.each(model, itertools.islice(loader, 1), "val_loader", found.append)
    return found[0]
