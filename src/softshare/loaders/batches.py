"""Batches of a DataLoader: what the model gets of them, what it returns, and what it should have returned."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare._util.user_code import at, batches, call, wrong
from softshare.errors import ConfigError
from softshare.task import examples_in

LOSS = "the loss function"  # in messages: `from_loaders` has it as loss_fn, `compress` and `quantize` as loss
TARGETS = ("labels", "label", "targets", "target")  # names in a batch that is a dict
IGNORED = -100  # the label that cross entropy leaves out, unless the loss names another
SAME = 0.02  # relative difference up to which two losses are the same, but for rounding
_ENTROPIES = (F.cross_entropy, F.nll_loss)


@dataclass(frozen=True, eq=False)
class Seen:
    """A batch after the model has seen it."""

    output: Any  # of the model; its logits if it has them under that name
    target: Any
    loss: Any  # the model's own; None if it computes none
    n: int  # examples
    by_name: bool  # whether the logits have a name. Those of Hugging Face models have the classes last


class OnDevice:
    """The batches of a loader, on the device of a model."""

    def __init__(self, loader: Iterable[Any], model: nn.Module) -> None:
        self.loader, self.model = loader, model

    def __iter__(self) -> Iterator[Any]:
        return (moved(batch, device_of(self.model)) for batch in self.loader)

    @property
    def generator(self) -> Any:
        """What a DataLoader draws its order from, if it has its own. A run that is resumed restores it."""
        return getattr(self.loader, "generator", None)

    @property
    def sampler(self) -> Any:
        return getattr(self.loader, "sampler", None)

    @property
    def batch_sampler(self) -> Any:
        return getattr(self.loader, "batch_sampler", None)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # a loader without a length raises its own TypeError


@dataclass(eq=False)
class Reading:
    """How batches and outputs are read. `loss_fn` is None if the model computes its own loss."""

    loss_fn: Callable[[Any, Any], Tensor] | None
    shifted: bool = False  # whether the output at one place is a guess of the label at the next, as in language models

    @property
    def is_entropy(self) -> bool:
        function = self.loss_fn.func if isinstance(self.loss_fn, functools.partial) else self.loss_fn
        return isinstance(function, nn.CrossEntropyLoss | nn.NLLLoss) or function in _ENTROPIES

    @property
    def ignored(self) -> int:
        """The label that does not count."""
        return int(option(self.loss_fn, "ignore_index", IGNORED))

    def run(self, model: nn.Module, batch: Any, weights: Mapping[str, Tensor] | None = None) -> Seen:
        """With other weights than the model's own if given."""
        inputs, by_name, target = _split(model, moved(batch, device_of(model)))
        output = call("the model", applied, model, weights, inputs, by_name)
        logits = part_of(output, "logits")
        named = logits is not None
        n = examples_in(target) or examples_in(batch) or 1
        return Seen(logits if named else output, target, part_of(output, "loss"), n, named)

    def loss(self, seen: Seen) -> Tensor:  # 0-d
        """The mean loss of a batch."""
        if self.loss_fn is None:
            value = seen.loss
            if value is None:
                raise ConfigError(
                    "expected a loss function, or a model whose output has a loss, got no function, and "
                    f"{type(seen.output).__name__} without a loss. Give a loss function, such as nn.CrossEntropyLoss()"
                )
        elif seen.target is None:
            raise wrong(
                LOSS,
                f"a target in each batch, by one of the names {', '.join(TARGETS)}",
                "a dict without them. Rename it, or leave the loss function out if the model computes its own loss",
            )
        elif self.is_entropy and self._class_dim(seen) == -1 and seen.output.dim() > 2:
            value = call(LOSS, self.loss_fn, seen.output.flatten(0, -2), seen.target.flatten())
        else:
            value = call(LOSS, self.loss_fn, seen.output, seen.target)
        if not isinstance(value, Tensor) or value.dim():
            got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            expected = "the mean loss of a batch, a tensor without dimensions"
            raise wrong(LOSS, expected, f"{got}. Use reduction='mean'")
        return value

    def n_terms(self, seen: Seen) -> int:
        """The number of terms in the mean loss of a batch: labels that count, or examples."""
        dim = self._class_dim(seen) if self.is_entropy or self.loss_fn is None else None
        return seen.n if dim is None else int(self._labels(seen, dim)[1].sum())

    def guesses(self, seen: Seen) -> tuple[Tensor, Tensor] | None:  # (n,), (n,)
        """The class of the largest logit for each label that counts, and the label. None if there are no classes."""
        dim = self._class_dim(seen)
        if dim is None:
            return None
        labels, counts = self._labels(seen, dim)
        guesses = seen.output.argmax(dim)
        return (guesses[:, :-1] if self.shifted else guesses)[counts], labels[counts]

    def rows(self, seen: Seen, drop_ignored: bool = True) -> tuple[Tensor, Tensor] | None:  # (n, classes), (n,)
        """The logits for each label, and the label. None if the output has no dimension for classes."""
        dim = self._class_dim(seen)
        if dim is None:
            return None
        labels, counts = self._labels(seen, dim)
        logits = seen.output.movedim(dim, -1)
        logits = logits[:, :-1] if self.shifted else logits
        return (logits[counts], labels[counts]) if drop_ignored else (logits.flatten(0, -2), labels.flatten())

    def _labels(self, seen: Seen, dim: int) -> tuple[Tensor, Tensor]:  # (batch, ...) each
        """The labels, and which of them count."""
        labels = seen.target.argmax(dim) if seen.target.is_floating_point() else seen.target  # of probabilities
        labels = labels[:, 1:] if self.shifted else labels
        return labels, labels != self.ignored

    def _class_dim(self, seen: Seen) -> int | None:
        output, target = seen.output, seen.target
        if not isinstance(output, Tensor) or not isinstance(target, Tensor) or output.dim() < 2:
            return None
        if target.is_floating_point():
            return 1 if self.is_entropy and output.shape == target.shape else None
        rest = {1: (*output.shape[:1], *output.shape[2:]), -1: tuple(output.shape[:-1])}
        fits = [dim for dim in ((-1, 1) if seen.by_name else (1, -1)) if rest[dim] == tuple(target.shape)]
        return next((dim for dim in fits if output.shape[dim] > 1), None)

    def notice_shift_(self, seen: Seen) -> None:
        """Find out whether the model's own loss compares each output with the next label, as language models do."""
        if self.loss_fn or seen.loss is None or self._class_dim(seen) is None:
            return
        if seen.target.dim() != 2 or seen.target.shape[1] < 2:
            return
        off = {}
        for self.shifted in (False, True):
            rows = self.rows(seen)
            off[self.shifted] = abs(float(F.cross_entropy(rows[0].float(), rows[1]) - seen.loss)) if rows else 0.0
        self.shifted = off[True] < SAME * abs(float(seen.loss)) and 10 * off[True] < off[False]

    def each(self, model: nn.Module, loader: Iterable[Any], name: str, use: Callable[[Seen], None]) -> None:
        """Run the model over a loader, in evaluation mode and without gradients."""
        was_training, n = model.training, 0
        model.eval()
        try:
            with torch.no_grad():
                for n, batch in enumerate(batches(loader, name), start=1):
                    with at(f"batch {n} of {name}"):
                        use(self.run(model, batch))
        finally:
            model.train(was_training)
        if not n:
            raise ConfigError(f"{name}: expected at least one batch, got none. Give a loader of held-out data")


def option(function: Any, name: str, default: Any) -> Any:
    """An option of a loss: of a module such as nn.CrossEntropyLoss(), or in a functools.partial of a function."""
    options = function.keywords if isinstance(function, functools.partial) else {}
    return options.get(name, getattr(function, name, default))


def device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def moved(value: Any, device: torch.device) -> Any:
    if callable(getattr(value, "to", None)):  # a tensor, or a class for batches that knows how
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: moved(part, device) for name, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def applied(
    model: nn.Module, weights: Mapping[str, Tensor] | None, inputs: tuple[Any, ...], by_name: Mapping[str, Any]
) -> Any:
    """The output of a network, with other weights than its own if given."""
    if weights is None:
        return model(*inputs, **by_name)
    return torch.func.functional_call(model, dict(weights), inputs, dict(by_name))


def part_of(output: Any, name: str) -> Any:
    """A part of a model's output, from a dict or an object; None if it has no such part."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def _split(model: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """The model's inputs by position and by name, and the target."""
    if isinstance(batch, Tensor):
        return (batch,), {}, batch
    if isinstance(batch, Mapping):
        name = next((name for name in TARGETS if name in batch), None)
        if name is None:
            return (), dict(batch), None
        return (), {key: value for key, value in batch.items() if key != name or takes(model, name)}, batch[name]
    if isinstance(batch, tuple | list) and batch:
        return tuple(batch[:-1] or batch), {}, batch[-1]
    raise wrong(
        "the data",
        "batches that are tuples (inputs..., target), dicts that the model takes by name, or tensors",
        f"{type(batch).__name__}. Change the loader's collate_fn, or make a Task with your own loss and evaluate",
    )


def takes(model: nn.Module, name: str) -> bool:
    while isinstance(model, nn.parallel.DistributedDataParallel):  # its own forward takes any name
        model = model.module
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
