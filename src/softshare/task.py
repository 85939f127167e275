"""Task: what a user tells softshare about a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data.distributed import DistributedSampler

from softshare._util.user_code import batches, guarded, here, length_of, wrong
from softshare.distributed.group import ALONE, Group
from softshare.errors import ConfigError, NotANumberError

COUNTED: Any = None  # a number that the task counts itself


@dataclass(frozen=True)
class Metric:
    """What `Task.evaluate` measures: its name, its unit, and whether more of it is better:

        metric = softshare.Metric("PSNR", "dB", higher_is_better=True)
        print(metric.text(31.2))  # 31.2 dB

    The name is also the key of the measure if `evaluate` returns several in a dict.
    """

    name: str = "error"
    unit: str = "%"
    higher_is_better: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"Metric.name: expected a text such as 'accuracy', got {self.name!r}")
        if not isinstance(self.unit, str):
            raise ConfigError(f"Metric.unit: expected a text such as '%' or '', got {self.unit!r}")
        if not isinstance(self.higher_is_better, bool):
            raise ConfigError(f"Metric.higher_is_better: expected True or False, got {self.higher_is_better!r}")

    @property
    def label(self) -> str:
        """The name with its unit, for the head of a column: 'error %', 'loss'."""
        return f"{self.name} {self.unit}".rstrip()

    def number(self, value: float, more_digits: int = 0) -> str:
        """The value without its unit: '1.62', '0.0123'.

        Args:
            value: of the metric.
            more_digits: than usual.

        Returns:
            A text.
        """
        return f"{value:.{2 + more_digits}f}" if self.unit == "%" else f"{value:.{4 + more_digits}g}"

    def text(self, value: float, more_digits: int = 0) -> str:
        """The value with its unit: '1.62%', '0.0123', '31.2 dB'.

        Args:
            value: of the metric.
            more_digits: than usual.

        Returns:
            A text.
        """
        return self.number(value, more_digits) + (self.unit if self.unit in ("", "%") else f" {self.unit}")

    def badness(self, value: float) -> float:
        """A number that is smaller for a better value.

        Args:
            value: of the metric.

        Returns:
            The value itself, or its negative if higher is better.
        """
        return -value if self.higher_is_better else value

    def loss(self, before: float, after: float) -> float:
        """How much worse one value is than another.

        Args:
            before: the value to compare with.
            after: the other value.

        Returns:
            The difference. It is negative if `after` is better.
        """
        return before - after if self.higher_is_better else after - before

    def worse(self, value: float, by: float) -> float:
        """A worse value.

        Args:
            value: to start from.
            by: how much worse, in the unit of the metric.

        Returns:
            The value that is worse by this much.
        """
        return value - by if self.higher_is_better else value + by


@dataclass(frozen=True, eq=False)
class Task:
    """What softshare must know about a network: how to train it and how to judge it.

        def loss(model, batch):
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        def error(model):  # in percent
            return 100 * sum(float((model(x).argmax(1) != y).sum()) for x, y in val_loader) / len(val_loader.dataset)

        task = softshare.Task(model, train_loader, loss, error)

    `Task.from_loaders` makes one from two DataLoaders and a loss function.

    `evaluate` is called during training and for model selection, so it should read held-out training data. `test` is
    called only for the final figures. Without `test`, `evaluate` gives those too. Both return a number, or a dict of
    numbers of which `metric.name` is the one to judge by. `outputs` is needed only for distillation, which compares the
    logits of the network with those of its teacher.

    `n_examples` is the number of terms that the mean loss has in one epoch. The prior weighs tau / `n_examples` against
    that loss. Usually it is the number of training examples, and it is counted if you leave it out. If the loss is a
    mean over words or pixels, give their number.
    """

    model: nn.Module  # pre-trained
    train: Iterable[Any]  # batches, iterated once per epoch: a list or a DataLoader, not a generator
    loss: Callable[[nn.Module, Any], Tensor]  # (model, batch) -> mean loss over the batch, 0-d
    evaluate: Callable[[nn.Module], float | Mapping[str, float]]  # model -> the metric; by default error in percent
    n_examples: int = COUNTED  # terms of the mean loss in one epoch; None: the examples are counted
    test: Callable[[nn.Module], float | Mapping[str, float]] | None = None
    name: str = "custom"
    dataset: str = "custom"
    outputs: Callable[[nn.Module, Any], Tensor] | None = None  # (model, batch) -> logits, (batch, classes)
    metric: Metric = Metric()
    noise: Callable[[nn.Module], float] | None = None  # model -> standard error of `evaluate`; None: estimated
    group: Group = field(default=ALONE, repr=False)  # processes that train the network together; `compress` sets it

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ConfigError(f"Task.model: expected a torch.nn.Module, got {type(self.model).__name__}")
        for name in ("loss", "evaluate"):
            if not callable(getattr(self, name)):
                raise ConfigError(f"Task.{name}: expected a function, got {getattr(self, name)!r}")
        if (getattr(self.loss, "__module__", None) or "").startswith("torch.nn"):  # a function of outputs and targets
            raise ConfigError(
                f"Task.loss: expected a function of the network and a batch, got {self.loss!r}. For a loss of outputs "
                "and targets, use Task.from_loaders(model, train_loader, val_loader, loss)"
            )
        for name in ("test", "outputs", "noise"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(f"Task.{name}: expected a function or None, got {getattr(self, name)!r}")
        if not isinstance(self.metric, Metric):
            raise ConfigError(f"Task.metric: expected a softshare.Metric, got {self.metric!r}")
        if not hasattr(self.train, "__iter__") and not hasattr(self.train, "__getitem__"):
            raise ConfigError(f"Task.train: expected an iterable of batches, got {type(self.train).__name__}")
        if isinstance(self.train, Iterator):
            raise ConfigError(
                f"Task.train: expected batches that every epoch can iterate, got a {type(self.train).__name__}, which "
                "can be iterated only once. Give a list or a DataLoader"
            )
        if self.n_examples is None:
            if length_of(self.train) == 0:
                raise ConfigError("Task.train: expected at least one batch, got none")
            object.__setattr__(self, "n_examples", count_examples(self.train))
        if not isinstance(self.n_examples, int) or isinstance(self.n_examples, bool) or self.n_examples < 1:
            raise ConfigError(f"Task.n_examples: expected a whole number of at least 1, got {self.n_examples!r}")
        n_batches = length_of(self.train)
        if n_batches is not None and self.n_examples < n_batches:
            raise ConfigError(
                f"Task.n_examples: expected at least one example for each of the {n_batches} batches in Task.train, "
                f"got {self.n_examples}. Give the number of examples in one epoch, or leave it out"
            )
        for name in ("loss", "evaluate", "test", "outputs", "noise"):
            if (function := getattr(self, name)) is not None:
                object.__setattr__(self, name, guarded(f"Task.{name}", function))

    @classmethod
    def from_loaders(
        cls,
        model: nn.Module,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any],
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        metric: Any = None,
        *,
        test_loader: Iterable[Any] | None = None,
        higher_is_better: bool | None = None,
        n_examples: int | None = None,
        name: str = "custom",
        dataset: str = "custom",
    ) -> Task:
        """A task from DataLoaders and a loss function such as `nn.CrossEntropyLoss()`.

        A batch is a tuple of the model's inputs and a target, a dict that the model takes by name, or a tensor that is
        both input and target. `loss_fn(output, target)` returns the mean loss. Without it, the model's output must have
        a `loss`, as that of a Hugging Face model has. The target in a dict has the name `labels`, `label`, `targets` or
        `target`. Tensors are moved to the model's device.

        `metric` is one of 'error', 'accuracy', 'mse', 'mae', 'loss' and 'perplexity'; an object with the methods
        `update`, `compute` and `reset`, as those of torchmetrics; a function of all outputs and all targets; or a dict
        of these, of which the first judges the network. By default it is the error in percent for a classifier, and the
        mean loss for other networks. `higher_is_better` is needed for a function, and for an object that does not say.

            task = softshare.Task.from_loaders(model, train_loader, val_loader, nn.CrossEntropyLoss(), "accuracy")

        Args:
            model: trained.
            train_loader: batches, iterated once per epoch.
            val_loader: batches of held-out training data, which judge the network.
            loss_fn: of outputs and targets.
            metric: what judges the network.
            test_loader: batches that are read only for the final figures.
            higher_is_better: of a metric that does not say.
            n_examples: terms of the mean loss in one epoch, if they cannot be counted.
            name: of the network, for tables.
            dataset: its name, for tables.

        Returns:
            A task for `compress`.
        """
        import softshare  # through the package, because loaders live in a layer above this one

        return softshare.task_from_loaders(
            model,
            train_loader,
            val_loader,
            loss_fn,
            metric,
            test_loader=test_loader,
            higher_is_better=higher_is_better,
            n_examples=n_examples,
            name=name,
            dataset=dataset,
        )

    def judge(self, model: nn.Module, *, final: bool = False) -> float:
        """The metric of a network, by `evaluate`, or by `test` if `final`:

            print(task.judge(model))

        Args:
            model: to judge. Its mode is restored.
            final: use the test set, if there is one.

        Returns:
            The number by which the task judges.
        """
        return self.judge_all(model, final=final)[self.metric.name]

    def judge_all(self, model: nn.Module, *, final: bool = False) -> dict[str, float]:
        """All numbers that `evaluate` or `test` gives, by name. A number alone has the name of the metric.

        In a group each process calls the function, and what it gives on the first one counts.

        Args:
            model: to judge. Its mode is restored.
            final: use the test set, if there is one.

        Returns:
            A number for each name.
        """
        function = "test" if final and self.test else "evaluate"
        with evaluating(model):
            found = getattr(self, function)(model)
        name, all_found = self.metric.name, found if isinstance(found, Mapping) else {self.metric.name: found}
        if name not in all_found:
            keys = ", ".join(map(str, all_found))
            advice = "Name one of these in Task(metric=Metric(...))"
            raise wrong(f"Task.{function}", f"the metric {name!r}", f"a dict with {keys}. {advice}")
        numbers = {str(key): _number(value) for key, value in all_found.items()}
        value = numbers[name]
        if value is None:
            got = type(all_found[name]).__name__ + (f" for {name!r}" if isinstance(found, Mapping) else "")
            raise wrong(f"Task.{function}", "a number, or a dict of numbers", got)
        found_numbers = {key: number for key, number in numbers.items() if number is not None}
        for key, number in found_numbers.items():
            otherwise = "" if key == name else ", or None if it cannot be measured"
            require_finite(f"Task.{function}", number, f"for the {key} of the network", otherwise)
        agreed: dict[str, float] = self.group.first(found_numbers)
        return agreed


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within, the network is in evaluation mode, and nothing records gradients. Its mode is restored."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def require_finite(function: str, value: float, what: str, otherwise: str = "") -> None:
    """Raise if a function of the task returned NaN or infinity."""
    if not math.isfinite(value):
        raise NotANumberError(f"{function} returned {value} {what}; expected a finite number{otherwise}", here())


def require_mean_loss(value: Any) -> Tensor:
    """What `Task.loss` returned. Raise unless it is a real tensor without dimensions.

    `backward` would sum a vector, and the task's weight would be its batch size times too large.
    """
    if not isinstance(value, Tensor) or value.dim() or value.is_complex():
        got = type(value).__name__
        if isinstance(value, Tensor):
            got = f"shape {tuple(value.shape)}" if value.dim() else f"one of {value.dtype}"
        raise wrong("Task.loss", "the mean loss over the batch as a 0-d tensor", got)
    return value


def _number(value: Any) -> float | None:
    """The number, or None if it is none: other entries of a dict may be anything."""
    try:
        return None if isinstance(value, str | bytes) else float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError, RuntimeError):
        return None


def examples_in(batch: Any) -> int | None:
    """The first dimension of the first tensor in a batch, found through dicts, tuples and lists. None if unknown."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((n for part in parts if (n := examples_in(part)) is not None), None)


def count_examples(train: Iterable[Any]) -> int:
    """The examples of one epoch: those that a DataLoader draws, or else the sizes of all batches.

    The global random state is kept.
    """
    batched = getattr(train, "batch_size", 1) is not None or getattr(train, "batch_sampler", None) is not None
    sampler = getattr(train, "sampler", None)
    shared_out = isinstance(sampler, DistributedSampler)  # its length is that of one process's share
    for owner in ("dataset",) if shared_out else ("sampler", "dataset") if batched else ():
        # if not batched, each item of the dataset is a batch
        if (n := length_of(getattr(train, owner, None))) is not None:
            return n
    if length_of(train) is None:  # a stream, which may not end
        raise ConfigError(
            "Task.n_examples: batches without a length cannot be counted. Give n_examples to Task or Task.from_loaders"
        )
    with torch.random.fork_rng(devices=[]):
        sizes = [examples_in(batch) for batch in batches(train)]
    known = [n for n in sizes if n is not None]
    if len(known) < len(sizes):
        problem = "the batches hold no tensors that could be counted. Give n_examples to Task or Task.from_loaders"
        raise ConfigError(f"Task.n_examples: {problem}")
    return sum(known)
