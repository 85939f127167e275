"""Trim: zero the cheapest weights of a quantized network, as many as its target asks for.

A weight is cheap if zeroing it adds little to the loss, by its curvature, for the bits it saves. The estimate proposes;
the measured file decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from torch import Tensor

from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.symmetries import Simplified
from softshare.train.zeroing import Cheapest, cost_and_bits

NEAR = 0.99  # share of a budget in bytes that is near enough
MOST_TRIES = 16
FIRST_STEP = 0.01  # share of the bits that all weights could save
HALVINGS = 5


class Cuts:
    """A quantized network with its cheapest weights zeroed."""

    def __init__(self, quantized: QuantizedWeights, curvatures: Mapping[str, Tensor]) -> None:
        self.quantized = quantized
        self._cheapest = Cheapest(
            [
                cost_and_bits(t.indices.long().reshape(t.shape), t.codebook, curvatures[t.name].cpu())
                for t in quantized.shared
                if t.indices.numel()
            ]
        )
        self.total = self._cheapest.total

    def saving(self, bits: float) -> QuantizedWeights:
        """The network with the cheapest weights zeroed that save `bits` by estimate."""
        if bits <= 0:
            return self.quantized
        masks = iter(self._cheapest.saving(bits))
        shared = (
            dataclasses.replace(t, indices=t.indices.masked_fill(next(masks), 0)) if t.indices.numel() else t
            for t in self.quantized.shared
        )
        return dataclasses.replace(self.quantized, shared=tuple(shared))


def trim_to_bytes(
    cuts: Cuts, limit: int, simplify: Callable[[QuantizedWeights], Simplified], size: Callable[[QuantizedWeights], int]
) -> Simplified:
    """The largest file found within the limit, usually within 1% of it. If no file fits, the smallest."""

    def at(bits: float) -> tuple[Simplified, int]:
        simplified = simplify(cuts.saving(bits))
        return simplified, size(simplified.quantized)

    best, reached = at(0.0)
    whole = reached
    if whole <= limit:
        return best
    low, high = 0.0, cuts.total  # bits saved that are too few, and that are enough
    aim = (1 + NEAR) / 2 * limit
    bits = 8 * (whole - aim)
    for _ in range(MOST_TRIES):
        if NEAR * limit <= reached <= limit or high - low < 1:
            break
        bits = bits if low < bits < high else (low + high) / 2
        tried, n_bytes = at(bits)
        if n_bytes <= limit:
            high = bits
            if reached > limit or n_bytes > reached:
                best, reached = tried, n_bytes
        else:
            low = bits
        saved = whole - n_bytes
        bits *= (whole - aim) / saved if saved > 0 else 2
    return best if reached <= limit else at(cuts.total)[0]


def trim_to_error(
    cuts: Cuts, fits: Callable[[QuantizedWeights], bool], simplify: Callable[[QuantizedWeights], Simplified]
) -> Simplified:
    """The network with the most weights zeroed that was found to fit. If none fits, the network as it is."""
    fitting, step = [0.0], FIRST_STEP * cuts.total
    tried = step
    while tried < cuts.total and fits(cuts.saving(tried)):
        fitting.append(tried)
        step *= 2
        tried += step
    low, high = fitting[-1], min(tried, cuts.total)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if fits(cuts.saving(middle)):
            fitting.append(middle)
            low = middle
        else:
            high = middle
    for bits in reversed(fitting):  # simplifying changes the order of float sums, which rarely changes an answer
        simplified = simplify(cuts.saving(bits))
        if fits(simplified.quantized):
            break
    return simplified
