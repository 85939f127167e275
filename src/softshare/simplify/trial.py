"""Whether what keeps the function of `forward` keeps that of the task: its loss and its evaluation decide.

Links are found in the model's `forward`. A loss or an evaluation may call another method that shares a layer, or give
the model inputs without a batch dimension. Then units that change places change the result. An evaluation may also
estimate the statistics of batch norm again, which are no longer there once they are folded. Where there is no task, as
in a callback, the outputs of the network itself decide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from softshare._util.user_code import batches
from softshare.distributed.group import ALONE, Group
from softshare.distributed.wrap import has_shards
from softshare.network.chains import Link
from softshare.network.weights import load_state_
from softshare.network.wrapped import copied
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.changes import Changes, reduced
from softshare.simplify.symmetries import permuted, usable_links
from softshare.task import Task
from softshare.train.retrain import seeded

BATCHES = 2  # that losses are compared on
ROUNDING = 1e-3  # of a loss: sums of floats in another order differ by far less
SINGLE = 0.05  # of an evaluation: rounding may change the answer to one or two examples
FOLDING = "batch norm left as it is, because "


def allowed(task: Task, changes: Changes, quantized: QuantizedWeights) -> Changes:
    """The changes that the task does not notice: each is made, and the task judges.

    Batch norm is folded and unread units are cleared: the loss on a few batches and the evaluation must stay. Each link
    between layers is tried by the loss, all that pass together by the evaluation. The model of the task is only read.
    If the task cannot be asked, because its loss needs training mode, nothing is allowed.
    """
    if not (changes.norms or changes.groups or usable_links(task.model, quantized, {}, through_norms=False)[0]):
        return changes
    try:
        trial = Trial(task)
        changes, quantized = _reduced(task.model, quantized, changes, trial.difference)
        if not changes.symmetries:
            return changes
        links, _ = usable_links(task.model, quantized, {}, changes.norms)
        return dataclasses.replace(changes, broken=_tried(trial, quantized, links) if links else {})
    except Exception as problem:  # the user's own code, which may need training mode
        reason = f"the loss or the evaluation fails in evaluation mode ({type(problem).__name__}: {problem})"
        return _none(task.model, quantized, changes, reason)


def _none(model: nn.Module, quantized: QuantizedWeights, changes: Changes, reason: str) -> Changes:
    """No change, with the reason."""
    refused = (*changes.refused, *([f"{FOLDING}{reason}"] if changes.norms else []))
    links, _ = usable_links(model, quantized, {}, through_norms=False)
    broken = {link.source: reason for link in links}
    return dataclasses.replace(changes, norms=False, groups=(), broken=broken, refused=refused)


def _reduced(
    model: nn.Module,
    quantized: QuantizedWeights,
    changes: Changes,
    difference: Callable[[QuantizedWeights, QuantizedWeights], str],
) -> tuple[Changes, QuantizedWeights]:
    """The changes without those by which the network differs, and the network with the others made."""
    if changes.norms:
        only = Changes(symmetries=False, norms=True)
        if problem := difference(quantized, reduced(model, quantized, only)):
            refused = (*changes.refused, f"{FOLDING}with its statistics in its weights {problem}")
            changes = dataclasses.replace(changes, norms=False, refused=refused)
    whole = reduced(model, quantized, changes)
    if changes.groups and (problem := difference(quantized, whole)):
        refused = (*changes.refused, f"units that seem unread are not cleared, because without them {problem}")
        changes = dataclasses.replace(changes, groups=(), refused=refused)
        whole = reduced(model, quantized, changes)
    return changes, whole


def _tried(trial: Trial, quantized: QuantizedWeights, links: list[Link]) -> dict[str, str]:
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


def allowed_by_outputs(
    model: nn.Module, calls: Sequence[Call], changes: Changes, quantized: QuantizedWeights, group: Group = ALONE
) -> Changes:
    """As `allowed`, for a network without a task: its outputs on these calls are compared, in each process.

    If there is no call, or no tensor comes back, nothing can be known and nothing is allowed. A network that is sharded
    cannot be copied: it is left in evaluation mode, with other weights.
    """
    model = (model if has_shards(model) else copied(model)).eval()

    def difference(one: QuantizedWeights, other: QuantizedWeights) -> str:
        differs = not _close(_outputs(model, calls, one), _outputs(model, calls, other))
        return "" if not group.highest_(torch.tensor(float(differs))) else "the network has other outputs"

    try:
        if not _outputs(model, calls, quantized):
            reason = "no output of the network is known that could be compared"
            return _none(model, quantized, changes, reason)
        changes, quantized = _reduced(model, quantized, changes, difference)
        if not changes.symmetries:
            return changes
        links, _ = usable_links(model, quantized, {}, changes.norms)
        broken = {
            link.source: "with its units in another order the network has other outputs"
            for link in links
            if difference(quantized, _shuffled(quantized, [link]))
        }
        return dataclasses.replace(changes, broken=broken)
    except Exception as problem:  # the user's own code
        reason = f"the network fails in evaluation mode ({type(problem).__name__}: {problem})"
        return _none(model, quantized, changes, reason)


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


class Trial:
    """What the task says of networks: their loss on a few batches, always the same, and their evaluation."""

    def __init__(self, task: Task) -> None:
        self._task, self._model = task, copied(task.model).eval()
        with seeded(self._model, 0):  # a loader may draw from the global random state
            self._batches: list[Any] = list(islice(batches(task.train), BATCHES))

    def loss(self, quantized: QuantizedWeights) -> float:
        """Of the network with these weights, which it has from now on."""
        state, strict = quantized.state_dict(), not quantized.dropped
        load_state_(self._model, state, "the quantized network", strict=strict)
        return self.loss_of(self._model)

    def loss_of(self, model: nn.Module) -> float:
        with seeded(model, 0):
            return self._task.group.mean(sum(float(self._task.loss(model, batch).detach()) for batch in self._batches))

    def difference(self, one: QuantizedWeights, other: QuantizedWeights) -> str:
        """How the two differ for the task; empty if they do not. The network has the weights of the second."""
        losses, errors = zip(*((self.loss(q), self.error()) for q in (one, other)), strict=True)
        if not math.isclose(*losses, rel_tol=ROUNDING, abs_tol=1e-6):
            return f"the loss is {losses[1]:.4g}, not {losses[0]:.4g}"
        if not math.isclose(*errors, rel_tol=SINGLE, abs_tol=1e-6):
            return f"the evaluation gives {errors[1]:.4g}, not {errors[0]:.4g}"
        return ""

    def error(self) -> float:
        with seeded(self._model, 0):
            return self._task.judge(self._model)
