"""Tables of the logistic function in fixed point, made by integer arithmetic alone: the same on every machine for ever.

`STRETCH` units are 1/256 of a nat of log-odds; probabilities are of a 1, in 1/65536.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ONE = 1 << 16  # probability 1
LIMIT = 12 * 256 - 1  # log-odds are kept within it: 1 / 163,000, finer than a probability
_E_256TH = 1157433911791679357  # exp(1 / 256) * 2^60, rounded


def _squash_table() -> npt.NDArray[np.int64]:
    """Index x + LIMIT -> 65536 / (1 + exp(-x / 256)), kept off 0 and 1."""
    table = np.empty(2 * LIMIT + 1, np.int64)
    power = 1 << 60  # exp(x / 256) * 2^60, by repeated multiplication
    for x in range(LIMIT + 1):
        high = min(ONE - 1, (ONE * power + ((power + (1 << 60)) >> 1)) // (power + (1 << 60)))
        table[LIMIT + x], table[LIMIT - x] = high, ONE - high
        power = (power * _E_256TH + (1 << 59)) >> 60
    return table


SQUASH = _squash_table()
STRETCH = (np.searchsorted(SQUASH, np.arange(ONE)) - LIMIT).clip(-LIMIT, LIMIT).astype(np.int64)  # its inverse
