"""Metrics over a loader: built-in ones, objects that are updated batch by batch, and functions of all outputs."""

from __future__ import annotations

import copy
import functools
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from softshare._util.user_code import call, here, wrong
from softshare.distributed.group import Group
from softshare.errors import ConfigError
from softshare.loaders.batches import Reading, Seen
from softshare.task import Metric

BUILT_IN = {
    "error": Metric("error", "%"),
    "accuracy": Metric("accuracy", "%", higher_is_better=True),
    "mse": Metric("mse", ""),
    "mae": Metric("mae", ""),
    "loss": Metric("loss", ""),
    "perplexity": Metric("perplexity", ""),
}


class Meter(Protocol):
    """Collects one metric over batches."""

    def add(self, seen: Seen) -> None: ...

    def gather_(self, group: Group) -> None:
        """Take in what the other processes have collected of their shares of the loader."""

    def value(self) -> float: ...

    def noise(self) -> float | None:
        """The standard error of the value. None if there is nothing per example to compute it from."""


@dataclass(frozen=True)
class Measure:
    """A metric and how to measure it."""

    metric: Metric
    meter: Callable[[], Meter]


class Rate:
    """The share of labels that the largest logit misses or meets, in percent."""

    def __init__(self, reading: Reading, hits: bool) -> None:
        self.reading, self.hits = reading, hits
        self.k = self.n = 0

    def add(self, seen: Seen) -> None:
        found = self.reading.guesses(seen)
        if found is None:
            raise ConfigError(
                f"metric{here()}: the error and the accuracy need logits (batch, classes, ...) and whole numbers as "
                f"labels, got {_shape(seen.output)} and {_shape(seen.target)}. Give 'loss', 'mse', 'mae' or a function"
            )
        guesses, labels = found
        self.k += int(((guesses == labels) == self.hits).sum())
        self.n += len(labels)

    def gather_(self, group: Group) -> None:
        self.k, self.n = int(group.total(self.k)), int(group.total(self.n))

    def value(self) -> float:
        return 100 * self.k / self.n if self.n else math.nan

    def noise(self) -> float:
        share = (self.k + 0.5) / (self.n + 1)  # so that no error at all is not taken for certainty
        return 100 * math.sqrt(share * (1 - share) / max(self.n, 1))


class Distance:
    """The mean over all elements of a distance between output and target."""

    def __init__(self, of: Callable[[Tensor], Tensor]) -> None:
        self.of = of
        self.means: list[Tensor] = []  # over the elements of each example
        self.total, self.elements = 0.0, 0

    def add(self, seen: Seen) -> None:
        output, target = seen.output, seen.target
        if not isinstance(output, Tensor) or not isinstance(target, Tensor) or output.numel() != target.numel():
            raise ConfigError(
                f"metric{here()}: 'mse' and 'mae' need an output and a target of one size, got {_shape(output)} "
                f"and {_shape(target)}. Give 'loss' or a function"
            )
        each = self.of(output.double().reshape(target.shape) - target.double())
        self.means.append(each.reshape(len(each) if each.dim() else 1, -1).mean(1).cpu())
        self.total, self.elements = self.total + float(each.sum()), self.elements + each.numel()

    def gather_(self, group: Group) -> None:
        self.means = [mean for means in group.each(self.means) for mean in means]
        self.total, self.elements = group.total(self.total), int(group.total(self.elements))

    def value(self) -> float:
        return self.total / self.elements if self.elements else math.nan

    def noise(self) -> float | None:
        means = torch.cat(self.means)
        return float(means.std()) / math.sqrt(len(means)) if len(means) > 1 else None


class MeanLoss:
    """The mean of the loss over all of its terms, and what a function makes of that."""

    def __init__(self, reading: Reading, then: Callable[[float], float] = float) -> None:
        self.reading, self.then = reading, then
        self.total, self.n = 0.0, 0

    def add(self, seen: Seen) -> None:
        if n := self.reading.n_terms(seen):  # a batch of ignored labels has no mean
            self.total, self.n = self.total + n * float(self.reading.loss(seen)), self.n + n

    def gather_(self, group: Group) -> None:
        self.total, self.n = group.total(self.total), int(group.total(self.n))

    def value(self) -> float:
        return self.then(self.total / self.n) if self.n else math.nan

    def noise(self) -> None:
        return None


class OfObject:
    """A metric with `update`, `compute` and `reset`, as those of torchmetrics have. The object itself is copied."""

    def __init__(self, metric: Any, name: str) -> None:
        self.what, self.name = f"metric {name!r}", name
        self.metric = call(self.what, copy.deepcopy, metric)
        call(self.what, self.metric.reset)

    def add(self, seen: Seen) -> None:
        if hasattr(self.metric, "to") and isinstance(seen.output, Tensor):
            self.metric = call(self.what, self.metric.to, seen.output.device)
        call(self.what, self.metric.update, seen.output, seen.target)

    def gather_(self, group: Group) -> None:
        """Nothing: objects of torchmetrics do this themselves in `compute`."""

    def value(self) -> float:
        return _one_number(call(self.what, self.metric.compute), self.name)

    def noise(self) -> None:
        return None


class OfFunction:
    """A function of all outputs and all targets, on the CPU."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any], name: str) -> None:
        self.function, self.name = function, name
        self.outputs: list[Tensor] = []
        self.targets: list[Tensor] = []

    def add(self, seen: Seen) -> None:
        for part, kept in ((seen.output, self.outputs), (seen.target, self.targets)):
            if not isinstance(part, Tensor):
                advice = "Give an object with update, compute and reset, which gets them as they are"
                got = f"{type(part).__name__}. {advice}"
                raise wrong(f"metric {self.name!r}", "outputs and targets that are tensors", got)
            kept.append(part.detach().cpu())

    def gather_(self, group: Group) -> None:
        self.outputs = [part for parts in group.each(self.outputs) for part in parts]
        self.targets = [part for parts in group.each(self.targets) for part in parts]

    def value(self) -> float:
        try:
            outputs, targets = torch.cat(self.outputs), torch.cat(self.targets)
        except RuntimeError as problem:
            raise ConfigError(
                f"metric {self.name!r}: batches of different shapes cannot be put together ({problem}). Give an object "
                "with update, compute and reset"
            ) from None
        return _one_number(call(f"metric {self.name!r}", self.function, outputs, targets), self.name)

    def noise(self) -> None:
        return None


def measures_of(metric: Any, reading: Reading, classifies: bool, higher_is_better: bool | None) -> list[Measure]:
    """What the user's `metric` measures. The first is the one to judge by."""
    if metric is None:
        metric = "error" if classifies else "loss"
    if hasattr(metric, "items"):  # a dict, or a collection of torchmetrics
        named = [(str(name), one) for name, one in metric.items()]
        if not named:
            raise ConfigError("metric: expected at least one metric in the dict, got none")
        first, *others = named
        return [
            _measure(first[1], first[0], reading, higher_is_better),
            *(_measure(one, name, reading, None, judged=False) for name, one in others),
        ]
    return [_measure(metric, None, reading, higher_is_better)]


def _measure(
    metric: Any, name: str | None, reading: Reading, higher_is_better: bool | None, judged: bool = True
) -> Measure:
    if isinstance(metric, str):
        if metric not in BUILT_IN:
            raise ConfigError(f"metric: expected one of {', '.join(BUILT_IN)}, or a function, got {metric!r}")
        known = BUILT_IN[metric]
        if higher_is_better not in (None, known.higher_is_better):
            better = "higher" if known.higher_is_better else "lower"
            raise ConfigError(f"higher_is_better: {metric} is better if it is {better}. Leave the argument out")
        return Measure(Metric(name or metric, known.unit, known.higher_is_better), _built_in(metric, reading))
    is_object = all(callable(getattr(metric, method, None)) for method in ("update", "compute", "reset"))
    if isinstance(metric, type) or not (is_object or callable(metric)):
        raise ConfigError(
            f"metric: expected one of {', '.join(BUILT_IN)}, an object with update, compute and reset, a function of "
            f"outputs and targets, or a dict of these, got {metric!r}"
        )
    name = name or _name_of(metric)
    higher = getattr(metric, "higher_is_better", None) if higher_is_better is None else higher_is_better
    if higher is None and judged:
        raise ConfigError(
            f"higher_is_better: it is not known whether a higher {name} is better. Give higher_is_better=True or False"
        )
    meter = OfObject if is_object else OfFunction
    return Measure(Metric(name, "", bool(higher)), functools.partial(meter, metric, name))


def _built_in(name: str, reading: Reading) -> Callable[[], Meter]:
    makes: Mapping[str, Callable[[], Meter]] = {
        "error": functools.partial(Rate, reading, hits=False),  # not lambdas, which pickle refuses
        "accuracy": functools.partial(Rate, reading, hits=True),
        "mse": functools.partial(Distance, torch.square),
        "mae": functools.partial(Distance, torch.abs),
        "loss": functools.partial(MeanLoss, reading),
        "perplexity": functools.partial(MeanLoss, reading, _exp),
    }
    return makes[name]


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


class Noise:
    """The standard error of a metric: from its examples, or else from how much it differs between batches."""

    def __init__(self, measure: Measure) -> None:
        self.make, self.whole = measure.meter, measure.meter()
        self.batches: list[float] = []
        self.n = 0  # examples

    def add(self, seen: Seen) -> None:
        self.whole.add(seen)
        self.n += seen.n
        one = self.make()
        one.add(seen)
        self.batches.append(one.value())

    def gather_(self, group: Group) -> None:
        self.whole.gather_(group)
        self.batches = [value for values in group.each(self.batches) for value in values]
        self.n = int(group.total(self.n))

    def value(self) -> float:
        direct = self.whole.noise()
        if direct is not None:
            return direct
        finite = [value for value in self.batches if math.isfinite(value)]
        if len(finite) > 1:
            return statistics.stdev(finite) / math.sqrt(len(finite))
        return abs(self.whole.value()) / math.sqrt(self.n)


def _name_of(metric: Any) -> str:
    function = metric.func if isinstance(metric, functools.partial) else metric
    name = getattr(function, "__name__", type(function).__name__)
    return "metric" if name == "<lambda>" else str(name)


def _one_number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise wrong(f"metric {name!r}", "one number", f"{_shape(value)}. Average over it") from None


def _shape(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__
