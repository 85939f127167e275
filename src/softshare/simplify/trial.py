"""Whether the symmetries of `forward` are symmetries of the task: its loss and its evaluation decide.

Links are found in the model's `forward`. A loss or an evaluation may call another method that shares a layer, or give
the model inputs without a batch dimension. Then units that change places change the result. Where there is no task, as
in a callback, the outputs of the network itself decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from softshare._util.user_code import batches
from softshare.network.chains import Link
from softshare.network.weights import load_state_
from softshare.network.wrapped import copied
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.symmetries import permuted, usable_links
from softshare.task import Task
from softshare.train.retrain import seeded

BATCHES = 2  # that losses are compared on
ROUNDING = 1e-3  # of a loss: sums of floats in another order differ by far less
SINGLE = 0.05  # of an evaluation: rounding may change the answer to one or two examples


def broken_links(task: Task, quantized: QuantizedWeights) -> dict[str, str]:
    """The layers whose units must stay where they are, each with the reason: units are moved, and the task judges.

    Each link is tried by the loss on a few batches, all that pass together by the evaluation. The model of the task is
    only read. If the task cannot be asked, because its loss needs training mode, all links are broken.
    """
    links, _ = usable_links(task.model, quantized, {})
    if not links:
        return {}
    try:
        return _tried(_Trial(task), quantized, links)
    except Exception as problem:  # the user's own code, which may need training mode
        reason = f"the loss or the evaluation fails in evaluation mode ({type(problem).__name__}: {problem})"
        return {link.source: reason for link in links}


def _tried(trial: _Trial, quantized: QuantizedWeights, links: list[Link]) -> dict[str, str]:
    loss, error = trial.loss(quantized), trial.error()
    broken = {
        link.source: f"with its units in another order the loss is {other:.4g}, not {loss:.4g}"
        for link in links
        if not math.isclose(other := trial.loss(_shuffled(quantized, [link])), loss, rel_tol=ROUNDING, abs_tol=1e-6)
    }
    rest = [link for link in links if link.source not in broken]
    if rest:
        trial.loss(_shuffled(quantized, rest))
        if not math.isclose(other := trial.error(), error, rel_tol=SINGLE, abs_tol=1e-6):
            reason = f"with units in another order the evaluation gives {other:.4g}, not {error:.4g}"
            broken |= {link.source: reason for link in rest}
    return broken


Call = tuple[tuple[Any, ...], Mapping[str, Any]]  # what the network is called with


def broken_by_outputs(model: nn.Module, calls: Sequence[Call], quantized: QuantizedWeights) -> dict[str, str]:
    """As `broken_links`, for a network without a task: its outputs on these calls are compared.

    If there is no call, or no tensor comes back, nothing can be known and all links are broken.
    """
    links, _ = usable_links(model, quantized, {})
    if not links:
        return {}
    model = copied(model).eval()
    try:
        before = _outputs(model, calls, quantized)
        if not before:
            return {link.source: "no output of the network is known that could be compared" for link in links}
        return {
            link.source: "with its units in another order the network has other outputs"
            for link in links
            if not _close(before, _outputs(model, calls, _shuffled(quantized, [link])))
        }
    except Exception as problem:  # the user's own code
        reason = f"the network fails in evaluation mode ({type(problem).__name__}: {problem})"
        return {link.source: reason for link in links}


@torch.no_grad()
def _outputs(model: nn.Module, calls: Sequence[Call], quantized: QuantizedWeights) -> list[Tensor]:
    load_state_(model, quantized.state_dict(), "the quantized network", strict=not quantized.dropped)
    with seeded(model, 0):
        found = [leaf for args, kwargs in calls for leaf in tree_leaves(model(*args, **kwargs))]
    return [leaf for leaf in found if isinstance(leaf, Tensor) and leaf.numel()]


def _close(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
    """Whether outputs agree, up to rounding relative to the largest value of each."""
    if [t.shape for t in before] != [t.shape for t in after]:
        return False
    pairs = [(a.float(), b.float()) for a, b in zip(before, after, strict=True)]
    return all(bool((a - b).abs().max() <= ROUNDING * a.abs().max() + 1e-6) for a, b in pairs)


def _shuffled(quantized: QuantizedWeights, links: list[Link]) -> QuantizedWeights:
    generator = torch.Generator().manual_seed(0)
    return permuted(quantized, {link: torch.randperm(link.n_units, generator=generator) for link in links})


class _Trial:
    def __init__(self, task: Task) -> None:
        self._task, self._model = task, copied(task.model).eval()
        with seeded(self._model, 0):  # a loader may draw from the global random state
            self._batches: list[Any] = list(islice(batches(task.train), BATCHES))

    def loss(self, quantized: QuantizedWeights) -> float:
        """Of the network with these weights, which it has from now on."""
        state, strict = quantized.state_dict(), not quantized.dropped
        load_state_(self._model, state, "the quantized network", strict=strict)
        with seeded(self._model, 0):
            return sum(float(self._task.loss(self._model, batch).detach()) for batch in self._batches)

    def error(self) -> float:
        with seeded(self._model, 0):
            return self._task.judge(self._model)
