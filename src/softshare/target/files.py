"""The files that the networks of a run would be: how large they are, and what they decode to is worth."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from softshare.codec import decode, encode
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.network.groups import Group
from softshare.network.weights import load_state_
from softshare.network.wrapped import copied
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.changes import Changes, changed
from softshare.simplify.symmetries import Simplified
from softshare.simplify.trial import SINGLE, Trial, allowed
from softshare.target.limits import MaxBytes
from softshare.target.trim import Cuts, trim_to_bytes, trim_to_error
from softshare.task import Task

SLIGHT = 0.01  # of what the loss gains over that of zeros


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

    def __init__(self, task: Task, config: CompressConfig, groups: Sequence[Group] = ()) -> None:
        self.task, self.config = task, config
        self._judged = copied(task.model).eval()
        self._wanted = self._changes = Changes.of(config.simplify, groups)

    def find_allowed(self, quantized: QuantizedWeights) -> None:
        """Find the changes that the task does not notice. Before this, all that keep `forward` are made."""
        if self._wanted.symmetries or self._wanted.norms:
            self._changes = allowed(self.task, self._wanted, quantized)

    def simplify(self, quantized: QuantizedWeights) -> Simplified:
        return changed(self.task.model, quantized, self.config.encode, self._changes)._replace(plain=quantized)

    def verified(self, simplified: Simplified, gain: float) -> Simplified:
        """The network whose file has the task's loss on a few batches: this one, or else the plain one.

        Codebooks are rounded in a file, so losses may differ a little: by 5%, or by 1% of `gain`. A message says what
        was undone. A task whose loss needs training mode cannot be asked.
        """
        plain = simplified.plain
        if plain is None:
            return simplified
        try:
            trial = Trial(self.task)
            wanted = trial.loss(plain)
            found, undone = (trial.loss_of(self.decoded(q)) for q in (simplified.quantized, plain))
        except Exception:  # the user's own code
            return simplified

        def fits(loss: float) -> bool:
            return math.isclose(loss, wanted, rel_tol=SINGLE, abs_tol=max(1e-6, SLIGHT * gain if gain > 0 else 0.0))

        if fits(found):
            return simplified
        if fits(undone):
            said = f"nothing is simplified, because in the file the loss would be {found:.4g}, not {wanted:.4g}"
            return Simplified(plain, [said], {}, plain)
        said = f"the file's network has another loss than the one that was trained: {found:.4g}, not {wanted:.4g}"
        return simplified._replace(messages=[*simplified.messages, f"{said}; set codebook_dtype='float32'"])

    def size(self, quantized: QuantizedWeights) -> int:
        return len(encode(quantized, self.config.encode, group=self.task.group))

    def decoded(self, quantized: QuantizedWeights) -> nn.Module:
        """The network that the file decodes to, until the next call."""
        named = dataclasses.replace(self.config.encode, names="keep")
        state = decode(encode(quantized, named, group=self.task.group), max_bytes=None).state_dict()
        load_state_(self._judged, state, "the decoded file", strict=not quantized.dropped)
        return self._judged

    def judge(self, quantized: QuantizedWeights) -> float:
        return self.task.judge(self.decoded(quantized))

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
