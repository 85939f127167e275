"""Planes: exact on any bytes, almost no bytes for constants, and never much more than the bytes themselves."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paths import TESTS
from softshare.codec.planes import decode_planes, encode_planes
from softshare.errors import FormatError

Bytes = npt.NDArray[np.uint8]


def octets(numbers: npt.NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(numbers.size, numbers.dtype.itemsize)


def normal(n: int, std: float = 0.05, dtype: str = "<f4", seed: int = 0) -> Bytes:
    return octets(np.random.default_rng(seed).normal(0, std, n).astype(dtype))


@given(
    st.integers(1, 30), st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 9), st.sampled_from([1, 2, 5, 256])
)  # fmt: skip
def test_round_trip(n: int, itemsize: int, seed: int, most: int) -> None:
    x = np.random.default_rng(seed).integers(0, most, (n, itemsize)).astype(np.uint8)
    data = encode_planes(x)
    assert np.array_equal(decode_planes(memoryview(data), n, itemsize), x)
    assert len(data) <= x.size + (itemsize + 3) // 4


@pytest.mark.parametrize(
    ("x", "most"),
    [
        (octets(np.zeros(500, "<f4")), 1),
        (octets(np.ones(500, "<f4")), 3),
        (octets(np.array([1875], "<i8")), 4),
        (octets(np.repeat(np.array([0, 1], "<f4"), 300)), 40),
        (octets(np.arange(512, dtype="<i8")), 300),
        (normal(100), 345),
        (normal(5000), 16700),
        (normal(500, dtype="<f2"), 870),
        (normal(5000)[:, :2], 10001),
    ],
    ids=["zeros", "ones", "a count", "two values", "range", "bias", "floats", "halves", "mantissas"],
)
def test_sizes(x: Bytes, most: int) -> None:
    data = encode_planes(x)
    assert len(data) <= most
    assert np.array_equal(decode_planes(data, *x.shape), x)


def test_numbers_that_are_zero_cost_one_decision() -> None:
    x = normal(1000).copy()
    x[np.random.default_rng(1).random(1000) < 0.9] = 0
    assert len(encode_planes(x)) < 0.2 * x.size


FIXED = [
    octets(((np.arange(90) * 7919 % 401 - 200) / 4096).astype("<f4")),
    octets(np.arange(300, dtype="<i8")),
    octets((np.arange(40) % 3).astype("<f2")),
    octets(((np.arange(200) * 7919 % 401 - 200) / 4096).astype("<f4"))[:, 2:],
]


def test_the_bytes_are_pinned() -> None:
    digest = hashlib.sha256(b"".join(encode_planes(x) for x in FIXED)).hexdigest()
    assert digest[:16] == "20a222018da3ac71"


PLAIN = """
import sys
sys.modules["numba"] = None  # as if it were not installed
sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/codec"]
from test_planes import FIXED, decode_planes, encode_planes, np
for k, x in enumerate(FIXED):
    print(encode_planes(x).hex())
    assert np.array_equal(decode_planes(bytes.fromhex(sys.argv[2 + k]), *x.shape), x)
"""


@pytest.mark.slow
def test_plain_python_writes_and_reads_the_same_bytes() -> None:
    pytest.importorskip("numba", reason="needs numba")
    compiled = [encode_planes(x).hex() for x in FIXED]
    command = [sys.executable, "-W", "error", "-c", PLAIN, str(TESTS), *compiled]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == compiled


@given(st.binary(max_size=80), st.integers(0, 12), st.sampled_from([1, 2, 4, 8, 16]))
def test_any_bytes_give_numbers_or_a_format_error(data: bytes, n: int, itemsize: int) -> None:
    with suppress(FormatError):
        assert decode_planes(data, n, itemsize).shape == (n, itemsize)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_changed_byte_gives_numbers_or_a_format_error(at: int, value: int) -> None:
    data = bytearray(encode_planes(FIXED[1]))
    data[at % len(data)] = value
    with suppress(FormatError):
        assert decode_planes(bytes(data), *FIXED[1].shape).shape == FIXED[1].shape


@pytest.mark.parametrize(
    ("data", "n", "message"),
    [
        (b"", 3, "expected the modes of 2 planes in 1 bytes, got 0x0 in 0"),
        (b"\x10", 3, "modes of 2 planes in 1 bytes, got 0x10"),
        (b"\x0c\1\2", 3, "expected 3 bytes of plane 1, got 2"),
        (b"\x04\0", 3, "constant other than 0 in plane 1"),
        (b"\x04\1\1", 3, "expected the shortest code, got 1 bytes ending in '01'"),
        (b"\x08" + bytes(range(1, 60)), 3, "bytes of code, got 59"),
    ],
)
def test_refuses_what_no_encoder_writes(data: bytes, n: int, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode_planes(data, n, 2)
