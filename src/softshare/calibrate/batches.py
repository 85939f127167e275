"""Run a network on batches without labels."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from softshare._util.user_code import at, call
from softshare.calibrate.running import Running
from softshare.errors import ConfigError
from softshare.loaders.batches import TARGETS, applied, device_of, moved, takes


def run(model: nn.Module, batch: Any, weights: Mapping[str, Tensor] | None = None) -> Any:
    """The output, with other weights than the network's own if given. A batch is a tensor, a dict by name, or a tuple.

    A label that the network does not take is left out: in a dict by its name, and in a tuple the last part, if there
    are more than the network must have.
    """
    batch = moved(batch, device_of(model))
    if isinstance(batch, Tensor):
        return call("the model", applied, model, weights, (batch,), {})
    if isinstance(batch, Mapping):
        given = {name: part for name, part in batch.items() if name not in TARGETS or takes(model, name)}
        return call("the model", applied, model, weights, (), given)
    if isinstance(batch, tuple | list) and batch:
        inputs = batch if len(batch) <= max(1, _required(model)) else batch[:-1]
        return call("the model", applied, model, weights, tuple(inputs), {})
    raise ConfigError(
        "calibrate: expected batches that are tensors, tuples or dicts that the model takes, got "
        f"{type(batch).__name__}"
    )


def started(model: nn.Module, batches: Iterable[Any]) -> Iterator[Running]:
    """A run of the network for each batch, not yet at its first operation's result."""
    for n, batch in enumerate(batches, start=1):
        with at(f"batch {n} of calibrate"):
            found = Running(partial(run, model, batch))
        yield found


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    was_training, fast = model.training, torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # it hides its products
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        model.train(was_training)


def each(model: nn.Module, batches: Iterable[Any]) -> Iterator[Any]:
    """The output of each batch, None if it has none. In evaluation mode, without gradients."""
    with evaluating(model):
        for n, batch in enumerate(batches, start=1):
            with at(f"batch {n} of calibrate"):
                yield run(model, batch)


def logits_of(output: Any) -> Tensor | None:
    """The first tensor of floating-point numbers in an output, its logits if they have that name."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, Mapping):
        parts = [output["logits"]] if "logits" in output else list(output.values())
    else:
        parts = list(output) if isinstance(output, tuple | list) else [getattr(output, "logits", None)]
    return next((found for part in parts if part is not None and (found := logits_of(part)) is not None), None)


def relative(after: Sequence[Tensor], before: Sequence[Tensor]) -> float | None:
    """The error of outputs relative to their root mean square. None if there are no numbers to compare."""
    square = sum(float((a - b).double().square().sum()) for a, b in zip(after, before, strict=True))
    whole = sum(float(b.double().square().sum()) for b in before)
    return math.sqrt(square / whole) if whole else None


def _required(model: nn.Module) -> int:
    """The number of inputs that the network must have."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)
