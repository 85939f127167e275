"""A run towards its target: what is trained, which network is taken, and how it is trimmed to fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from softshare.codec import decode, encode
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.network.weights import load_state_
from softshare.network.wrapped import copied
from softshare.prior.prior import MixturePrior
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.symmetries import Simplified, simplify
from softshare.simplify.trial import broken_links
from softshare.target.limits import MaxBytes, MaxError, MaxErrorIncrease, Target, WithinNoise
from softshare.target.trim import Cuts, trim_to_bytes, trim_to_error
from softshare.task import Task
from softshare.train.first_look import FirstLook


def check_target(target: Target, config: CompressConfig) -> None:
    """Raise unless a run with this config can be steered to the target."""
    if not isinstance(target, WithinNoise | MaxBytes | MaxError | MaxErrorIncrease):
        raise ConfigError(f"target: expected WithinNoise, MaxBytes, MaxError or MaxErrorIncrease, got {target!r}")
    if config.retrain.hard_from == 1 or not config.retrain.zeroing:
        raise ConfigError(
            "target: expected hard_from below 1 and zeroing above 0, because a target is met by zeroing in the hard "
            f"phase, got {config.retrain.hard_from} and {config.retrain.zeroing}"
        )


def check_size(target: MaxBytes, quantized: QuantizedWeights, config: CompressConfig) -> None:
    """Raise unless a file can be this small. Its shared weights may all be 0, but everything else takes its bytes."""
    empty = tuple(dataclasses.replace(t, indices=torch.zeros_like(t.indices)) for t in quantized.shared)
    least = len(encode(dataclasses.replace(quantized, shared=empty), config.encode))
    if target.max_bytes < least:
        raise ConfigError(
            f"target: expected at least {least:,} bytes, the size of the file with every shared weight 0, got "
            f"{target.max_bytes:,}"
        )


def limit_of(target: Target | None, task: Task, first: FirstLook) -> float | None:
    """The target as an absolute limit, in bytes or in the unit of the metric."""
    match target:
        case WithinNoise():
            return task.metric.worse(first.before, first.noise)
        case MaxErrorIncrease(allowed):
            return task.metric.worse(first.before, allowed)
        case MaxError(limit) | MaxBytes(limit):
            return limit
    return None


class Files:
    """The files that quantized networks of a task would be: their sizes, and the metric of what they decode to."""

    def __init__(self, task: Task, config: CompressConfig) -> None:
        self.task, self.config = task, config
        self._judged = copied(task.model).eval()
        self._broken: Mapping[str, str] = {}  # links that are none for the task

    def find_broken(self, quantized: QuantizedWeights) -> None:
        """Find the links that must stay as they are. Before this, all links of `forward` are taken for symmetries."""
        if self.config.simplify.symmetries:
            self._broken = broken_links(self.task, quantized)

    def simplify(self, quantized: QuantizedWeights) -> Simplified:
        if not self.config.simplify.symmetries:
            return Simplified(quantized, [], {})
        return simplify(self.task.model, quantized, self.config.encode, self._broken)

    def size(self, quantized: QuantizedWeights) -> int:
        return len(encode(quantized, self.config.encode))

    def size_of(self, prior: MixturePrior) -> Callable[[bool], int]:
        """A function that measures the prior's network as it is then; if exact, simplified."""

        def size(exact: bool) -> int:
            now = prior.quantize(self.config.merge, hard=True).quantized
            return self.size(self.simplify(now).quantized if exact else now)

        return size

    def judge(self, quantized: QuantizedWeights) -> float:
        named = dataclasses.replace(self.config.encode, names="keep")
        state = decode(encode(quantized, named), max_bytes=None).state_dict()
        load_state_(self._judged, state, "the decoded file")
        return self.task.judge(self._judged)

    def trim(
        self, quantized: QuantizedWeights, curvatures: Mapping[str, Tensor], target: Target, limit: float
    ) -> Simplified:
        """The finished network with its cheapest weights zeroed, as many as the target asks for or allows."""
        cuts = Cuts(quantized, curvatures)
        if isinstance(target, MaxBytes):
            return trim_to_bytes(cuts, int(limit), self.simplify, self.size)
        return trim_to_error(cuts, lambda q: self.task.metric.loss(limit, self.judge(q)) <= 0, self.simplify)
