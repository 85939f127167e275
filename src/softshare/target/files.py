"""The files that the networks of a run would be: how large they are, and what they decode to is worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from softshare.codec import decode, encode
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.network.weights import load_state_
from softshare.network.wrapped import copied
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.symmetries import Simplified, simplify
from softshare.simplify.trial import broken_links
from softshare.target.limits import MaxBytes
from softshare.target.trim import Cuts, trim_to_bytes, trim_to_error
from softshare.task import Task


def check_size(target: MaxBytes, quantized: QuantizedWeights, config: CompressConfig) -> None:
    """Raise unless a file can be this small. Its shared weights may all be 0, but everything else takes its bytes."""
    empty = tuple(dataclasses.replace(t, indices=torch.zeros_like(t.indices)) for t in quantized.shared)
    least = len(encode(dataclasses.replace(quantized, shared=empty), config.encode))
    if target.max_bytes < least:
        raise ConfigError(
            f"target: expected at least {least:,} bytes, the size of the file with every shared weight 0, got "
            f"{target.max_bytes:,}"
        )


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

    def judge(self, quantized: QuantizedWeights) -> float:
        named = dataclasses.replace(self.config.encode, names="keep")
        state = decode(encode(quantized, named), max_bytes=None).state_dict()
        load_state_(self._judged, state, "the decoded file", strict=not quantized.dropped)
        return self.task.judge(self._judged)

    def trim_to_bytes(
        self, quantized: QuantizedWeights, curvatures: Mapping[str, Tensor], max_bytes: int
    ) -> Simplified:
        """The network with its cheapest weights zeroed, as many as it takes to fit."""
        return trim_to_bytes(Cuts(quantized, curvatures), max_bytes, self.simplify, self.size)

    def trim_to_metric(self, quantized: QuantizedWeights, curvatures: Mapping[str, Tensor], limit: float) -> Simplified:
        """The network with its cheapest weights zeroed, as many as the metric's limit allows."""

        def fits(q: QuantizedWeights) -> bool:
            return self.task.metric.loss(limit, self.judge(q)) <= 0

        return trim_to_error(Cuts(quantized, curvatures), fits, self.simplify)
