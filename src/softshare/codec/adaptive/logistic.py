"""Tables of the logistic function in fixed point, made by integer arithmetic alone: the same on every machine, forever.

Log-odds are in 1/256 of a nat. Probabilities are those of a 1, in 2^-22.

Specified in docs/format.md 8.1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PROBABILITY_BITS = 22
ONE = 1 << PROBABILITY_BITS  # probability 1
NAT = 256  # log-odds of 1
LIMIT = 12 * NAT - 1  # log-odds are kept within it: probability 1 / 162,000
STRETCH_SHIFT = PROBABILITY_BITS - 16  # `STRETCH` has 65,536 entries
_E_256TH = 1157433911791679357  # exp(1 / 256) * 2^60, rounded


def _squash_table() -> npt.NDArray[np.int32]:
    """Index x + LIMIT -> ONE / (1 + exp(-x / 256)), rounded."""
    table = np.empty(2 * LIMIT + 1, np.int32)
    power = 1 << 60  # exp(x / 256) * 2^60, by repeated multiplication
    for x in range(LIMIT + 1):
        high = (ONE * power + ((power + (1 << 60)) >> 1)) // (power + (1 << 60))
        table[LIMIT + x], table[LIMIT - x] = high, ONE - high
        power = (power * _E_256TH + (1 << 59)) >> 60
    return table


def _stretch_table(squash: npt.NDArray[np.int32]) -> npt.NDArray[np.int16]:
    """Index p >> STRETCH_SHIFT -> the least x whose squash is not below the middle of those p."""
    middle = (np.arange(1 << 16) << STRETCH_SHIFT) + (1 << (STRETCH_SHIFT - 1))
    return (np.searchsorted(squash, middle) - LIMIT).clip(-LIMIT, LIMIT).astype(np.int16)


SQUASH = _squash_table()
STRETCH = _stretch_table(SQUASH)
