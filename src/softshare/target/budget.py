"""A budget: a run's target, the steering of training towards it, and the trimming of the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch

from softshare.codec import decode, encode
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.network.weights import load_state_
from softshare.network.wrapped import copied
from softshare.prior.prior import MixturePrior
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.symmetries import Simplified, simplify
from softshare.simplify.trial import broken_links
from softshare.target.limits import MaxBytes, MaxError, MaxErrorIncrease, Outcome, Target
from softshare.target.steer import Steering
from softshare.target.trim import Cuts, Trimmed, trim_to_bytes, trim_to_error
from softshare.task import Task


def check_target(target: Target, config: CompressConfig) -> None:
    """Raise unless a run with this config can be steered to the target."""
    if not isinstance(target, MaxBytes | MaxError | MaxErrorIncrease):
        raise ConfigError(f"target: expected MaxBytes, MaxError or MaxErrorIncrease, got {target!r}")
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


class Budget:
    """The budget of one run, which trains `task.model`. `quantized` returns that network quantized at the moment."""

    def __init__(
        self,
        task: Task,
        prior: MixturePrior,
        config: CompressConfig,
        target: Target,
        quantized: Callable[[], QuantizedWeights],
    ) -> None:
        check_target(target, config)
        self.task, self.prior, self.config, self.target = task, prior, config, target
        self._quantized, self._judged = quantized, copied(task.model).eval()
        self._broken: Mapping[str, str] = {}  # links that are none for the task; known when training is done
        self.steering = Steering(
            self._resolve(target), config.retrain, task.model, prior, self._size_now, self._error_now
        )

    def _resolve(self, target: Target) -> MaxBytes | MaxError:
        """The same target as an absolute limit. Raises if it is known to be out of reach."""
        if isinstance(target, MaxErrorIncrease):
            return MaxError(self._evaluate() + target.max_error_increase)
        if isinstance(target, MaxBytes):
            check_size(target, self._quantized(), self.config)
        return target

    def trim(self, quantized: QuantizedWeights) -> Trimmed:
        """The finished network with its cheapest weights zeroed, as many as the target asks for or allows."""
        if self.config.simplify.symmetries:
            self._broken = broken_links(self.task, quantized)
        shared = self.prior.view.shared
        unknown = [torch.full_like(s.tensor, torch.inf) for s in shared]  # no step was hard: nothing can be cut
        curvatures = zip((s.name for s in shared), self.steering.curvatures or unknown, strict=True)
        cuts = Cuts(quantized, dict(curvatures))
        target = self.steering.target
        if isinstance(target, MaxBytes):
            return trim_to_bytes(cuts, target.max_bytes, self._simplify, self._size)
        return trim_to_error(cuts, target.max_error, self._simplify, self._error)

    def outcome(self, trimmed: Trimmed) -> Outcome:
        target = self.steering.target
        limit = target.max_bytes if isinstance(target, MaxBytes) else target.max_error
        return Outcome(self.target, limit, trimmed.reached)

    def _simplify(self, quantized: QuantizedWeights) -> Simplified:
        if not self.config.simplify.symmetries:
            return Simplified(quantized, [], {})
        return simplify(self.task.model, quantized, self.config.encode, self._broken)

    def _size_now(self, exact: bool) -> int:
        quantized = self._quantized()
        return self._size(self._simplify(quantized).quantized if exact else quantized)

    def _error_now(self) -> float:
        return self._error(self._quantized())

    def _size(self, quantized: QuantizedWeights) -> int:
        return len(encode(quantized, self.config.encode))

    def _error(self, quantized: QuantizedWeights) -> float:
        """The error of the network that the file decodes to."""
        named = dataclasses.replace(self.config.encode, names="keep")
        state = decode(encode(quantized, named), max_bytes=None).state_dict()
        load_state_(self._judged, state, "the decoded file")
        return self._evaluate()

    def _evaluate(self) -> float:
        return self.task.judge(self._judged)
