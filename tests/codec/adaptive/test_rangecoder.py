"""The coder is exact to the last carry, the mixing never leaves 64 bits, the tables are the logistic function."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softshare.codec.adaptive import rangecoder as rc
from softshare.codec.adaptive.logistic import LIMIT, ONE, SQUASH, STRETCH
from softshare.errors import FormatError


def coded(bits: list[int], probabilities: list[int]) -> bytes:
    data, coder = np.zeros(64, np.uint8), rc.start_encoding()
    for bit, probability in zip(bits, probabilities, strict=True):
        if coder[2] + rc.ROOM > len(data):
            data = rc.grown(data)
        _, coder = rc.code_bit(bit, probability, coder, False, data)
    return rc.finish(coder, data)


def decoded(code: bytes, probabilities: list[int]) -> list[int]:
    data = np.frombuffer(code, np.uint8).copy()
    coder, bits = rc.start_decoding(data), []
    for probability in probabilities:
        bit, coder = rc.code_bit(0, probability, coder, True, data)
        bits.append(int(bit))
    rc.check_end(coder, data)
    return bits


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([1, 25, ONE // 3, ONE // 2, ONE - 25, ONE - 1]))))
def test_round_trip(decisions: list[tuple[int, int]]) -> None:
    bits, probabilities = [b for b, _ in decisions], [p for _, p in decisions]
    assert decoded(coded(bits, probabilities), probabilities) == bits


def test_carries_run_far() -> None:
    """Unlikely ones keep low just under a byte's edge. The zero after them carries through all of it."""
    for n in range(1, 60):
        for bits in ([0] * n + [1], [1] * n + [0], [0] + [1] * n + [0]):
            for probability in (1, ONE // 256, ONE - 1, ONE - ONE // 256):
                assert decoded(coded(bits, [probability] * len(bits)), [probability] * len(bits)) == bits


def test_decisions_cost_their_information() -> None:
    rng = np.random.default_rng(0)
    bits = (rng.random(20000) < 0.1).astype(int).tolist()
    ideal = -sum(np.log2(0.1 if bit else 0.9) for bit in bits) / 8
    assert ideal - 1 <= len(coded(bits, [round(0.1 * ONE)] * len(bits))) <= 1.001 * ideal + 2


@pytest.mark.parametrize("extra", [b"\0", b"\1", b"\xff", b"\0\1", b"\1" * 9])
def test_additional_bytes_are_refused(extra: bytes) -> None:
    for n in (0, 1, 7, 8, 200):
        probabilities = [ONE // 3] * n
        with pytest.raises(FormatError, match="expected"):
            decoded(coded([k % 2 for k in range(n)], probabilities) + extra, probabilities)


def test_missing_bytes_are_refused() -> None:
    probabilities = [ONE // 2] * 200
    code = coded([1, 0, 0, 1, 1] * 40, probabilities)
    for n in range(len(code) - 5):
        with pytest.raises(FormatError, match=f"bytes of code, got {n}"):
            decoded(code[:n], probabilities)


@given(st.binary(max_size=30), st.integers(0, 60))
def test_what_is_read_is_what_would_be_written(code: bytes, n: int) -> None:
    """A list of decisions has one code: the decoder refuses all bytes that the encoder does not write."""
    probabilities = [(k * 7919) % (ONE - 1) + 1 for k in range(n)]
    try:
        bits = decoded(code, probabilities)
    except FormatError:
        return
    assert coded(bits, probabilities) == code


def test_extreme_inputs_stay_in_range() -> None:
    """The worst data: every input is at its limit, and every decision is a surprise."""
    n = 9
    inputs, weights = np.full(n, LIMIT), np.full(n, rc.WEIGHT_LIMIT)
    slots, states = np.arange(5), np.full(5, ((1 << rc.ESTIMATE_BITS) - rc.FLOOR) << rc.COUNT_BITS)
    data, coder = np.zeros(1 << 16, np.uint8), rc.start_encoding()
    for k in range(2000):
        inputs[:4] = LIMIT * (-1) ** (k // 7)
        _, coder = rc.code_mixed(k % 2, inputs, 4, slots, states, weights, rc.UNIT, coder, False, data)
        assert np.abs(weights).max() <= rc.WEIGHT_LIMIT
        estimates = states >> rc.COUNT_BITS
        assert rc.FLOOR <= estimates.min() <= estimates.max() <= (1 << rc.ESTIMATE_BITS) - rc.FLOOR


def test_the_tables_are_the_logistic_function() -> None:
    x = np.arange(-LIMIT, LIMIT + 1)
    truth = ONE / (1 + np.exp(-x / 256))
    assert np.abs(SQUASH - truth).max() <= 0.5 + 1e-6
    assert np.array_equal(SQUASH + SQUASH[::-1], np.full(len(x), ONE))
    p = (np.arange(8, (1 << 16) - 8) + 0.5) / (1 << 16)
    assert np.abs(STRETCH[8:-8] - 256 * np.log(p / (1 - p))).max() <= 1 + 1e-6
