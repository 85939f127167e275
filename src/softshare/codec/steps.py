"""How long decoding takes, in steps of about 10 ns: for the limit of work, and for the choice among codes.

By measurement (2.0 GHz x86): 65 ns a weight of the full model, 10 ns of the fast one and of Han's codec, 45 ns a bit of
an index, 21 ns a bit of a coded plane, 2 to 7 ns a symbol of a static code. Tables and calls take up to 0.2 ms a
tensor.
"""

from __future__ import annotations

from softshare.codec.symbols import FAST_ABOVE

SECONDS = 1e-8  # of a step
TENSOR = 1 << 14
STATIC = 1
PLANE_BYTE = 16
_FULL, _FAST, _INDEX_BIT = 6, 1, 5


def adaptive(n: int, n_nonzero: int, n_values: int, bands: bool = False) -> int:
    """Of a tensor's weights, by the adaptive coder."""
    bits = (n_values - 2).bit_length()
    full = n <= FAST_ABOVE and not bands
    return (_FULL if full else _FAST) * n + _INDEX_BIT * bits * min(n_nonzero, n)


def han(n: int) -> int:
    """Of a tensor by Han's codec, whose bytes account for its entries, or of zeros."""
    return _FAST * n
