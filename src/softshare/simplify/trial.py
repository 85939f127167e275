"""Whether the symmetries of `forward` are symmetries of the task: its loss and its evaluation decide.

Links are found in the model's `forward`. A loss or an evaluation may call another method that shares a layer, or give
the model inputs without a batch dimension. Then units that change places change the result.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import torch

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


def _shuffled(quantized: QuantizedWeights, links: list[Link]) -> QuantizedWeights:
    generator = torch.Generator().manual_seed(0)
    return permuted(quantized, {link: torch.randperm(link.n_units, generator=generator) for link in links})


class _Trial:
    def __init__(self, task: Task) -> None:
        self._task, self._model = task, copied(task.model).eval()
        with seeded(self._model, 0):  # a loader may draw from the global random state
            self._batches: list[Any] = list(islice(iter(task.train), BATCHES))

    def loss(self, quantized: QuantizedWeights) -> float:
        """Of the network with these weights, which it has from now on."""
        state, strict = quantized.state_dict(), not quantized.dropped
        load_state_(self._model, state, "the quantized network", strict=strict)
        with seeded(self._model, 0):
            return sum(float(self._task.loss(self._model, batch).detach()) for batch in self._batches)

    def error(self) -> float:
        with seeded(self._model, 0):
            return self._task.judge(self._model)
