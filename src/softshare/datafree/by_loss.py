"""The smallest file whose loss on some batches is at most so much above that of the network itself."""

from __future__ import annotations

import math
from collections.abc import Callable

from softshare.datafree.fitted import FittedWeights
from softshare.errors import ConfigError

FIRST = 4.0  # bits
LEAST, MOST = 1.0, 12.0
MOST_TRIES = 6
NEAR = 0.75  # share of the allowed increase that is good enough
AIM = 0.9  # of the allowed increase
FARTHEST = 2.0  # bits from one try to the next
CLOSE = 0.05  # bits between too few and enough


def by_loss(
    fit: Callable[[float], FittedWeights],  # to at most so many bits a weight, with the loss before and after
    wanted: float,
) -> FittedWeights:
    """At most `wanted` above. An error in the weights halves with each bit, and the loss grows with its square."""
    best: FittedWeights | None = None
    below, above = LEAST, MOST  # bits that are too few, and bits that are enough
    bits = FIRST
    for _ in range(MOST_TRIES):
        try:
            found = fit(bits)
        except ConfigError:
            if best is None:
                raise
            below, bits = bits, (bits + above) / 2  # no file is so small
            continue
        rose = math.nan if found.loss is None else found.loss[1] - found.loss[0]
        if rose <= wanted:  # not if it is no number
            above = min(above, bits)
            best = found if best is None or found.file_bytes < best.file_bytes else best
            if rose >= NEAR * wanted:
                break
        else:
            below = max(below, bits)
        if above - below < CLOSE:
            break
        aimed = bits + _step(rose, AIM * wanted)
        bits = aimed if below < aimed < above else (below + above) / 2
    if best is None:
        raise ConfigError(
            f"loss_increase: the loss of the smallest error that was tried, at {below:.3g} bits a weight, is more than "
            f"{wanted:g} above that of the network; allow more"
        )
    return best


def _step(rose: float, aim: float) -> float:
    """Bits to add. A loss that did not rise, or that is no number, says only in which direction."""
    if rose <= 0:
        return -FARTHEST
    if not math.isfinite(rose):
        return FARTHEST
    return max(-FARTHEST, min(FARTHEST, 0.5 * math.log2(rose / aim)))
