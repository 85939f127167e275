"""The fields of a small header as decisions, each coded under a context of its own (docs/format.md 15.2).

The same functions encode and decode. What is coded, or decoded, is written down as in an ordinary header.
"""

from __future__ import annotations

import numpy as np

from softshare.codec.adaptive.logistic import ONE, PROBABILITY_BITS
from softshare.codec.adaptive.rangecoder import (
    COUNT_BITS,
    ESTIMATE_BITS,
    ROOM,
    Bytes,
    Coder,
    Ints,
    code_bit,
    grown,
    next_state,
)
from softshare.codec.wire import Reader, varint
from softshare.errors import FormatError

MOST_BITS = 40  # a number plus 1 is below 2 to the power of one more
# The kinds of numbers
COUNT, VALUES, FORM, ZEROS, FIRST, STEP, PREFIX, LETTERS, DIMENSIONS, ROWS, COLUMNS, SIZE, NONZERO, PERIOD = range(14)
_UNARY, _TREES, _TREE = 16, 8, 4  # states of a number: of its length, and of its first bits for each length
_OF_NUMBER = _UNARY + _TREES * _TREE
# Where other decisions have their states
SIGN = 14 * _OF_NUMBER
PLAIN = SIGN + 1
SAME = PLAIN + 1  # by whether the stem before was the same as the one before it
VECTOR = SAME + 2  # by suffix
CHAIN = VECTOR + 8
SUFFIX = CHAIN + 1  # by whether the stem is the same, by the suffix before, by the bits so far
LETTER = SUFFIX + 2 * 8 * 8  # by the bits so far
N_STATES = LETTER + 256


def new_states() -> Ints:
    return np.full(N_STATES, (1 << (ESTIMATE_BITS - 1)) << COUNT_BITS, np.int64)


class Fields:
    """Codes fields in order. `given` has those to encode; without it, they are decoded from the data."""

    def __init__(self, states: Ints, coder: Coder, data: Bytes, given: Reader | None = None) -> None:
        self.states = states
        self.coder = coder
        self.data = data
        self.given = given
        self.out = bytearray()

    def _code(self, bit: int, probability: int) -> int:
        if self.given and self.coder[2] + ROOM > len(self.data):
            self.data = grown(self.data)
        bit, self.coder = code_bit(bit, probability, self.coder, self.given is None, self.data)
        return int(bit)

    def bit(self, place: int, bit: int = 0) -> int:
        """A decision with a state."""
        state = int(self.states[place])
        bit = self._code(bit, state >> (COUNT_BITS + ESTIMATE_BITS - PROBABILITY_BITS))
        self.states[place] = next_state(state, bit)
        return bit

    def tree(self, place: int, n_bits: int, value: int = 0) -> int:
        """A number of so many bits, from the highest. The bits so far, after a 1, choose the state."""
        node = 1
        for level in range(n_bits - 1, -1, -1):
            node = 2 * node + self.bit(place + node, value >> level & 1)
        return node - (1 << n_bits)

    def number(self, kind: int, value: int = 0) -> int:
        """How many bits follow the highest bit of the number plus 1, then these bits; the first two by states."""
        value, place = value + 1, kind * _OF_NUMBER
        wanted, n_bits = value.bit_length() - 1, 0
        while self.bit(place + min(n_bits, _UNARY - 1), int(n_bits < wanted)):
            n_bits += 1
            if n_bits > MOST_BITS:
                raise FormatError(f"expected a number below 2^{MOST_BITS + 1}, got a larger one")
        place += _UNARY + _TREE * min(n_bits, _TREES - 1)
        node = 1
        for level in range(n_bits - 1, -1, -1):
            bit = value >> level & 1
            node = 2 * node + (self.bit(place + node, bit) if node < _TREE else self._code(bit, ONE // 2))
        return node - 1

    def varint(self, kind: int) -> int:
        """A number that an ordinary header has as a varint."""
        value = self.number(kind, self.given.varint() if self.given else 0)
        self.out += varint(value)
        return value
